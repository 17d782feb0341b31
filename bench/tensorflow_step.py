"""Measures what a reduction adds to a `tf.function`: `python bench/tensorflow_step.py`.

In one job of two ranks, rounds of these alternate: a function without a reduction (`plain`),
the same function with one allreduce per tensor, the same with one grouped call, the same compiled
by XLA, and the engine's own time for as many bytes, without Python or TensorFlow. What remains of a
variant is its time minus those of the plain function (compiled or not) and of the engine. `buckets`
is how many messages the engine made of the tensors of a step: if they travel together it is far
below their number.
"""

import argparse
import os
import platform
import socket
import tempfile
import time

import figures
import job

# Number of tensors that a step reduces, and of elements per tensor.
STEPS = ["1x16", "1x65536", "100x256", "100x16384"]
WAYS = ["one by one", "grouped", "compiled"]


def main():
    options = parse()
    if job.is_rank():
        measure(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--rounds", options.rounds, "--steps", *options.steps]
        job.start(__file__, options, flags, {"RONDE_METRICS": f"unix:{folder}/metrics"})


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--steps", nargs="+", default=STEPS, help="TENSORSxELEMENTS")
    job.add_options(parser)
    return parser.parse_args()


def measure(options):
    """Runs on each rank."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    machine, results = job.machine(), []
    for step in options.steps:
        tensors, elements = map(int, step.split("x"))
        results.append(step_of(tf, hvd, tensors, elements, options.rounds))
    if hvd.rank() == 0:
        machine |= {"tensorflow": tf.__version__, "python": platform.python_version()}
        show(results, hvd.size(), machine)
        if options.json:
            whole = {"ranks": hvd.size(), "machine": machine, "steps": results}
            figures.save(options.json, whole)


def step_of(tf, hvd, tensors, elements, rounds):
    """Seconds of every round of every way, and the buckets of a step."""
    import numpy as np

    from horovod import _native

    def computed(values):
        return [value * 2 for value in values]

    def one_by_one(values):
        named = enumerate(computed(values))
        return [hvd.allreduce(each, op=hvd.Sum, name=f"g{number}") for number, each in named]

    def grouped(values):
        return hvd.grouped_allreduce(computed(values), op=hvd.Sum, name="group")

    ways = {"plain": tf.function(computed), "one by one": tf.function(one_by_one)}
    ways["grouped"] = tf.function(grouped)
    ways["plain, compiled"] = tf.function(computed, jit_compile=True)
    ways["compiled"] = tf.function(grouped, jit_compile=True)
    values = [tf.random.normal([elements]) for _ in range(tensors)]
    flat = np.zeros(tensors * elements, np.float32)
    seconds = {way: [] for way in [*ways, "engine"]}
    buckets = {}
    for way, function in ways.items():
        before = buckets_so_far()
        for _ in range(10):
            function(values)
        buckets[way] = (buckets_so_far() - before) / 10
    names = list(ways)
    for number in range(rounds):
        turn = number % len(names)
        for way in names[turn:] + names[:turn]:
            # All ranks are ready when the clock starts.
            hvd.barrier()
            start = time.perf_counter()
            ways[way](values)[-1].numpy()
            seconds[way].append(time.perf_counter() - start)
        hvd.barrier()
        seconds["engine"] += _native.repeat_allreduce(flat, "engine", 1)
    return {"tensors": tensors, "elements": elements, "buckets": buckets, "seconds": seconds}


def buckets_so_far():
    """How many buckets this rank has processed, according to its metrics."""
    path = os.environ["RONDE_METRICS"].partition(":")[2] + f".{os.environ['HOROVOD_RANK']}"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
        answer = b""
        while part := connection.recv(65536):
            answer += part
    lines = answer.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if is_count(line))


def is_count(line):
    return line.startswith("ronde_bucket_tensors_count")


def show(results, ranks, machine):
    """Prints a table with medians, the middle 80 %, and what remains in adjacent rounds."""
    print(f"# What a reduction adds to a tf.function on {ranks} ranks\n")
    print(job.described(machine), end="; ")
    print(f"TensorFlow {machine['tensorflow']}, Python {machine['python']}.")
    print("Microseconds per step: median (middle 80 %).\n")
    print("| tensors | elements of each | way | whole | engine | remains | buckets |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for each in results:
        seconds, engine = each["seconds"], each["seconds"]["engine"]
        for way in WAYS:
            plain = seconds["plain, compiled" if way == "compiled" else "plain"]
            remains = [a - b - c for a, b, c in zip(seconds[way], plain, engine)]
            print(
                f"| {each['tensors']} | {each['elements']} | {way} | {spelled(seconds[way])} | "
                f"{spelled(engine)} | {spelled(remains)} | {each['buckets'][way]:g} |"
            )


def spelled(seconds):
    return job.spelled(seconds, 1e6, 0)


if __name__ == "__main__":
    main()
