"""Compares Keras's `fit` with MultiWorkerMirroredStrategy: `python bench/keras_fit.py`.

In one job every rank holds a copy of the same small network for each way to train it: `alone` does
not communicate and is the limit, `Ronde` uses `hvd.DistributedOptimizer`, both also with
`jit_compile=True`, and TensorFlow's own strategy uses its ring over gRPC. Rounds of all ways
alternate, and each goes first in turn. A round is a `fit` of some steps on the same data; its
figure is the time per step on the slowest rank. Each rank computes with one thread.

The strategy does not work with `fit` of Keras 3, so all ways use Keras 2, which
`pip install tf-keras` provides. Without it the strategy is left out.
"""

import argparse
import os
import platform
import statistics
import time
from importlib.metadata import version
from importlib.util import find_spec

import figures
import job

LIMIT = "alone"
COMPILED = ", compiled"
PEER = "MultiWorkerMirroredStrategy"


def main():
    options = parse()
    if job.is_rank():
        measure(options)
        return
    flags = ["--rounds", options.rounds, "--steps", options.steps, "--batch", options.batch]
    env = {"TF_USE_LEGACY_KERAS": str(int(find_spec("tf_keras") is not None))}
    job.start(__file__, options, flags, env)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="steps in a round of each way")
    parser.add_argument("--batch", type=int, default=32)
    job.add_options(parser)
    return parser.parse_args()


def measure(options):
    """Runs on each rank."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = None
    if os.environ["TF_USE_LEGACY_KERAS"] == "1":
        # It must be created before anything else runs.
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

    import horovod.tensorflow.keras as hvd

    hvd.init()
    machine = job.machine()
    ways = prepare(tf, hvd, strategy, options)
    seconds = {way: [] for way in ways}
    names = list(ways)
    # The first rounds trace and open connections.
    for number in range(-2, options.rounds):
        turn = number % len(names)
        for way in names[turn:] + names[:turn]:
            hvd.allreduce(0.0)
            start = time.perf_counter()
            ways[way]()
            own = (time.perf_counter() - start) / options.steps
            if number >= 0:
                seconds[way].append(float(max(hvd.allgather([own]))))
            else:
                hvd.allgather([own])
    if hvd.rank() == 0:
        keras = version("keras" if strategy is None else "tf_keras")
        machine |= {"tensorflow": tf.__version__, "keras": keras}
        machine |= {"python": platform.python_version()}
        show(seconds, hvd.size(), machine)
        if options.json:
            whole = {"ranks": hvd.size(), "machine": machine, "seconds": seconds}
            figures.save(options.json, whole)


def prepare(tf, hvd, strategy, options):
    """A function for each way that fits its own network for the steps of a round."""
    import numpy as np

    random = np.random.RandomState(hvd.rank())
    count = options.steps * options.batch
    images = random.rand(count, 28, 28, 1).astype(np.float32)
    labels = random.randint(0, 10, [count])
    data = tf.data.Dataset.from_tensor_slices((images, labels)).cache()

    def fit(batch, optimizer, **compiling):
        model = network(tf.keras)
        model.compile(optimizer, "sparse_categorical_crossentropy", **compiling)
        choice = tf.data.Options()
        # Every rank already has its own data.
        choice.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        batches = data.batch(batch, drop_remainder=True).repeat().with_options(choice)
        return lambda: model.fit(batches, steps_per_epoch=options.steps, epochs=1, verbose=0)

    own = options.batch
    ways = {
        LIMIT: fit(own, sgd(tf), jit_compile=False),
        "Ronde": fit(own, hvd.DistributedOptimizer(sgd(tf)), jit_compile=False),
        LIMIT + COMPILED: fit(own, sgd(tf), jit_compile=True),
        "Ronde" + COMPILED: fit(own, hvd.DistributedOptimizer(sgd(tf)), jit_compile=True),
    }
    if strategy is not None:
        with strategy.scope():
            # The strategy takes the batch size of all ranks together.
            ways[PEER] = fit(own * hvd.size(), sgd(tf), jit_compile=False)
    return ways


def sgd(tf):
    return tf.keras.optimizers.SGD(0.01)


def network(keras):
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input([28, 28, 1]),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def show(seconds, ranks, machine):
    """Prints a table with medians, the middle 80 %, and ratios of adjacent rounds."""
    print(f"# Keras's fit of a small CNN on {ranks} ranks\n")
    print(job.described(machine), end="; ")
    print(f"TensorFlow {machine['tensorflow']}, Keras {machine['keras']},", end=" ")
    print(f"Python {machine['python']}. Median (middle 80 %).\n")
    print("| way | ms per step | over alone | TensorFlow's strategy takes |")
    print("| --- | --- | --- | --- |")
    for way, own in seconds.items():
        limit = LIMIT + COMPILED if way.endswith(COMPILED) else LIMIT
        over = 100 * (ratio(own, seconds[limit]) - 1)
        times = f"{ratio(seconds[PEER], own):.2f} times that" if PEER in seconds else "not there"
        print(f"| {way} | {spelled(own)} | {over:+.1f} % | {times} |")


def ratio(one, other):
    return statistics.median(a / b for a, b in zip(one, other))


def spelled(seconds):
    return job.spelled(seconds, 1e3, 1)


if __name__ == "__main__":
    main()
