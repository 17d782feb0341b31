"""Trains a small network in JAX to read handwritten digits, on as many ranks as it is started with.

`python train.py` or `horovodrun -np 2 python train.py`. The 1,797 images come with scikit-learn.
Every rank trains on its own share of them; a whole step is one compiled program, including the
reduction of the gradients.
"""

import argparse
import hashlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import horovod.jax as hvd

TEST_IMAGES = 360


def main():
    options = parse()
    hvd.init()
    train, test = digits()
    # Several ranks together process larger batches, so they can take larger steps.
    optimizer = hvd.DistributedOptimizer(optax.sgd(options.lr * hvd.size(), momentum=0.9))

    @jax.jit
    def step(params, state, images, labels):
        gradients = jax.grad(loss)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    params = network(jax.random.PRNGKey(hvd.rank()))
    state = optimizer.init(params)
    params, state = hvd.broadcast_parameters((params, state), root_rank=0)

    seconds = []
    for epoch in range(options.epochs):
        start = time.perf_counter()
        for images, labels in batches(*train, options.batch_size, epoch):
            params, state = step(params, state, images, labels)
        jax.block_until_ready(params)
        seconds.append(time.perf_counter() - start)

    accuracy = measure(params, test)
    digests = hvd.allgather_object(digest(params))
    if hvd.rank() == 0:
        same = "the same" if len(set(digests)) == 1 else "NOT the same"
        print(f"{hvd.size()} rank(s): accuracy {accuracy:.3f}, {min(seconds):.3f} s per epoch")
        print(f"parameters are {same} on every rank: {digests[0]}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    return parser.parse_args()


def digits():
    images, labels = load_digits(return_X_y=True)
    images = np.asarray(images / 16, np.float32)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return (images[train], labels[train]), (images[test], labels[test])


def batches(images, labels, batch_size, epoch):
    """This rank's batches of an epoch: all ranks shuffle the same way, and each takes its share."""
    order = np.random.default_rng(epoch).permutation(len(labels))
    steps = len(order) // (batch_size * hvd.size())
    shares = order[: steps * batch_size * hvd.size()].reshape(steps, hvd.size(), batch_size)
    for share in shares[:, hvd.rank()]:
        yield images[share], labels[share]


def network(key):
    sizes = (64, 128, 10)
    keys = jax.random.split(key, len(sizes))
    return [
        {"weight": jax.random.normal(k, (n, m)) * (2 / n) ** 0.5, "bias": jnp.zeros(m)}
        for k, n, m in zip(keys, sizes, sizes[1:])
    ]


def logits(params, images):
    hidden = jax.nn.relu(images @ params[0]["weight"] + params[0]["bias"])
    return hidden @ params[1]["weight"] + params[1]["bias"]


def loss(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels).mean()


def measure(params, test):
    """The share of test images that are read correctly; each rank reads some of them."""
    images, labels = (array[hvd.rank() :: hvd.size()] for array in test)
    correct = (logits(params, images).argmax(1) == labels).sum()
    return int(hvd.allreduce(correct, op=hvd.Sum, name="correct")) / TEST_IMAGES


def digest(params):
    leaves = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(params))
    return hashlib.sha256(leaves).hexdigest()[:16]


if __name__ == "__main__":
    main()
