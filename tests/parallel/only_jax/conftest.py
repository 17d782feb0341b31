"""Keras on JAX, before anything imports it."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
# Where there is TensorFlow, Keras imports it only to ask whether data is of its kind, which takes
# longer than most of these tests.
sys.modules.setdefault("tensorflow", None)
