"""What type checkers know of the wrappers for Keras and TensorFlow; `make python-types` asks one.

Neither has types that can be relied on, so classes of our own stand in.
"""

from __future__ import annotations

from typing_extensions import assert_type

import horovod.keras
import horovod.tensorflow
import horovod.tensorflow.keras


class Mine:
    """Whatever class the user has."""


def wrappers_keep_the_users_class(mine: Mine) -> None:
    assert_type(horovod.keras.DistributedOptimizer(mine), Mine)
    assert_type(horovod.keras.PartialDistributedOptimizer(mine), Mine)
    assert_type(horovod.tensorflow.keras.DistributedOptimizer(mine, op=horovod.keras.Sum), Mine)
    assert_type(horovod.tensorflow.DistributedGradientTape(mine), Mine)
    assert_type(horovod.tensorflow.PartialDistributedGradientTape(mine), Mine)
