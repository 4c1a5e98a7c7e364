"""Looks through a GGUF file's header before it is read: whether all it announces is there.

The reader of the package `gguf` believes what a header says: of a damaged or hostile one it would
make lists of 2^60 numbers that no file has. The layout is that of the format's specification.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of numbers
_STRING, _ARRAY = 8, 9
_MOST_AXES = 8
_LEAST = 12  # bytes of a key's or tensor's entry, at least: what a count promises can be refused


def check_header(file: BinaryIO) -> None:
    """Walks through a header.

    Raises:
        ValueError: It is of another format, or announces more than the file holds.
    """
    if file.read(4) != b"GGUF":
        raise ValueError("it doesn't begin with GGUF")
    version = file.read(4)
    # Files of big-endian machines have the small number at the other end.
    walk = _Walk(file, ">" if version[:1] == b"\0" else "<")
    tensors, keys = walk.number("Q"), walk.number("Q")
    walk.require((tensors + keys) * _LEAST)
    for _ in range(keys):
        walk.text()
        walk.value(walk.number("I"))
    for _ in range(tensors):
        walk.text()
        axes = walk.number("I")
        if axes > _MOST_AXES:
            raise ValueError(f"a tensor has {axes} axes")
        # Sizes, the format, and where the data begin; the reader checks them against the file.
        walk.skip(8 * axes + 4 + 8)


class _Walk:
    """A file that is read from front to back, and never past its end."""

    def __init__(self, file: BinaryIO, order: str) -> None:
        place = file.tell()
        self.left = file.seek(0, 2) - place
        file.seek(place)
        self.file, self.order = file, order

    def require(self, size: int) -> None:
        if size > self.left:
            raise ValueError(f"it announces {size} bytes where {self.left} are left")

    def number(self, kind: str) -> int:
        size = struct.calcsize(kind)
        self.require(size)
        self.left -= size
        return int(struct.unpack(self.order + kind, self.file.read(size))[0])

    def skip(self, size: int) -> None:
        self.require(size)
        self.left -= size
        self.file.seek(size, 1)

    def text(self) -> None:
        self.skip(self.number("Q"))

    def value(self, kind: int) -> None:
        if kind == _ARRAY:
            self.array()
        elif kind == _STRING:
            self.text()
        else:
            self.skip(self.size(kind))

    def array(self) -> None:
        kind, count = self.number("I"), self.number("Q")
        if kind == _STRING:
            self.require(8 * count)
            for _ in range(count):
                self.text()
        else:
            # Lists of lists have no kind here: no model's file has them.
            self.skip(count * self.size(kind))

    def size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise ValueError(f"a value is of the unknown kind {kind}")
        return _SIZES[kind]
