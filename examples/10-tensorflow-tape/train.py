"""Trains a network with a custom loop: TensorFlow 2, a gradient tape and `tf.function`.

This is an ordinary Horovod script: `python train.py` or `horovodrun -np 2 python train.py`. The
task is synthetic: to which of four clusters does a point belong? Nothing is downloaded.
"""

import argparse

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    hvd.init()

    points, labels = blobs(seed=hvd.rank())
    batches = tf.data.Dataset.from_tensor_slices((points, labels)).shuffle(1024, seed=hvd.rank())
    batches = batches.repeat().batch(options.batch_size)

    model = tf.keras.Sequential([tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(4)])
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Several ranks together process larger batches, so they can take larger steps.
    optimizer = tf.keras.optimizers.SGD(0.05 * hvd.size())

    @tf.function
    def step(points, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(points, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for number, (some_points, some_labels) in enumerate(batches.take(options.steps)):
        loss = step(some_points, some_labels)
        if number == 0:
            # Only now do all variables exist; from here on they stay the same on all ranks.
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(variables_of(optimizer), root_rank=0)
        if number % 50 == 0 and hvd.rank() == 0:
            print(f"step {number}: loss {float(loss):.3f}")

    right = tf.argmax(model(points), axis=1).numpy() == labels
    accuracy = float(hvd.allreduce(tf.constant(right.mean())))
    weights = sum(float(np.abs(weight).sum()) for weight in model.get_weights())
    print(f"rank {hvd.rank()}: accuracy {accuracy:.3f}, weights {weights:.6f}")


def blobs(seed):
    """Points around four centers, different on every rank."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, 4, size=2048)
    centres = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32)
    points = centres[labels] + random.normal(scale=0.4, size=[2048, 2])
    return points.astype(np.float32), labels.astype(np.int64)


def variables_of(optimizer):
    """The value of what is a property in newer Keras and a method in older."""
    return optimizer.variables() if callable(optimizer.variables) else optimizer.variables


if __name__ == "__main__":
    main()
