"""Memory of a library: a static plan by liveness.

An array of the workspace lives from the call that writes it to the last that reads it; a kernel's
scratch lives for its call. Arrays that live at the same time lie apart, others may lie in the same
place, and a result where the argument was that its kernel reads for the last time, if the kernel
allows that. The largest arrays are placed first, each as low as those that it meets allow (greedy
by size: Pisarchyk and Lee 2020, arXiv 2001.03288).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxeff_export.clib.kernels._kernels import CKernel
    from jaxeff_export.clib.kernels._program import KernelProgram


ALIGNMENT = 16
"""Bytes that every array of the workspace is aligned to, at least."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """Bytes that are needed for a while.

    Attributes:
        size: in bytes.
        first: the call from which they are needed.
        last: the call up to which they are needed.
    """

    size: int
    first: int
    last: int

    def meets(self, other: Piece) -> bool:
        """Tells whether both are needed at the same time."""
        return self.first <= other.last and other.first <= self.last


@dataclasses.dataclass(frozen=True)
class Memory:
    """Plan of a library's workspace.

    Attributes:
        arrays: the offset in the workspace of each array that lies there.
        scratch: per call the offsets of its kernel's scratch.
        size: size of the workspace, in bytes.
        live: the largest number of bytes that are needed at the same time, which no plan is below.
        alignment: alignment of the workspace, in bytes.
        by_call: the bytes that are needed at each call.
        owners: the array in whose place each array of the workspace lies, mostly its own.
        lives: when these places are needed, and their sizes.
    """

    arrays: Mapping[int, int]
    scratch: tuple[tuple[int, ...], ...]
    size: int
    live: int
    alignment: int
    by_call: tuple[int, ...]
    owners: Mapping[int, int]
    lives: Mapping[int, Piece]


def plan(
    program: KernelProgram, kernels: Mapping[str, CKernel], alignment: int = ALIGNMENT
) -> Memory:
    """Plans the workspace of a program.

    Args:
        program: the calls.
        kernels: what they call.
        alignment: alignment of the workspace, at least.
    """
    scratch = [kernels[call.kernel].scratch for call in program.calls]
    alignment = max([alignment, *(s.alignment for several in scratch for s in several)])
    owners = _owners(program, kernels)
    arrays = _lives(program, owners)
    pieces = [*arrays.values()]
    for step, several in enumerate(scratch):
        # Scratch is needed for its call alone: arrays of other calls may lie there.
        pieces += [Piece(s.size, step, step) for s in several]
    # With sizes that are multiples of the alignment, all offsets below are as well.
    pieces = [dataclasses.replace(p, size=_rounded(p.size, alignment)) for p in pieces]
    offsets = place(pieces)
    places = dict(zip(arrays, offsets, strict=False))
    rest = iter(offsets[len(arrays) :])
    ends = [p.size + offset for p, offset in zip(pieces, offsets, strict=True)]
    needed = tuple(
        sum(p.size for p in pieces if p.first <= t <= p.last) for t in range(len(program.calls))
    )
    return Memory(
        arrays={number: places[owner] for number, owner in owners.items()},
        scratch=tuple(tuple(next(rest) for _ in several) for several in scratch),
        size=max(ends, default=0),
        # At each call the sum of what is needed: no plan can do with less than the largest.
        live=max(needed, default=0),
        alignment=alignment,
        by_call=needed,
        owners=owners,
        lives=arrays,
    )


def place(pieces: Sequence[Piece]) -> list[int]:
    """Finds offsets at which no two pieces that meet overlap."""
    offsets = [0] * len(pieces)
    placed: list[int] = []
    # Largest first, then earliest: what is left over are gaps that small ones fit in.
    for i in sorted(range(len(pieces)), key=lambda i: (-pieces[i].size, pieces[i].first)):
        neighbours = [j for j in placed if pieces[j].meets(pieces[i])]
        # From the lowest neighbour upwards to the first gap that holds it. Neighbours may overlap
        # each other, hence the maximum.
        for j in sorted(neighbours, key=lambda j: offsets[j]):
            if offsets[i] + pieces[i].size <= offsets[j]:
                break
            offsets[i] = max(offsets[i], offsets[j] + pieces[j].size)
        placed.append(i)
    return offsets


def _owners(program: KernelProgram, kernels: Mapping[str, CKernel]) -> dict[int, int]:
    """Finds the array in whose place each array of the workspace lies, mostly its own."""
    elsewhere = {*program.operands, *program.inputs, *program.outputs}
    elsewhere.update(number for number, _ in program.constants)
    last = {n: step for step, call in enumerate(program.calls) for n in call.arguments}
    owners: dict[int, int] = {}
    for step, call in enumerate(program.calls):
        # Written before it is read: its first call is the one that makes it.
        for made in (*call.results, *call.arguments):
            if made not in elsewhere:
                owners.setdefault(made, made)
        for i in kernels[call.kernel].over:
            given, made = call.arguments[i], call.results[0]
            alone = call.arguments.count(given) == 1 and last[given] == step
            if given in owners and owners.get(made) == made and alone:
                owner = owners[given]
                if program.sizes[made] <= program.sizes[owner]:
                    owners[made] = owner
    return owners


def _lives(program: KernelProgram, owners: Mapping[int, int]) -> dict[int, Piece]:
    """Finds when the places of the workspace are needed: arrays neither given, bound nor results.

    Args:
        program: the calls.
        owners: the array in whose place each array lies.
    """
    lives: dict[int, Piece] = {}
    for step, call in enumerate(program.calls):
        for number in (*call.results, *call.arguments):
            if number in owners:
                owner = owners[number]
                first = lives[owner].first if owner in lives else step
                lives[owner] = Piece(program.sizes[owner], first, step)
    return lives


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
