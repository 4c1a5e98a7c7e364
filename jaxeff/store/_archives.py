"""Archives from elsewhere, read without inflating more than such a file may hold.

A zip file, as npz and PyTorch's files are, may inflate to a thousand times its size. What its
directory announces is added up before anything is inflated, and zlib gives no more than is
announced. Whoever trusts a file reads it without a budget: `dict(numpy.load(path))`.

```python
import numpy as np

from jaxeff.store import read_npz

np.savez_compressed("weights.npz", w=np.ones((2, 3)), b=np.zeros(3))
with open("weights.npz", "rb") as file:
    arrays = read_npz(file, {"w"})
assert arrays["w"].shape == (2, 3)
```
"""

import math
import os
import zipfile
from collections.abc import Collection, Iterable
from typing import BinaryIO

import numpy as np

_ROOM, _RATIO = 1 << 28, 64
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class InflationError(ValueError):
    """A file would take more memory than one of its size may."""


def max_inflated_size(size: int) -> int:
    """Limits the bytes that a file of `size` bytes may be inflated to.

    Codes of one bit take a byte each in memory, eight times their size in the file. Any computer
    has room for small files: 256 MiB, and 64 times the size of larger ones.

    ```python
    from jaxeff.store import max_inflated_size

    assert max_inflated_size(5 << 20) == 64 * (5 << 20)
    ```
    """
    return max(_ROOM, _RATIO * size)


def require_inflatable(sizes: Iterable[int], size: int, way_out: str) -> None:
    """Refuses a file of `size` bytes whose parts take more memory than such a file may.

    ```python
    from jaxeff.store import InflationError, require_inflatable

    try:
        require_inflatable([200 << 20, 300 << 20], 5 << 20, "read it by NumPy")
    except InflationError as error:
        assert "read it by NumPy" in str(error)
    ```

    Args:
      sizes: Bytes of its parts in memory, as it announces them.
      size: Bytes of the file.
      way_out: What a user does who trusts it.

    Raises:
      InflationError: With the size and the budget.
    """
    total, most = sum(sizes), max_inflated_size(size)
    if total > most:
        raise InflationError(
            f"inflates to {total:,} bytes, more than the {most:,} that a file of {size:,} may: "
            f"256 MiB, or 64 times its size. If you trust it, {way_out}"
        )


_PARTLY = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
"""Ways to compress of which reading a part inflates no more than that part."""


def require_member(
    archive: zipfile.ZipFile, name: str, methods: Collection[int] = _PARTLY
) -> zipfile.ZipInfo:
    """Finds a member of a zip file, if it is compressed in a way that is allowed.

    ```python
    import zipfile
    from jaxeff.store import require_member

    with zipfile.ZipFile("notes.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("notes.txt", "whole")
    with zipfile.ZipFile("notes.zip") as archive:
        assert require_member(archive, "notes.txt").file_size == 5
    ```

    Raises:
      ValueError: There is none, or it is compressed in another way.
    """
    try:
        member = archive.getinfo(name)
    except KeyError:
        raise ValueError(f"it has no {name}") from None
    # Other methods inflate whole blocks, however little is read of them.
    if member.compress_type not in methods:
        raise ValueError(f"its {name} is compressed in another way than deflated")
    return member


def read_member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Reads the content of a zip file's member, of at most `most` bytes.

    ```python
    import zipfile
    from jaxeff.store import read_member

    with zipfile.ZipFile("notes.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("notes.txt", "whole")
    with zipfile.ZipFile("notes.zip") as archive:
        assert read_member(archive, "notes.txt", most=100) == b"whole"
    ```
    """
    with archive.open(require_member(archive, name)) as member:
        # One byte more than allowed tells too large a member without inflating the rest of it.
        content = member.read(most + 1)
    if len(content) > most:
        raise ValueError(
            f"its {name} inflates to more than {most} bytes, which nothing in it needs"
        )
    return content


def read_npz(
    file: BinaryIO, names: Collection[str] | None = None, methods: Collection[int] = _PARTLY
) -> dict[str, np.ndarray]:
    """Reads the arrays of an npz file; nothing in it is executed.

    Args:
      file: The file, opened.
      names: Names of arrays to read, as far as they are there; None reads all.
      methods: Ways to compress that are allowed, as `zipfile` numbers them.

    Raises:
      InflationError: They would take more memory than a file of this size may.
      ValueError: It is no npz file, or damaged.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            members = {member.removesuffix(".npy"): member for member in archive.namelist()}
            chosen = members if names is None else {n: m for n, m in members.items() if n in names}
            infos = [require_member(archive, m, methods) for m in chosen.values()]
            require_inflatable(
                (info.file_size for info in infos), size, "hand over dict(numpy.load(path))"
            )
            return {name: _array(archive, member) for name, member in chosen.items()}
    except ValueError:
        raise
    except Exception as error:  # at a zip file that is none, nearly any
        raise ValueError(f"it is no readable npz file ({error})") from error


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Reads one array, whose header promises no more than is there."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"its {name} has a header of version {version}, with no numbers")
        shape, _, dtype = _HEADERS[version](file)
    # NumPy takes the memory first, and reads then.
    announced = archive.getinfo(name).file_size
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize > announced:
        raise ValueError(f"its {name} promises more than the {announced} bytes it has")
    with archive.open(name) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
