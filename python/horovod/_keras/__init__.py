"""What `horovod.keras` and `horovod.tensorflow.keras` share, whichever Keras they were given.

Keras itself is passed in as a module: 3 with any of its backends, 2 as it came with TensorFlow up
to 2.15, or `tf_keras`. Nothing here imports a framework before it is needed.
"""
