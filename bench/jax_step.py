"""Measures what a reduction adds to a compiled step of JAX: `python bench/jax_step.py`.

One job, in which rounds of these alternate for trees of several sizes: a step without a reduction,
the same step with one grouped call for the whole tree, and the engine's own time for as many bytes,
without Python or JAX. What remains is the second minus the others.
"""

import argparse
import platform
import time

import figures
import job

# Number of leaves of a tree, and of elements per leaf.
TREES = ["1x1", "20x16", "160x16", "160x1024", "20x65536"]
WARM_UP = 30


def main():
    options = parse()
    if job.is_rank():
        measure(options)
        return
    job.start(__file__, options, ["--rounds", options.rounds, "--trees", *options.trees])


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--trees", nargs="+", default=TREES, help="LEAVESxELEMENTS")
    job.add_options(parser)
    return parser.parse_args()


def measure(options):
    """Runs on each rank."""
    import jax

    import horovod.jax as hvd

    hvd.init()
    machine, results = job.machine(), []
    for tree in options.trees:
        leaves, elements = map(int, tree.split("x"))
        seconds = step_of(jax, hvd, leaves, elements, options.rounds)
        results.append({"leaves": leaves, "elements": elements, "seconds": seconds})
    if hvd.rank() == 0:
        machine |= {"jax": jax.__version__, "python": platform.python_version()}
        show(results, hvd.size(), machine)
        if options.json:
            whole = {"ranks": hvd.size(), "machine": machine, "trees": results}
            figures.save(options.json, whole)


def step_of(jax, hvd, leaves, elements, rounds):
    """Seconds of every round, with and without the reduction, and of the engine."""
    import numpy as np

    from horovod import _native

    tree = [jax.numpy.ones(elements) for _ in range(leaves)]
    plain = jax.jit(lambda tree: [leaf * 2 for leaf in tree])
    reducing = jax.jit(lambda tree: hvd.allreduce([leaf * 2 for leaf in tree], hvd.Sum))
    flat = np.zeros(leaves * elements, np.float32)
    seconds = {"plain": [], "reducing": [], "engine": []}
    for _ in range(WARM_UP + rounds):
        seconds["plain"].append(timed(jax, plain, tree))
        hvd.barrier()
        seconds["reducing"].append(timed(jax, reducing, tree))
        hvd.barrier()
        seconds["engine"] += _native.repeat_allreduce(flat, "engine", 1)
    return {way: taken[WARM_UP:] for way, taken in seconds.items()}


def timed(jax, program, tree):
    start = time.perf_counter()
    jax.block_until_ready(program(tree))
    return time.perf_counter() - start


def show(results, ranks, machine):
    """Prints a table with medians, the middle 80 %, and what remains in adjacent rounds."""
    print(f"# What a reduction adds to a step of JAX on {ranks} ranks\n")
    print(job.described(machine), end="; ")
    print(f"JAX {machine['jax']}, Python {machine['python']}.")
    print("Microseconds per step: median (middle 80 %).\n")
    print("| leaves | elements of each | step | with allreduce | engine | remains |")
    print("| --- | --- | --- | --- | --- | --- |")
    for each in results:
        seconds = each["seconds"]
        plain, reducing, engine = seconds["plain"], seconds["reducing"], seconds["engine"]
        remains = [a - b - c for a, b, c in zip(reducing, plain, engine)]
        cells = [job.spelled(times, 1e6, 0) for times in (plain, reducing, engine, remains)]
        print(f"| {each['leaves']} | {each['elements']} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
