"""The compressors of the framework that Keras runs on."""

from __future__ import annotations

import importlib
from typing import Any

import keras

from horovod._keras.backends import backend_of

__all__ = ["Compression"]

Compression: Any = importlib.import_module(f"horovod.{backend_of(keras)}.compression").Compression
"""Compressors to choose from: those of the framework that Keras runs on."""
