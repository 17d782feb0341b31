"""What type checkers infer about the Keras and TensorFlow wrappers; see `make python-types`.

Neither framework has reliable types, so our own classes stand in for theirs.
"""

from __future__ import annotations

from typing_extensions import assert_type

import horovod.keras
import horovod.tensorflow
import horovod.tensorflow.keras


class Mine:
    """Stands in for any class of the user's."""


def wrappers_keep_the_users_class(mine: Mine) -> None:
    assert_type(horovod.keras.DistributedOptimizer(mine), Mine)
    assert_type(horovod.keras.PartialDistributedOptimizer(mine), Mine)
    assert_type(horovod.tensorflow.keras.DistributedOptimizer(mine, op=horovod.keras.Sum), Mine)
    assert_type(horovod.tensorflow.DistributedOptimizer(mine), Mine)
    assert_type(horovod.tensorflow.DistributedGradientTape(mine), Mine)
    assert_type(horovod.tensorflow.PartialDistributedGradientTape(mine), Mine)
