"""CIFAR-10: the standard binary batches, or a losslessly delta-coded ``cifar10.npz``.

Binary batch: 10,000 records of 3,073 bytes, one label and then the red, green and blue planes of
32 x 32 bytes, row by row (https://www.cs.toronto.edu/~kriz/cifar.html). The number of records is
fixed, since a file that was cut between two records would otherwise look whole.

Archive: ``delta_batch_1`` to ``delta_batch_5`` and ``delta_test``, uint8 ``[3, 10000, 32, 32]``:
differences (modulo 256) along rows and columns of the planes green, red - green and blue - green;
``labels_train`` and ``labels_test``, uint8. It is half the size of the batches.
"""

import zipfile
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from jaxeff.data._errors import DataError

RECORDS = 10_000
TRAIN_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_BATCH = "test_batch.bin"
ARCHIVE = "cifar10.npz"

_RECORD_BYTES = 1 + 3 * 32 * 32

Labelled = tuple[UInt8[np.ndarray, "n 32 32 3"], UInt8[np.ndarray, " n"]]


def read_batch(path: Path, records: int = RECORDS) -> Labelled:
    """Reads one binary batch.

    Args:
        path: The ``.bin`` file.
        records: Number of images it must hold.

    Returns:
        Images, uint8 ``[records, 32, 32, 3]``, and labels, uint8 ``[records]``.

    Raises:
        DataError: The file can't be read or has another size.
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


def read_archive(path: Path) -> tuple[Labelled, Labelled]:
    """Reads the delta-coded archive.

    Args:
        path: The ``.npz`` file.

    Returns:
        Training and test set, each images uint8 ``[n, 32, 32, 3]`` and labels uint8 ``[n]``.

    Raises:
        DataError: The archive is damaged, or an array is missing or has another shape.
    """
    names = [f"delta_batch_{i}" for i in range(1, 6)] + ["delta_test"]
    try:
        # Opened here, since numpy leaves its own file open when the archive is damaged.
        # No pickle: an archive from elsewhere must not run code when it is opened.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            parts = [_decode(_member(archive, path, name, (3, None, 32, 32))) for name in names]
            train, test = np.concatenate(parts[:5]), parts[5]
            train_labels = _member(archive, path, "labels_train", (len(train),))
            test_labels = _member(archive, path, "labels_test", (len(test),))
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: expected a complete npz archive, but reading it failed ({error}); "
            "it is cut short or damaged: fetch it again"
        ) from error
    return (train, train_labels), (test, test_labels)


def _member(
    archive: np.lib.npyio.NpzFile, path: Path, name: str, shape: tuple[int | None, ...]
) -> UInt8[np.ndarray, "..."]:
    """Reads one array of the archive and checks dtype and shape (None stands for any size)."""
    if name not in archive:
        raise DataError(f"{path}: expected an array {name!r}, found only {archive.files}")
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
