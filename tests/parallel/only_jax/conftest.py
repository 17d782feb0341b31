"""Selects JAX as the backend of Keras, before anything imports it."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
# If TensorFlow is installed, Keras imports it only to check the type of data, which takes longer
# than most of these tests.
sys.modules.setdefault("tensorflow", None)
