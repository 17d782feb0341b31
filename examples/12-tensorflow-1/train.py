"""Trains with TensorFlow 1's graph and session, like benchmark programs of that time.

This is an ordinary Horovod script: `python train.py` or `horovodrun -np 2 python train.py`. The
data is synthetic. Nothing is downloaded.
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

import horovod.tensorflow as hvd


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    tf.disable_eager_execution()
    hvd.init()
    random = np.random.RandomState(hvd.rank())

    inputs = tf.placeholder(tf.float32, [None, 4])
    targets = tf.placeholder(tf.float32, [None])
    with tf.variable_scope("model"):
        start = np.full([4], float(hvd.rank()), np.float32)
        slopes = tf.get_variable("slopes", initializer=start)
        offset = tf.get_variable("offset", initializer=0.0)
    errors = tf.linalg.matvec(inputs, slopes) + offset - targets
    loss = tf.reduce_mean(tf.square(errors))

    # Gradients by hand: a sum over all ranks, on the CPU, divided by their number.
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    summed = [
        (hvd.allreduce(gradient, average=False, device_dense="/cpu:0") / hvd.size(), variable)
        for gradient, variable in pairs
    ]
    train = optimizer.apply_gradients(summed)
    everywhere = hvd.broadcast_global_variables(0)

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(everywhere)
        for step in range(options.steps):
            batch = random.normal(size=[64, 4]).astype(np.float32)
            wanted = batch @ np.array([1, -2, 3, 0.5], np.float32) + 4
            _, now = session.run([train, loss], {inputs: batch, targets: wanted})
            if step % 50 == 0 and hvd.rank() == 0:
                print(f"step {step}: loss {now:.4f}")
        found, constant = session.run([slopes, offset])
    text = " ".join(f"{number:.4f}" for number in [*found, constant])
    print(f"rank {hvd.rank()}: {text}")


if __name__ == "__main__":
    main()
