"""Trains a network with Keras's `fit`: warm-up, averaged metrics, augmentation, checkpoints.

This is an ordinary Horovod script: `python train.py` or `horovodrun -np 2 python train.py`. The
images are synthetic: horizontal, vertical or crossed bars. Nothing is downloaded.
"""

import argparse

import keras
import numpy as np

import horovod.keras as hvd


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint", help="where rank 0 saves the model after each epoch")
    options = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())

    images, labels = bars(512, seed=1 + hvd.rank())
    test_images, test_labels = bars(128, seed=0)
    model = keras.Sequential(
        [
            keras.layers.Input([12, 12, 1]),
            keras.layers.RandomTranslation(0.1, 0.1),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    # Several ranks together process larger batches, so they can take larger steps after warm-up.
    rate = 0.01 * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(rate))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        # All ranks start from the same point.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # This one comes before the callbacks that read the metrics.
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
        hvd.callbacks.LearningRateScheduleCallback(rate, lambda _: 0.1, options.epochs - 1),
    ]
    if hvd.rank() == 0 and options.checkpoint:
        callbacks.append(keras.callbacks.ModelCheckpoint(options.checkpoint))
    model.fit(
        images,
        labels,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=(test_images, test_labels),
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    loss, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    weights = sum(float(np.abs(weight).sum()) for weight in model.get_weights())
    print(f"rank {hvd.rank()}: accuracy {accuracy:.3f}, loss {loss:.3f}, weights {weights:.6f}")


def bars(count, seed):
    """Noisy images of a horizontal bar (0), a vertical one (1) or both (2)."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, 3, size=count)
    images = random.normal(scale=0.3, size=[count, 12, 12, 1])
    for image, label in zip(images, labels):
        row, column = random.randint(3, 9, size=2)
        if label != 1:
            image[row] += 1
        if label != 0:
            image[:, column] += 1
    return images.astype(np.float32), labels


if __name__ == "__main__":
    main()
