"""Creates two small folders of images, with a subfolder per class: `python make_images.py FOLDER`.

Each class is a color in noise, so that a network can learn something.
"""

import random
import sys
from pathlib import Path

from PIL import Image

CLASSES = {"blue": (40, 40, 200), "green": (40, 200, 40), "red": (200, 40, 40)}
SIDE = 48


def main(folder, train_images, val_images):
    rng = random.Random(1)
    for part, count in (("train", train_images), ("validation", val_images)):
        for name, color in CLASSES.items():
            place = Path(folder) / part / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                image(rng, color).save(place / f"{number:04}.png")


def image(rng, color):
    data = bytearray()
    for _ in range(SIDE * SIDE):
        data.extend(min(255, max(0, part + rng.randint(-60, 60))) for part in color)
    return Image.frombytes("RGB", (SIDE, SIDE), bytes(data))


if __name__ == "__main__":
    folder, *counts = sys.argv[1:]
    main(folder, *map(int, counts or (20, 5)))
