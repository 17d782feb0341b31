"""The parts of the self-test, as a rank runs them: `python -m horovod._selftest.parts NAME`.

Each checks known results, and raises an exception if they are wrong.
"""

from __future__ import annotations

import enum
import importlib.util
import sys
from typing import Any

from horovod.common import environment


class Part(enum.Enum):
    """A part: its title, the module it needs, and what it does."""

    collectives = ("collectives", "", "allreduce, allgather, broadcast, alltoall, reducescatter")
    sockets = ("over sockets", "", "the same, without shared memory")
    torch = ("PyTorch", "torch", "training steps with DistributedOptimizer")
    tensorflow = ("TensorFlow", "tensorflow", "training steps with DistributedGradientTape")
    keras = ("Keras", "keras", "`fit` with DistributedOptimizer")
    jax = ("JAX", "jax", "training steps compiled by `jax.jit`")
    mxnet = ("MXNet", "mxnet", "sums of arrays")

    def __init__(self, title: str, module: str, about: str) -> None:
        self.title = title
        self.module = module
        self.about = about


def require(found: Any, expected: Any, what: str) -> None:
    """Raises unless the result is the expected one."""
    if found != expected:
        raise AssertionError(f"{what} gave {found}, expected {expected}")


def done(text: str) -> None:
    """Prints the result, on rank 0."""
    if environment.rank() == 0:
        print(f"selftest: {text}", flush=True)


def engine() -> None:
    """Every collective on bare arrays, small and large."""
    import horovod.raw as hvd

    hvd.init()
    hvd.barrier()
    if importlib.util.find_spec("numpy") is None:
        return done("ranks can join; install NumPy to test the collectives")
    import numpy as np

    rank, size = hvd.rank(), hvd.size()
    for length in (1, 1_000_003):
        mine = np.full(length, rank + 1, np.float32)
        total = sum(range(1, size + 1))
        require(set(hvd.allreduce(mine, op=hvd.Sum)), {total}, "allreduce")
        gathered = hvd.allgather(mine[: rank + 1])
        expected = [of + 1 for of in range(size) for _ in range(min(of + 1, length))]
        require(gathered.tolist(), expected, "allgather")
        require(set(hvd.broadcast(mine, root_rank=1)), {2.0}, "broadcast")
    shares = np.arange(size, dtype=np.int64) + 10 * rank
    exchanged, _ = hvd.alltoall(shares, splits=[1] * size)
    require(exchanged.tolist(), [rank + 10 * of for of in range(size)], "alltoall")
    scattered = hvd.reducescatter(np.arange(2.0 * size), op=hvd.Sum)
    require(scattered.tolist(), [2.0 * rank * size, (2.0 * rank + 1) * size], "reducescatter")
    return done("")


def torch() -> None:
    """Trains one model on ranks with different data."""
    import torch

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    mine = torch.cat([value.detach().flatten() for value in model.parameters()])
    first = hvd.broadcast(mine, root_rank=0)
    require(bool(torch.equal(mine, first)), True, "comparing the ranks' parameters")
    done(f"{torch.__version__}: {Part.torch.about}")


def tensorflow() -> None:
    """Reduces gradients of a tape, with our ops in TensorFlow's graph."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    hvd.init()
    weight = tf.Variable([[1.0], [2.0]])

    def step(data: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(data @ weight)
        gradient = hvd.DistributedGradientTape(tape).gradient(loss, [weight])[0]
        weight.assign_sub(gradient)

    in_graph = tf.function(step)
    for _ in range(2):
        in_graph(tf.constant([[1.0, 2.0]]) * (hvd.rank() + 1))
    # The ranks contribute 1 and 2, so each of the two steps averages to 1.5.
    require(weight.numpy().ravel().tolist(), [1.0 - 3.0, 2.0 - 6.0], "two averaged steps")
    done(f"{tf.__version__}: {Part.tensorflow.about}")


def keras() -> None:
    """Trains with Keras's own loop."""
    import keras
    import numpy as np

    import horovod.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    data = np.random.default_rng(hvd.rank()).normal(size=(32, 4)).astype("float32")
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(data, data.sum(1), epochs=2, batch_size=8, verbose=0, callbacks=[first])
    weights = np.concatenate([np.asarray(weight).ravel() for weight in model.get_weights()])
    same = np.asarray(hvd.broadcast(weights, root_rank=0)).tolist()
    require(weights.tolist(), same, "comparing the ranks' weights")
    backend = keras.config.backend() if hasattr(keras, "config") else "tensorflow"
    done(f"{keras.__version__} on {backend}: {Part.keras.about}")


def jax() -> None:
    """Trains with a step that is one compiled program, including the reduction."""
    import jax
    import jax.numpy as jnp

    import horovod.jax as hvd

    hvd.init()
    weights = {"w": jnp.array([1.0, 2.0]), "b": jnp.array(0.0)}

    @jax.jit
    def step(weights: Any, data: Any) -> Any:
        gradients = jax.grad(lambda now: (data * now["w"]).sum() + now["b"])(weights)
        gradients = hvd.allreduce(gradients)
        return jax.tree_util.tree_map(lambda now, by: now - by, weights, gradients)

    for _ in range(2):
        weights = step(weights, jnp.array([1.0, 2.0]) * (hvd.rank() + 1))
    require(weights["w"].tolist(), [1.0 - 3.0, 2.0 - 6.0], "two averaged steps")
    require(float(weights["b"]), -2.0, "two averaged steps")
    done(f"{jax.__version__}: {Part.jax.about}")


def mxnet() -> None:
    """Sums and averages MXNet arrays."""
    import mxnet as mx

    import horovod.mxnet as hvd

    hvd.init()
    mine = mx.nd.ones((3,)) * (hvd.rank() + 1)
    require(hvd.allreduce(mine, average=False).asnumpy().tolist(), [3.0] * 3, "allreduce")
    require(hvd.broadcast(mine, root_rank=1).asnumpy().tolist(), [2.0] * 3, "broadcast")
    done(f"{mx.__version__}: {Part.mxnet.about}")


if __name__ == "__main__":
    run = {
        Part.collectives: engine,
        Part.sockets: engine,
        Part.torch: torch,
        Part.tensorflow: tensorflow,
        Part.keras: keras,
        Part.jax: jax,
        Part.mxnet: mxnet,
    }
    run[Part[sys.argv[1]]]()
