"""Measures what the arena saves: `horovodrun -np 2 python bench/arena.py`.

In place over float32, one thread per rank: tensors in the arena, where a reduction copies nothing;
the same through staging memory; the copy of fresh tensors into the arena and their reduction there,
which is what gradients made anew in every step would cost; and torch's gloo. Rounds of the four
take turns, so that what else happens on the machine meets all; a round's time is per call and that
of rank 0. The training steps reduce their gradients one by one, last first; for gloo they lie in
flat buckets of 25 MB, copied in and out.
"""

import argparse
import math

import torch
import torch.distributed as dist
from allreduce import figures_of, in_buckets, resnet50, spelled, timed
from torch.utils.dlpack import from_dlpack

import horovod.torch as hvd
from horovod import _native

ROUND_BYTES = 64 << 20


def bert():
    """The shapes of the 199 parameters of BERT-base, 418 MB in float32."""
    wide, inner = 768, 3072
    layer = [(wide, wide), (wide,)] * 4 + [(wide,), (wide,)]
    layer += [(inner, wide), (inner,), (wide, inner), (wide,), (wide,), (wide,)]
    ends = [(30522, wide), (512, wide), (2, wide), (wide,), (wide,)]
    return [*ends, *layer * 12, (wide, wide), (wide,)]


WORK = {
    "256 KB": [(1 << 16,)],
    "4 MB": [(1 << 20,)],
    "64 MB": [(1 << 24,)],
    "256 MB": [(1 << 26,)],
    "ResNet-50 step": resnet50()[::-1],
    "BERT step": bert()[::-1],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--work", nargs="*", choices=WORK, default=list(WORK))
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo")
    for name in options.work:
        calls = ways(WORK[name])
        size = sum(4 * math.prod(shape) for shape in WORK[name])
        show(name, compare(calls, max(1, ROUND_BYTES // size), options.rounds))
    dist.destroy_process_group()


def ways(shapes):
    """The calls to compare, by name."""
    fresh = [torch.zeros(shape) for shape in shapes]
    homes = [in_arena(shape) for shape in shapes]
    return {
        "arena": lambda: reduce(homes, "arena"),
        "staged": lambda: reduce(fresh, "staged"),
        "copied": lambda: reduce(homes, "arena", fresh),
        "gloo": gloo(fresh),
    }


def in_arena(shape):
    capsule = _native.arena(4 * math.prod(shape))
    if capsule is None:
        raise SystemExit("there is no arena here: it needs shared memory, and RONDE_ARENA not 0")
    return from_dlpack(capsule).view(torch.float32).view(shape).zero_()


def reduce(tensors, name, fresh=None):
    handles = []
    for number, tensor in enumerate(tensors):
        if fresh is not None:
            tensor.copy_(fresh[number])
        handles.append(hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"{name}.{number}"))
    for handle in handles:
        hvd.synchronize(handle)


def gloo(tensors):
    buckets = in_buckets(tensors)
    flats = [torch.empty(sum(tensor.numel() for tensor in bucket)) for bucket in buckets]

    def call():
        if len(tensors) == 1:
            dist.all_reduce(tensors[0])
            return
        flights = []
        for bucket, flat in zip(buckets, flats):
            torch.cat([tensor.view(-1) for tensor in bucket], out=flat)
            flights.append(dist.all_reduce(flat, async_op=True))
        for bucket, flat, flight in zip(buckets, flats, flights):
            flight.wait()
            parts = flat.split([tensor.numel() for tensor in bucket])
            torch._foreach_copy_([tensor.view(-1) for tensor in bucket], list(parts))

    return call


def compare(calls, times, rounds):
    seconds = {name: [] for name in calls}
    for call in calls.values():
        timed(call, 2)
    for number in range(rounds):
        for name in list(calls)[:: 1 if number % 2 else -1]:
            seconds[name].append(timed(calls[name], times))
    return {name: sorted(each) for name, each in seconds.items()}


def show(name, seconds):
    if hvd.rank() != 0:
        return
    print(f"{name}, {hvd.size()} ranks: median (p10 - p90), least; against the arena", flush=True)
    arena = figures_of(seconds["arena"])["median"]
    for way, each in seconds.items():
        figures = figures_of(each)
        least = each[0] * 1e3
        ratio = figures["median"] / arena
        print(f"  {way:7} {spelled(figures):>30}  {least:9.3f} ms  {ratio:5.1f} x", flush=True)


if __name__ == "__main__":
    main()
