"""Trains a small transformer to continue English text, on as many ranks as it is started with.

`python train.py` or `horovodrun -np 2 python train.py`. The text is the manual that comes with
Python (`pydoc_data.topics`), half a megabyte, read letter by letter. The last tenth is held out for
evaluation.
"""

import argparse
import math
import time
from pydoc_data.topics import topics

import torch
from model import LanguageModel
from torch import nn

import horovod.torch as hvd


def main():
    options = parse()
    hvd.init()
    torch.manual_seed(42)

    text = manual()
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(letter) for letter in text])
    kept = len(codes) // 10
    train, test = codes[:-kept], codes[-kept:]

    model = LanguageModel(len(letters), options.context, options.width, options.layers)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=options.lr),
        named_parameters=model.named_parameters(),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, 1 - step / options.steps)
    )

    # Every rank reads different parts of the same text.
    generator = torch.Generator().manual_seed(hvd.rank())
    start = time.perf_counter()
    for step in range(1, options.steps + 1):
        loss = train_step(model, optimizer, passages(train, options, generator))
        schedule.step()
        if step % options.report_every == 0 or step == options.steps:
            say(f"step {step}: loss {average(loss, 'loss'):.3f}")
    rate = options.steps * options.batch_size * options.context * hvd.size()
    rate /= time.perf_counter() - start

    loss = measure(model, test, options)
    ranks = "rank" if hvd.size() == 1 else "ranks"
    say(f"{hvd.size()} {ranks}: {loss / math.log(2):.2f} bits per letter of text it has not seen")
    say(f"{rate:,.0f} letters/s")
    if hvd.rank() == 0 and options.sample:
        said = model.continued(codes[:1], options.sample, torch.Generator().manual_seed(1))
        print("it writes:", repr("".join(letters[code] for code in said)))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="passages per rank and step")
    parser.add_argument("--context", type=int, default=64, help="letters per passage")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--report-every", type=int, default=50)
    parser.add_argument("--sample", type=int, default=120, help="letters to write at the end")
    return parser.parse_args()


def manual():
    """Python's manual, without everything that is not plain ASCII text."""
    whole = "\n".join(topics[name] for name in sorted(topics))
    return "".join(letter for letter in whole if letter == "\n" or " " <= letter <= "~")


def passages(text, options, generator):
    """A batch of passages, each one letter longer than the context."""
    places = torch.randint(
        len(text) - options.context, (options.batch_size, 1), generator=generator
    )
    return text[places + torch.arange(options.context + 1)]


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    # Clip the gradients after they are averaged over all ranks, and before the step uses them.
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    return loss.detach()


@torch.no_grad()
def measure(model, test, options):
    """The loss on held-out text; each rank reads its share of it."""
    generator = torch.Generator().manual_seed(1000 + hvd.rank())
    losses = [loss_of(model, passages(test, options, generator)) for _ in range(8)]
    return average(torch.stack(losses).mean(), "test")


def loss_of(model, batch):
    scores = model(batch[:, :-1])
    return nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())


def average(value, name):
    return hvd.allreduce(value, op=hvd.Average, name=name).item()


def say(line):
    if hvd.rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
