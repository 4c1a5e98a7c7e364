"""Calls of C functions, repeated and timed in C: a call from Python costs more than many of them.

A function takes pointers and sizes and returns 0 if all went well, as those of our libraries do.
"""

import ctypes
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxeff_export import resolve_target
from jaxeff_export.clib import CLibrary, run_tool
from jaxeff_export.targets import find_c_toolchain

from experiments.timing import Meter

LINE = 64  # bytes; what arrays are aligned to
_REPEAT = r"""
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <time.h>

typedef int (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t);

/* Seconds of so many calls; negative if one fails. */
double repeat(function f, const uintptr_t *a, long times)
{
    struct timespec begin, end;
    long i;
    int failed = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (i = 0; i < times; i++)
        failed |= f(a[0], a[1], a[2], a[3]);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (failed)
        return -1;
    return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}
"""


class Repeater:
    """Times C functions; a shared library of one function, built when it is made.

    Raises:
        ToolchainError: if there is no C compiler.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            (Path(home) / "repeat.c").write_text(_REPEAT)
            _link(["-O2", "repeat.c"], Path(home))
            self._repeat = ctypes.CDLL(f"{home}/linked.so").repeat
        self._repeat.restype = ctypes.c_double

    def meter(self, function: Any, *arguments: Any, keep: Any = None) -> Meter:
        """A meter of calls of a function, by its address or as ctypes has it.

        Args:
            function: what is called.
            arguments: pointers and sizes.
            keep: what has to live as long as the meter, as the arguments do.
        """
        address = ctypes.cast(function, ctypes.c_void_p)
        words = (ctypes.c_size_t * 4)(*map(_word, arguments))

        def meter(repeats: int) -> float:
            _ = arguments, keep
            seconds: float = self._repeat(address, words, ctypes.c_long(repeats))
            if seconds < 0:
                raise RuntimeError("a call of a C function failed")
            return seconds / repeats

        return meter


class Loaded:
    """A C library of this machine's, linked into a shared one and loaded.

    Args:
        library: it.
        inputs: the arguments of its calls.
    """

    def __init__(self, library: CLibrary, inputs: Sequence[Any]) -> None:
        self._home = tempfile.TemporaryDirectory()
        archive = ("-Wl,--whole-archive", f"lib{library.name}.a", "-Wl,--no-whole-archive")
        made = Path(self._home.name) / "linked.so"
        _link([*archive, "-lm", "-pthread"], library.folder, made)
        loaded = ctypes.CDLL(str(made))
        self.function = getattr(loaded, f"{library.name}_run")
        self._inputs = [aligned(np.asarray(x)) for x in inputs]
        outputs = [np.zeros(tuple(map(int, o.shape)), o.dtype) for o in library.outputs]
        self.outputs = [aligned(o) for o in outputs]
        self._workspace = aligned(np.zeros(max(1, library.sizes.workspace), np.uint8))

    def arguments(self) -> tuple[Any, ...]:
        """Of its function: inputs, outputs, workspace and its size."""
        addresses = [address(x) for x in self._inputs]
        sizes = address(self._workspace), self._workspace.nbytes
        return (_struct(addresses), _struct([address(o) for o in self.outputs]), *sizes)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy whose first element begins a line of the cache."""
    block = np.zeros(array.nbytes + LINE, np.uint8)
    begin = -block.ctypes.data % LINE
    copy = block[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def address(array: np.ndarray) -> ctypes.c_void_p:
    """Where an array lies; the caller keeps it."""
    return ctypes.c_void_p(array.ctypes.data)


def _struct(pointers: Sequence[ctypes.c_void_p]) -> Any:
    return (ctypes.c_void_p * len(pointers))(*pointers)


def _word(value: Any) -> int:
    return value if isinstance(value, int) else ctypes.cast(value, ctypes.c_void_p).value or 0


def _link(what: Sequence[str], folder: Path, made: Path | None = None) -> None:
    compiler = find_c_toolchain(resolve_target("host")).compiler
    run_tool([compiler, "-shared", "-fPIC", "-o", str(made or "linked.so"), *what], folder)
