"""Shared code of `horovod.keras` and `horovod.tensorflow.keras`, for any version of Keras.

Keras itself is passed in as a module: Keras 3 with any of its backends, Keras 2 from TensorFlow up
to 2.15, or `tf_keras`. Nothing here imports a framework before it is needed.
"""
