"""Measures allreduce against torch's gloo in one run: `horovodrun -np 2 python bench/allreduce.py`.

Both work on float32 sums in place with one thread per rank. Rounds of the two alternate, so that
what else happens on the machine meets both; a round's time is per call and that of rank 0. The last
line is one training step of ResNet-50: its 161 gradients one by one here, and in flat buckets of
25 MB, copied in and out, for gloo, as torch's own data-parallel wrapper does it.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import horovod.torch as hvd

SIZES = {
    "4 B": 4,
    "1 KB": 1 << 10,
    "64 KB": 64 << 10,
    "1 MB": 1 << 20,
    "4 MB": 4 << 20,
    "64 MB": 64 << 20,
    "256 MB": 256 << 20,
}
BUCKET_BYTES = 25 << 20
# A round of small calls lasts about this long, so that the clock does not matter.
ROUND_SECONDS = 0.02


def main():
    options = parse()
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo")
    results = {}
    for name in options.sizes:
        ours, gloo = single(SIZES[name])
        results[name] = compare(ours, gloo, options.rounds)
        show(name, results[name], first=len(results) == 1)
    if not options.no_step:
        ours, gloo = step()
        results["ResNet-50 step"] = compare(ours, gloo, options.rounds)
        show("ResNet-50 step", results["ResNet-50 step"], first=len(results) == 1)
    if options.json and hvd.rank() == 0:
        facts = {"ranks": hvd.size(), "torch": torch.__version__, "seconds": results}
        text = json.dumps(facts, indent=2) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            Path(options.json).write_text(text)
    dist.destroy_process_group()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--no-step", action="store_true", help="leave the ResNet-50 step out")
    parser.add_argument("--json", help="a file for the results, `-` for standard output")
    return parser.parse_args()


def single(size_bytes):
    """The two calls for one tensor."""
    tensor = torch.ones(size_bytes // 4)
    hvd.allreduce_(tensor, op=hvd.Sum, name="check")
    assert tensor.eq(hvd.size()).all()
    tensor.zero_()
    return (
        lambda: hvd.allreduce_(tensor, op=hvd.Sum, name="bench"),
        lambda: dist.all_reduce(tensor),
    )


def step():
    """The two ways to reduce the gradients of ResNet-50; backward makes the last ones first."""
    gradients = [torch.zeros(shape) for shape in reversed(resnet50())]

    def ours():
        handles = [
            hvd.allreduce_async_(gradient, op=hvd.Sum, name=f"gradient.{number}")
            for number, gradient in enumerate(gradients)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    buckets = in_buckets(gradients)
    flats = [torch.empty(sum(tensor.numel() for tensor in bucket)) for bucket in buckets]

    def gloo():
        flights = []
        for bucket, flat in zip(buckets, flats):
            torch.cat([tensor.view(-1) for tensor in bucket], out=flat)
            flights.append(dist.all_reduce(flat, async_op=True))
        for bucket, flat, flight in zip(buckets, flats, flights):
            flight.wait()
            parts = flat.split([tensor.numel() for tensor in bucket])
            torch._foreach_copy_([tensor.view(-1) for tensor in bucket], list(parts))

    return ours, gloo


def in_buckets(tensors):
    buckets, room = [], 0
    for tensor in tensors:
        if tensor.nbytes > room or not buckets:
            buckets.append([])
            room = BUCKET_BYTES
        buckets[-1].append(tensor)
        room -= tensor.nbytes
    return buckets


def resnet50():
    """The shapes of the 161 parameters of ResNet-50, 97 MB in float32."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    width = 64
    for inner, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            outer = inner * 4
            shapes += [(inner, width, 1, 1), (inner,), (inner,)]
            shapes += [(inner, inner, 3, 3), (inner,), (inner,)]
            shapes += [(outer, inner, 1, 1), (outer,), (outer,)]
            if block == 0:
                shapes += [(outer, width, 1, 1), (outer,), (outer,)]
            width = outer
    return [*shapes, (1000, width), (1000,)]


def compare(ours, gloo, rounds):
    """Times two calls in alternating rounds; gives the figures of both, in seconds."""
    both = {"ours": ours, "gloo": gloo}
    calls = {name: calls_per_round(call) for name, call in both.items()}
    seconds = {name: [] for name in both}
    for number in range(rounds):
        for name in ("ours", "gloo") if number % 2 else ("gloo", "ours"):
            seconds[name].append(timed(both[name], calls[name]))
    figures = {name: figures_of(sorted(rounds)) for name, rounds in seconds.items()}
    return {**figures, "ratio": figures["gloo"]["median"] / figures["ours"]["median"]}


def figures_of(ordered):
    tenth = len(ordered) // 10
    return {
        "median": statistics.median(ordered),
        "p10": ordered[tenth],
        "p90": ordered[-1 - tenth],
        "rounds": len(ordered),
    }


def calls_per_round(call):
    for _ in range(3):
        call()
    once = torch.tensor([timed(call, 3)], dtype=torch.float64)
    # All ranks must make the same number of calls.
    slowest = hvd.allreduce(once, op=hvd.Max, name="slowest").item()
    return max(1, min(500, int(ROUND_SECONDS / slowest)))


def timed(call, times):
    hvd.barrier()
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def show(name, result, first):
    if hvd.rank() != 0:
        return
    if first:
        print(f"allreduce, {hvd.size()} ranks, float32 sum in place; median (p10 - p90)\n")
        print(f"{'':14}  {'ours':^30}  {'torch gloo':^30}  gloo / ours")
    columns = [f"{spelled(result[who]):>30}" for who in ("ours", "gloo")]
    print(f"{name:14}  {columns[0]}  {columns[1]}  {result['ratio']:11.1f}", flush=True)


def spelled(figures):
    unit, factor = ("us", 1e6) if figures["median"] < 1e-3 else ("ms", 1e3)
    middle, low, high = (figures[key] * factor for key in ("median", "p10", "p90"))
    return f"{middle:.1f} {unit} ({low:.1f} - {high:.1f})"


if __name__ == "__main__":
    main()
