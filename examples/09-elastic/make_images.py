"""Makes two small trees of images, with a folder for each class: `python make_images.py FOLDER`.

A class is a colour in noise, so that a network can learn something.
"""

import random
import sys
from pathlib import Path

from PIL import Image

CLASSES = {"blue": (40, 40, 200), "green": (40, 200, 40), "red": (200, 40, 40)}
SIDE = 48


def main(folder, train_images, val_images):
    dice = random.Random(1)
    for part, count in (("train", train_images), ("validation", val_images)):
        for name, colour in CLASSES.items():
            place = Path(folder) / part / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                image(dice, colour).save(place / f"{number:04}.png")


def image(dice, colour):
    data = bytearray()
    for _ in range(SIDE * SIDE):
        data.extend(min(255, max(0, part + dice.randint(-60, 60))) for part in colour)
    return Image.frombytes("RGB", (SIDE, SIDE), bytes(data))


if __name__ == "__main__":
    folder, *counts = sys.argv[1:]
    main(folder, *map(int, counts or (20, 5)))
