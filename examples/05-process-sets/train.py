"""Trains two models at once, each on half of the ranks, and lets them vote.

`python train.py` or `horovodrun -np 4 python train.py`. The ranks are split into two teams; with a
process set each team averages only its own gradients. Afterwards all ranks together average the
predictions of the two models. A single rank is one team.
"""

import argparse
import math

import torch
from torch import nn

import horovod.torch as hvd


def main():
    options = parse()
    # "dynamic" allows adding sets once the number of ranks is known.
    hvd.init(process_sets="dynamic")
    number, team, teams = choose_team()
    print(
        f"rank {hvd.rank()} is number {team.rank()} of {team.size()} in team {number}", flush=True
    )

    # Each team starts from its own point; all ranks of a team start from the same one.
    torch.manual_seed(number)
    model = nn.Sequential(
        nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=options.lr),
        named_parameters=model.named_parameters(),
        process_set=team,
    )

    generator = torch.Generator().manual_seed(hvd.rank())
    for _ in range(options.steps):
        points, labels = spirals(64, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()

    points, labels = spirals(1000, torch.Generator().manual_seed(1000))
    with torch.no_grad():
        said = model(points).softmax(1)
    if team.rank() == 0:
        print(f"team {number}: {share(said, labels):.3f} of the points are right", flush=True)
    # All members of a team predict the same; together they have one vote.
    votes = hvd.allreduce(said / team.size(), op=hvd.Sum, name="votes") / teams
    if hvd.rank() == 0:
        print(f"together: {share(votes, labels):.3f} of the points are right")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--lr", type=float, default=0.02)
    return parser.parse_args()


def choose_team():
    """The number of this rank's team, its process set, and how many teams there are."""
    if hvd.size() == 1:
        return 0, hvd.global_process_set, 1
    # All ranks register all sets, in the same order, whether they are in them or not.
    teams = [hvd.add_process_set(list(range(first, hvd.size(), 2))) for first in range(2)]
    number = hvd.rank() % 2
    return number, teams[number], len(teams)


def spirals(count, generator):
    """Points on two interleaved spirals, and which of the two each is on."""
    labels = torch.randint(2, (count,), generator=generator)
    along = torch.rand(count, generator=generator).sqrt()
    angle = 3 * math.pi * along + math.pi * labels
    points = along.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], 1)
    return points + 0.02 * torch.randn(count, 2, generator=generator), labels


def share(scores, labels):
    return (scores.argmax(1) == labels).float().mean().item()


if __name__ == "__main__":
    main()
