"""Seeds Keras, for tests that train."""

import pytest


@pytest.fixture(autouse=True)
def _same_seed_in_keras():
    import tensorflow as tf

    tf.keras.utils.set_random_seed(1)
