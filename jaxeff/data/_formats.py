"""Data sets as their files hold them: idx, CIFAR-10's batches, and those that scikit-learn bundles.

Sharp edges:
    The number of images is that of the header, so a subset in idx form loads. A file that holds
    more or fewer bytes than its header promises is refused.
    The digits of one writer fall into both parts of the split, as in most uses of this set, so its
    test accuracy flatters.
"""

import gzip
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from jaxeff.core import optional
from jaxeff.store import max_inflated_size, read_npz


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with their labels, as host (NumPy) arrays.

    Attributes:
        name: The name it was loaded under, as `jaxeff.data.normalize` takes it.
        train_images: uint8, ``[n, height, width, channels]``, 0 (black) to 255.
        train_labels: int32, ``[n]``, from 0 to ``num_classes - 1``.
        test_images: uint8, ``[m, height, width, channels]``.
        test_labels: int32, ``[m]``.
        num_classes: Number of classes.
    """

    name: str
    train_images: UInt8[np.ndarray, "train height width channels"]
    train_labels: Int[np.ndarray, " train"]
    test_images: UInt8[np.ndarray, "test height width channels"]
    test_labels: Int[np.ndarray, " test"]
    num_classes: int

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""
        height, width, channels = self.train_images.shape[1:]
        return height, width, channels

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, train={len(self.train_labels)}, test={len(self.test_labels)}, "
            f"image={self.image_shape}, classes={self.num_classes})"
        )


class DataError(Exception):
    """A data file is missing, cut short, or not in the format its name promises."""


_UINT8 = 0x08


def read_idx(path: Path, ndim: int) -> UInt8[np.ndarray, "..."]:
    """Reads a uint8 idx file.

    A name that ends in ``.gz`` is decompressed on the way; `ndim` is 3 for images, 1 for labels.
    Returns the values, uint8, with the shape that the header states.

    MNIST and Fashion-MNIST are in the idx format, plain or gzipped. A file is two zero bytes, a
    type byte (8 is uint8), the number of dimensions, each dimension as a big-endian uint32, then
    the values, last dimension fastest (http://yann.lecun.com/exdb/mnist).
    """
    content = _read_bytes(path)
    magic = (_UINT8 << 8) + ndim
    header = 4 + 4 * ndim
    if len(content) < header:
        raise DataError(
            f"{path}: expected an idx header of {header} bytes (magic 0x{magic:08x}), "
            f"found {len(content)} bytes; fetch the file again"
        )
    actual = int.from_bytes(content[:4], "big")
    if actual != magic:
        raise DataError(
            f"{path}: expected idx magic number 0x{magic:08x} (uint8, {ndim} dimension"
            f"{'s' if ndim > 1 else ''}), found 0x{actual:08x}; is it another file renamed?"
        )
    # Big-endian in the file, whatever the host is.
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", ndim, offset=4))
    # In Python's integers: sizes from a damaged header must not overflow to a matching product.
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise DataError(
            f"{path}: its header states {' x '.join(map(str, shape))} values, so {expected} bytes "
            f"(uncompressed) were expected, found {len(content)}; fetch the file again"
        )
    # A view of the bytes, without a copy, and therefore read-only.
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _read_bytes(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            most = max_inflated_size(path.stat().st_size)
            with gzip.open(path, "rb") as file:
                content = file.read(most + 1)
            if len(content) > most:
                raise DataError(
                    f"{path}: inflates to more than {most:,} bytes, which a file of its size may "
                    "not; if you trust it, unpack it with gunzip"
                )
            return content
        return path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}: expected a complete gzip file, but decompressing it failed ({error}); "
            "it is cut short or damaged: fetch it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, but {error}") from error


CIFAR_RECORDS = 10_000
CIFAR_TRAIN_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CIFAR_TEST_BATCH = "test_batch.bin"
CIFAR_ARCHIVE = "cifar10.npz"

_RECORD_BYTES = 1 + 3 * 32 * 32

Labelled = tuple[UInt8[np.ndarray, "n 32 32 3"], UInt8[np.ndarray, " n"]]


def read_cifar_batch(path: Path, records: int = CIFAR_RECORDS) -> Labelled:
    """Reads one binary batch.

    Returns images, uint8 ``[records, 32, 32, 3]``, and labels, uint8 ``[records]``.

    CIFAR-10 is in the standard binary batches, or in a losslessly delta-coded ``cifar10.npz``. A
    binary batch has 10,000 records of 3,073 bytes, one label and then the red, green and blue
    planes of 32 x 32 bytes, row by row (https://www.cs.toronto.edu/~kriz/cifar.html). The number of
    records is fixed, since a file that was cut between two records would otherwise look whole.
    """
    try:
        size = path.stat().st_size
        expected = records * _RECORD_BYTES
        if size != expected:
            raise DataError(
                f"{path}: expected {expected} bytes ({records} records of {_RECORD_BYTES}), "
                f"found {size}; fetch the file again"
            )
        table = np.fromfile(path, np.uint8).reshape(records, _RECORD_BYTES)
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, but {error}") from error
    # Planes of colour become the last axis; copied once, since every later batch is read by rows.
    planes = table[:, 1:].reshape(records, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), table[:, 0]


_PACKED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA


def read_cifar_archive(path: Path) -> tuple[Labelled, Labelled]:
    """Reads the delta-coded archive.

    Returns training and test set, each images uint8 ``[n, 32, 32, 3]`` and labels uint8 ``[n]``.

    The archive has ``delta_batch_1`` to ``delta_batch_5`` and ``delta_test``, uint8 ``[3, 10000,
    32, 32]``: differences (modulo 256) along rows and columns of the planes green, red - green and
    blue - green; ``labels_train`` and ``labels_test``, uint8. It is half the size of the batches.
    """
    names = [f"delta_batch_{i}" for i in range(1, 6)] + ["delta_test"]
    try:
        # No pickle: an archive from elsewhere must not run code when it is opened.
        with open(path, "rb") as file:
            # The data that users fetch are packed by LZMA.
            archive = read_npz(file, methods=_PACKED)
            parts = [_decode(_member(archive, path, name, (3, None, 32, 32))) for name in names]
            train, test = np.concatenate(parts[:5]), parts[5]
            train_labels = _member(archive, path, "labels_train", (len(train),))
            test_labels = _member(archive, path, "labels_test", (len(test),))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: expected a complete npz archive, but reading it failed ({error}); "
            "it is cut short or damaged: fetch it again"
        ) from error
    return (train, train_labels), (test, test_labels)


def _member(
    archive: Mapping[str, np.ndarray], path: Path, name: str, shape: tuple[int | None, ...]
) -> UInt8[np.ndarray, "..."]:
    """Reads one array of the archive and checks dtype and shape (None stands for any size)."""
    if name not in archive:
        raise DataError(f"{path}: expected an array {name!r}, found only {list(archive)}")
    array = archive[name]
    fits = array.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, array.shape, strict=True)
    )
    if array.dtype != np.uint8 or not fits:
        wanted = tuple("n" if size is None else size for size in shape)
        raise DataError(
            f"{path}: expected {name!r} to be uint8 {wanted}, found {array.dtype} {array.shape}"
        )
    return array


def _decode(delta: UInt8[np.ndarray, "3 n 32 32"]) -> UInt8[np.ndarray, "n 32 32 3"]:
    """Integrates the differences and adds green back.

    Sums modulo 256 undo differences modulo 256 exactly: uint8 wraps as it should.
    """
    rows = np.cumsum(delta, axis=2, dtype=np.uint8)
    green, red, blue = np.cumsum(rows, axis=3, dtype=np.uint8)
    return np.stack([red + green, green, blue + green], axis=-1)


TEST_SIZE = 360
PHOTOGRAPHS = ("china.jpg", "flower.jpg")

_PATCH, _STRIDE, _LEVELS = 32, 8, 16
_SEED = 0


def digits() -> Dataset:
    """Loads scikit-learn's digits in MNIST's frame: 1,437 + 360 images of 28 x 28.

    Two sets are embedded, so that everything runs without a network. ``digits`` is scikit-learn's
    copy of the UCI optical digits test set: 1,797 images of 8 x 8 pixels with values 0 to 16. Its
    split is fixed and stratified: 1,437 to train, 360 to test. The images are framed as MNIST
    frames its digits, so that LeNet-5 takes them unchanged: scaled to 0 to 255, resized bilinearly
    to 20 x 20 and centred in a black 28 x 28 image.
    """
    bunch = optional("sklearn.datasets", "data.load('digits')", "data").load_digits()
    selection = optional("sklearn.model_selection", "data.load('digits')", "data")
    train_images, test_images, train_labels, test_labels = selection.train_test_split(
        bunch.images,
        bunch.target.astype(np.int32),
        test_size=TEST_SIZE,
        stratify=bunch.target,
        random_state=_SEED,
    )
    return Dataset(
        "digits", frame(train_images), train_labels, frame(test_images), test_labels, num_classes=10
    )


def digits_ood() -> Dataset:
    """Makes patches of scikit-learn's photographs look like digits: 1,437 + 360 images.

    ``digits-ood`` is what a classifier of digits should not know: grey patches of the two
    photographs that scikit-learn bundles (a temple and a flower), of 32 x 32 pixels, averaged to 8
    x 8, stretched to the full range 0 to 16, and from there on treated exactly as the digits are.
    Resolution, frame, range and grey levels are those of the digits, so only the content tells the
    two apart. Its labels say which photograph. Training patches come from the left half of a
    photograph, test patches from the right half. It is a substitute, and ours: for comparable
    numbers use MNIST and Fashion-MNIST.
    """
    datasets = optional("sklearn.datasets", "data.load('digits-ood')", "data")
    sizes = {"train": len(datasets.load_digits().target) - TEST_SIZE, "test": TEST_SIZE}
    # A fixed seed: whoever names this data set has the same images.
    rng = np.random.default_rng(_SEED)
    parts = {}
    for half, (part, size) in enumerate(sizes.items()):
        patches, labels = [], []
        for label, photograph in enumerate(PHOTOGRAPHS):
            grey = datasets.load_sample_image(photograph).astype(np.float64).mean(-1)
            # Training and test patches come from different halves, so that none of them overlap.
            middle = grey.shape[1] // 2
            candidates = _patches(grey[:, middle:] if half else grey[:, :middle])
            count = (size + label) // len(PHOTOGRAPHS)  # the parts add up to an odd size too
            patches.append(candidates[rng.choice(len(candidates), count, replace=False)])
            labels.append(np.full(count, label, np.int32))
        order = rng.permutation(size)
        parts[part] = (frame(np.concatenate(patches)[order]), np.concatenate(labels)[order])
    return Dataset("digits-ood", *parts["train"], *parts["test"], num_classes=len(PHOTOGRAPHS))


def frame(images: np.ndarray) -> UInt8[np.ndarray, "n 28 28 1"]:
    """Brings ``[n, 8, 8]`` images of values 0 to 16 to MNIST's frame (uint8, 20 x 20 in 28 x 28).

    Returns uint8 ``[n, 28, 28, 1]``.
    """
    scaled = np.asarray(images, np.float32) * (255 / _LEVELS)
    # Host arithmetic in two small matrix products: the same bytes whatever device JAX runs on.
    resize = _bilinear(images.shape[1], 20)
    resized = np.clip(np.rint(resize @ scaled @ resize.T), 0, 255).astype(np.uint8)
    return np.pad(resized, ((0, 0), (4, 4), (4, 4)))[..., None]


def _bilinear(size: int, new_size: int) -> np.ndarray:
    """Computes the matrix of a bilinear resize, pixels centred at half integers.

    Its shape is ``[new_size, size]``.
    """
    # In NumPy: XLA rounds JAX's resize by how it compiles it, and some grey levels with it.
    scale = np.float32(size) / np.float32(new_size)
    centres = (np.arange(new_size, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    pixels = np.arange(size, dtype=np.float32)
    weights = np.maximum(np.float32(0), 1 - np.abs(centres[:, None] - pixels))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _patches(grey: np.ndarray) -> np.ndarray:
    """Cuts patches on a grid, as 8 x 8 block means in 17 levels, without flat ones (sky)."""
    windows = np.lib.stride_tricks.sliding_window_view(grey, (_PATCH, _PATCH))
    # Axes: patch, block row, pixel in it, block column, pixel in it.
    windows = windows[::_STRIDE, ::_STRIDE].reshape(-1, 8, _PATCH // 8, 8, _PATCH // 8)
    blocks = windows.mean((2, 4))
    low, high = blocks.min((1, 2), keepdims=True), blocks.max((1, 2), keepdims=True)
    # Stretched to the full range, a flat patch would be mere rounding noise.
    blocks, low, high = (a[(high - low)[:, 0, 0] >= _LEVELS] for a in (blocks, low, high))
    return np.rint((blocks - low) / (high - low) * _LEVELS)
