"""Loads the library that registers the ops, or says why that is not possible.

One build works with every TensorFlow since 2.13, because everything it needs is in TensorFlow's C
interface and is looked up when it is loaded.
"""

from __future__ import annotations

import os
import sysconfig
from typing import Any

import tensorflow as tf

from horovod import _native
from horovod.common.util import is_version_greater_equal_than

OLDEST = "2.13.0"
FILE = "libronde_tensorflow.so"


def _load() -> Any:
    if not is_version_greater_equal_than(tf.__version__, OLDEST):
        raise ImportError(
            f"horovod.tensorflow needs TensorFlow 2.13 or newer, and this is {tf.__version__}: "
            "older ones have no asynchronous kernels in their C interface; upgrade it with "
            "`pip install 'tensorflow>=2.13'`",
            name="tensorflow",
        )
    library = tf.load_op_library(_path())
    problem = _native.tensorflow_problem()
    if problem is not None:
        raise ImportError(
            f"horovod.tensorflow does not work with TensorFlow {tf.__version__}: {problem}; "
            "install another release of TensorFlow, or a newer one of ronde",
            name="tensorflow",
        )
    return library


def _path() -> str:
    # In an editable installation the Python files are not next to what was built.
    folders = [os.path.dirname(_native.__file__), sysconfig.get_path("platlib") + "/horovod"]
    paths = [os.path.join(folder, FILE) for folder in folders]
    found = next((path for path in paths if os.path.exists(path)), None)
    if found is None:
        raise ImportError(
            f"{FILE} is missing next to {_native.__file__}; install Ronde again: "
            f"{_native.REINSTALL}"
        )
    return found


ops = _load()
