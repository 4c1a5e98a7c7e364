"""The idx format of MNIST and Fashion-MNIST, plain or gzipped.

A file is two zero bytes, a type byte (8 is uint8), the number of dimensions, each dimension as a
big-endian uint32, then the values, last dimension fastest (http://yann.lecun.com/exdb/mnist).

Sharp edge: the number of images is that of the header, so a subset in idx form loads. A file that
holds more or fewer bytes than its header promises is refused.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from jaxeff.data._errors import DataError

_UINT8 = 0x08


def read_idx(path: Path, ndim: int) -> UInt8[np.ndarray, "..."]:
    """Reads a uint8 idx file.

    Args:
        path: The file; a name that ends in ``.gz`` is decompressed on the way.
        ndim: Dimensions it must have: 3 for images, 1 for labels.

    Returns:
        The values, uint8, with the shape that the header states.

    Raises:
        DataError: The file can't be read or decompressed, its magic number is another one, or its
            length is not what its header promises.
    """
    content = _read_bytes(path)
    magic = (_UINT8 << 8) + ndim
    header = 4 + 4 * ndim
    if len(content) < header:
        raise DataError(
            f"{path}: expected an idx header of {header} bytes (magic 0x{magic:08x}), "
            f"found {len(content)} bytes; fetch the file again"
        )
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        raise DataError(
            f"{path}: expected idx magic number 0x{magic:08x} (uint8, {ndim} dimension"
            f"{'s' if ndim > 1 else ''}), found 0x{found:08x}; is it another file renamed?"
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
            with gzip.open(path, "rb") as file:
                return file.read()
        return path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}: expected a complete gzip file, but decompressing it failed ({error}); "
            "it is cut short or damaged: fetch it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, but {error}") from error
