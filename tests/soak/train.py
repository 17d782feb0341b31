"""The training program of the soak test: commits every step and writes a diary.

Whenever a world has formed, it compares hashes of the parameters and the optimizer state.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch

import horovod.torch as hvd

FOLDER = Path(sys.argv[1])
PACE_SECONDS = float(sys.argv[2])
DIARY = (FOLDER / f"worker-{os.environ['RONDE_WORKER']}.jsonl").open("a", buffering=1)


def note(event, **more):
    """Appends a line to this worker's diary."""
    who = {"pid": os.getpid(), "host": os.environ["HOROVOD_HOSTNAME"]}
    entry = {"time": time.monotonic(), "event": event, **who, **more}
    DIARY.write(json.dumps(entry) + "\n")


def digest(model, optimizer):
    """A hash of everything that training changes."""
    hashed = hashlib.sha256()
    for parameter in model.parameters():
        hashed.update(parameter.detach().numpy().tobytes())
        momentum = optimizer.state[parameter].get("momentum_buffer")
        if momentum is not None:
            hashed.update(momentum.numpy().tobytes())
    return hashed.hexdigest()


def train(state, model, optimizer):
    """Trains until the file `stop` exists."""
    digests = hvd.allgather_object(digest(model, optimizer))
    note(
        "world",
        rank=hvd.rank(),
        size=hvd.size(),
        step=state.step,
        equal=len(set(digests)) == 1,
    )
    while True:
        generator = torch.Generator().manual_seed(1000 * state.step + hvd.rank())
        inputs = torch.randn(8, 64, generator=generator)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(PACE_SECONDS)
        state.step += 1
        state.commit()
        note("step", step=state.step)
        stop = torch.tensor([float((FOLDER / "stop").exists())])
        if hvd.allreduce(stop, op=hvd.Max, name="stop").item() > 0:
            return


def main():
    """Joins, trains, and leaves."""
    note("start")
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    hvd.elastic.run(train)(state, model, optimizer)
    note("end", step=state.step)


if __name__ == "__main__":
    main()
