"""Measures what a reduction of a tree of gradients adds to a compiled step of JAX.

`horovodrun -np 2 python bench/jax_step.py` prints, for trees of several sizes, medians of: a step
without a reduction, the same step with one, the engine's own time for as many bytes without Python
or JAX, and what remains. Each round takes them in turn.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd
from horovod import _native

ROUNDS, WARM_UP = 300, 30
TREES = [(1, 1), (20, 16), (160, 1024), (20, 65536)]


def main():
    hvd.init()
    if hvd.rank() == 0:
        print("leaves  elements  step µs  with allreduce µs  engine µs  remains µs")
    for leaves, elements in TREES:
        tree = [jnp.ones(elements) for _ in range(leaves)]
        plain = jax.jit(lambda tree: [leaf * 2 for leaf in tree])
        reducing = jax.jit(lambda tree: hvd.allreduce([leaf * 2 for leaf in tree], hvd.Sum))
        flat = np.zeros(leaves * elements, np.float32)
        times = {"plain": [], "reducing": [], "engine": []}
        for _ in range(WARM_UP + ROUNDS):
            times["plain"].append(seconds(plain, tree))
            hvd.barrier()
            times["reducing"].append(seconds(reducing, tree))
            times["engine"] += _native.repeat_allreduce(flat, "engine", 1)
        plain, reducing, engine = (
            statistics.median(values[WARM_UP:]) * 1e6 for values in times.values()
        )
        if hvd.rank() == 0:
            remains = reducing - plain - engine
            print(
                f"{leaves:6}  {elements:8}  {plain:7.1f}  {reducing:17.1f}  {engine:9.1f}  "
                f"{remains:10.1f}"
            )


def seconds(program, tree):
    start = time.perf_counter()
    jax.block_until_ready(program(tree))
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
