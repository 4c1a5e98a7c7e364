"""Tensors as imperative kernels see them: read and written through an index map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.scalar import dtype_of, load, store

Index: TypeAlias = "Expr | int"


class View:
    """A tensor as a kernel sees it: ``view[i, j]`` reads, ``view[i, j] = x`` writes.

    Scalars are as scopes hold them.
    """

    def __init__(
        self,
        write: Callable[[tirx.Stmt], None],
        buffer: tirx.Buffer,
        place: Callable[..., Any] | None = None,
    ):
        self.dtype = str(buffer.dtype)
        self._write = write
        self._buffer = buffer
        self._place = place or (lambda *index: index)

    def __getitem__(self, index: Any) -> Expr:
        return load(self.get(index if isinstance(index, tuple) else (index,)))

    def __setitem__(self, index: Any, value: Expr) -> None:
        self.put(store(value, self.dtype), index if isinstance(index, tuple) else (index,))

    def get(self, index: Sequence[Index]) -> Expr:
        """Reads an element as the tensor holds it."""
        return tirx.BufferLoad(self._buffer, self._at(index))

    def put(self, element: Expr, index: Sequence[Index]) -> None:
        """Writes an element as the tensor holds it."""
        self._write(tirx.BufferStore(self._buffer, element, self._at(index)))

    def map(self, place: Callable[..., Any]) -> View:
        """Views this tensor through ``place``, which maps an index of the result to one of this."""
        inner = self._place
        return View(self._write, self._buffer, lambda *index: inner(*place(*index)))

    def at(self, *leading: Index) -> View:
        """Views the part of this tensor at a leading index."""
        return self.map(lambda *index: (*leading, *index))

    def shifted(self, *offsets: Index) -> View:
        """Views this tensor from a later first element."""
        return self.map(lambda *index: tuple(i + k for i, k in zip(index, offsets, strict=True)))

    @property
    def T(self) -> View:
        """Views a matrix transposed."""
        return self.map(lambda i, j: (j, i))

    def _at(self, index: Sequence[Index]) -> list[Expr]:
        return [int64(i) for i in self._place(*index)]


class Splat(View):
    """A tensor whose elements are all one constant, which needs no memory."""

    def __init__(self, element: Expr):
        self.dtype = dtype_of(element)
        self._element = element

    def get(self, index: Sequence[Index]) -> Expr:
        """Reads an element."""
        return self._element

    def map(self, place: Callable[..., Any]) -> View:
        """Views this tensor in any way: it is the same."""
        return self


def int64(index: Index) -> Expr:
    """Returns an integer as an expression of the dtype of indices."""
    return tirx.const(index, "int64") if isinstance(index, int) else index


def declare(shape: Sequence[Index], dtype: str, name: str, scope: str = "global") -> tirx.Buffer:
    """Declares a buffer without an offset, which ``te.extern`` would make a parameter."""
    return tirx.decl_buffer([int64(n) for n in shape], dtype, name, scope=scope)
