"""TensorFlow, eagerly and in functions. Nothing is in place."""

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from frameworks.framework import Framework


class TensorFlow(Framework):
    name = "tensorflow"
    hvd = hvd
    lacks = {"mixed groups of allgathers": "Horovod's op has one element type"}
    # TensorFlow does not compute with unsigned 32-bit integers.
    refused = {"complex64": "complex64 .*allowed values", "uint32": "uint32 .*allowed values"}
    mismatch = tf.errors.FailedPreconditionError
    invalid = tf.errors.InvalidArgumentError
    refusal = tf.errors.InvalidArgumentError
    takes = "takes tensors, variables"
    # As in Horovod, gradients of gathered and of broadcast tensors are averaged.
    gradient_factors = {
        "allgather": lambda size: 1 / size,
        "broadcast": lambda size: 1 / size,
        "reducescatter": lambda size: size,
    }

    def start(self):
        tf.config.threading.set_inter_op_parallelism_threads(2)
        tf.config.threading.set_intra_op_parallelism_threads(1)

    def seed(self):
        tf.random.set_seed(1)

    def tensor(self, array, dtype="float32"):
        return tf.cast(tf.constant(np.array(array)), dtype)

    def values(self, tensor):
        return (tf.cast(tensor, "float32") if tensor.dtype == "bfloat16" else tensor).numpy()

    def dtype(self, tensor):
        return tensor.dtype.name

    def derivative(self, function, array, order=1):
        variable = tf.Variable(self.tensor(array))

        def derived(left):
            if left == 0:
                return function(variable)
            with tf.GradientTape() as tape:
                result = derived(left - 1)
            return tape.gradient(result, variable)

        return self.values(self.run(lambda: tf.convert_to_tensor(derived(order))))


class Function(TensorFlow):
    name = "tensorflow_function"
    lacks = {
        **TensorFlow.lacks,
        "objects": "they are sent outside functions",
        "threads": "a function has its own order",
    }
    # TensorFlow's own error, while a graph is built.
    refusal = TypeError

    def run(self, function, *tensors):
        def traced(*tensors):
            result = function(*tensors)
            # A function also runs nodes without a value.
            return None if isinstance(result, tf.Operation) else result

        return tf.function(traced, autograph=False)(*tensors)
