"""Images to classify, synthetic or of a folder with a subfolder for each class, as bytes (n, 3, side, side)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.data.examples import STREAMS, Examples, Part, random_bytes
from harness.errors import JobError, UsageError
from harness.user_paths import expanded

SYNTHETIC = "synthetic"
SUFFIXES = (".npy", ".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
VAL_SHARE = 8
"""One image of this many is held out for evaluation."""
_GRID = 8
"""Squares in each direction of the pattern of a synthetic class."""
_NOISE = 64
"""Grey levels of noise, out of 256."""

Images = NDArray[np.uint8]


def load(data: str, n: int, classes: int, side: int, seed: int) -> Examples:
    """Return `n` synthetic images, or at most `n` of a folder, evenly over its classes; 1 of VAL_SHARE for evaluation.

    Raises: UsageError for a folder without images, or with more classes than the model has; JobError for an image that
    cannot be read.
    """
    if data == SYNTHETIC:
        name, (x, y), n_classes = SYNTHETIC, _synthetic(n, classes, side, seed), classes
    else:
        folder = expanded(data)
        name, (x, y), n_classes = folder.name, *_of_folder(folder, n, classes, side)
    if len(x) < 2:
        raise UsageError("one image cannot serve both training and evaluation", "give at least 2")
    n_val = max(1, len(x) // VAL_SHARE)
    parts = {"train": (x[n_val:], y[n_val:]), "val": (x[:n_val], y[:n_val])}
    class_words = f"{n_classes:,} classes" if n_classes > 1 else "1 class"
    about = f"{len(x) - n_val:,} images of {side} x {side} and {n_val:,} to evaluate, {class_words}"
    return Examples(name, about, parts)


def _synthetic(n: int, classes: int, side: int, seed: int) -> Part:
    """Draw images: a coarse random pattern for each class, in three colours, plus noise. So there is something to
    learn."""
    stream = np.random.PCG64([seed, STREAMS["examples"]])
    patterns = random_bytes(stream, (classes, 3, _GRID, _GRID)) % (256 - _NOISE)
    labels = (stream.random_raw(n) % np.uint64(classes)).astype(np.int64)
    where = np.arange(side) * _GRID // side
    images = random_bytes(stream, (n, 3, side, side)) % _NOISE
    for image, label in zip(images, labels, strict=True):  # one by one: all patterns at once would double the memory
        image += patterns[label][:, where][:, :, where]
    return images, labels


def _of_folder(folder: Path, n: int, classes: int, side: int) -> tuple[Part, int]:
    files = _files(folder)
    if len(files) > classes:
        raise UsageError(f"{folder} has {len(files)} classes, the model has {classes}", f"--set classes={len(files)}")
    # one of each class in turn, so that the held-out images have all classes too
    turns = zip_longest(*([(path, label) for path in paths] for label, paths in enumerate(files.values())))
    chosen = [one for one in chain.from_iterable(turns) if one is not None][:n]
    images = np.stack([read(path, side) for path, _ in chosen])
    return (images, np.array([label for _, label in chosen], np.int64)), len(files)


def _files(folder: Path) -> dict[str, list[Path]]:
    """Return the images by class, both sorted by name."""
    try:
        by_class = {one.name: sorted(_images(one)) for one in sorted(folder.iterdir()) if one.is_dir()}
    except OSError as error:
        raise UsageError(
            f"the folder of images {folder} cannot be read: {error.strerror}",
            "data is synthetic, or a folder with a subfolder of images for each class",
        ) from None
    by_class = {name: paths for name, paths in by_class.items() if paths}
    if not by_class:
        raise UsageError(
            f"{folder} has no subfolder with images",
            f"a subfolder for each class, with files that end in {', '.join(SUFFIXES)}",
        )
    return by_class


def _images(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))


def read(path: Path, side: int) -> Images:
    """Return an image as bytes (3, side, side): its central square, scaled. Raises: JobError."""
    try:
        return _array(_loaded(path), side) if path.suffix.lower() == ".npy" else _picture(path, side)
    except ImportError:
        raise JobError(
            f"{path.name} can only be read with the package pillow, which {sys.executable} does not have",
            "pip install pillow, there; arrays saved by numpy (.npy) need nothing",
        ) from None
    except (OSError, ValueError, EOFError, SyntaxError) as error:  # pillow calls a broken PNG a SyntaxError
        raise JobError(f"the image {path} cannot be read: {error}", "repair it or remove it from the folder") from None


def _loaded(path: Path) -> NDArray[Any]:
    with path.open("rb") as stream:  # not np.load, which also accepts an archive of arrays
        return np.lib.format.read_array(stream, allow_pickle=False)


def _array(pixels: NDArray[Any], side: int) -> Images:
    """Scale bytes (height, width, 3) or (3, height, width) by nearest neighbour."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or 3 not in (pixels.shape[0], pixels.shape[2]):
        raise ValueError(f"an image is an array of bytes (height, width, 3), not {pixels.dtype} {pixels.shape}")
    pixels = pixels if pixels.shape[2] == 3 else pixels.transpose(1, 2, 0)
    height, width = pixels.shape[:2]
    if not (short := min(height, width)):
        raise ValueError("it has no pixels")
    nearest = (2 * np.arange(side) + 1) * short // (2 * side)
    square = pixels[(height - short) // 2 + nearest][:, (width - short) // 2 + nearest]
    return np.ascontiguousarray(square.transpose(2, 0, 1))


def _picture(path: Path, side: int) -> Images:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            if image.mode.startswith("I"):  # 16-bit grey, which pillow's convert() turns into white
                image = Image.fromarray((np.asarray(image).clip(0, 0xFFFF) // 0x101).astype(np.uint8))
            square = ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BILINEAR)
    except Image.DecompressionBombError as error:
        raise ValueError(error) from None
    return np.asarray(square, np.uint8).transpose(2, 0, 1)
