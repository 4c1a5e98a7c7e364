"""Flatbuffers of strangers: tables, vectors and texts, each looked for within the file.

A flatbuffer is offsets that point at offsets. None is believed before it is compared with the
length of the file; and as many tables may point at one vector, all that is read is added up, so
that a small file can't ask for more work than a file of its size may.

References:
    FlatBuffers, "Internals": a table's first four bytes lead back to its list of fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

_READINGS = 16
"""How often each byte of a file may be read, on average, as a part of its structure."""
_LEAST = 1 << 20


class FlatbufferError(ValueError):
    """An offset or a length that can't be, of a damaged file or a forged one."""


class Flatbuffer:
    """The bytes of a file.

    Attributes:
        content: They.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._left = max(_LEAST, _READINGS * len(content))

    def root(self) -> FlatTable:
        """Finds the outermost table."""
        return FlatTable(self, self.offset(0))

    def number(self, kind: str, at: int) -> Any:
        """Reads a number, `kind` being one of the letters of `struct`."""
        size = struct.calcsize(f"<{kind}")
        self.require(at, size)
        return struct.unpack_from(f"<{kind}", self.content, at)[0]

    def offset(self, at: int) -> int:
        """Follows an offset; all of them lead forwards, so none leads in a circle."""
        distance = self.number("I", at)
        if distance == 0:
            raise FlatbufferError(f"byte {at} points at itself")
        self.require(at + distance, 4)
        return int(at + distance)

    def span(self, at: int, width: int) -> tuple[int, int]:
        """Returns where the elements of a vector begin, and how many there are."""
        count = self.number("I", at)
        self.require(at + 4, count * width)
        return at + 4, count

    def require(self, at: int, size: int) -> None:
        """Checks that there are bytes in a place, and counts them as read."""
        if at < 0 or at + size > len(self.content):
            raise FlatbufferError(
                f"bytes {at} to {at + size} are asked for, and there are {len(self.content)}"
            )

    def count(self, size: int) -> None:
        """Adds bytes to those that were read."""
        self._left -= size
        if self._left < 0:
            raise FlatbufferError(
                f"its tables read more than {_READINGS} times what the file has: they share parts"
            )


class FlatTable:
    """A table: fields by their number in the schema, each there or not."""

    def __init__(self, file: Flatbuffer, at: int) -> None:
        self.file, self._at = file, at
        self._fields = at - file.number("i", at)
        self._size = file.number("H", self._fields)
        file.require(self._fields, max(self._size, 4))
        file.count(self._size)

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        distance = self.file.number("H", self._fields + entry)
        return self._at + distance if distance else None

    def number(self, field: int, kind: str, default: Any = 0) -> Any:
        """Reads a number; what the schema has as its default where it isn't there."""
        place = self._place(field)
        return default if place is None else self.file.number(kind, place)

    def table(self, field: int) -> FlatTable | None:
        """Reads a table."""
        place = self._place(field)
        return None if place is None else FlatTable(self.file, self.file.offset(place))

    def tables(self, field: int) -> Iterator[FlatTable]:
        """Reads a vector of tables."""
        place = self._place(field)
        if place is None:
            return
        start, count = self.file.span(self.file.offset(place), 4)
        self.file.count(4 * count)
        for i in range(count):
            yield FlatTable(self.file, self.file.offset(start + 4 * i))

    def span(self, field: int, width: int = 1) -> tuple[int, int]:
        """Returns where the elements of a vector begin and how many there are; zero if none."""
        place = self._place(field)
        return (0, 0) if place is None else self.file.span(self.file.offset(place), width)

    def numbers(self, field: int, kind: str) -> np.ndarray:
        """Reads a vector of numbers, `kind` being a dtype of NumPy's such as "i4"."""
        dtype = np.dtype(f"<{kind}")
        start, count = self.span(field, dtype.itemsize)
        self.file.count(count * dtype.itemsize)
        return np.frombuffer(self.file.content, dtype, count, start)

    def text(self, field: int) -> str:
        """Reads a text; an empty one where it isn't there."""
        start, count = self.span(field)
        self.file.count(count)
        return self.file.content[start : start + count].decode(errors="replace")
