"""The lowering of products with packed weights: which kernel, its tile, and how operands lie."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.target import Target

from jaxeff_export.operators.integer._contraction import Sharing, contraction
from jaxeff_export.operators.integer._dots import CHUNK, Dot, dot_of, nibbles_of
from jaxeff_export.operators.integer._geometry import DotTile, Geometry
from jaxeff_export.operators.integer.packed._kernels import FloatBuilder, NibbleBuilder, Unscaled
from jaxeff_export.operators.integer.packed._layout import (
    CODES,
    laid_steps,
    laid_weights,
    shape_of,
)
from jaxeff_export.operators.integer.packed._written_out import written_out

PACKED = "jaxeff.q_packed"
_STEPS_SHARED = 12_000


def packed_products(target: Target, cores: int, any_batch: bool) -> Any:
    """Returns the lowering of products with packed weights for a target."""
    nibbles, plain = nibbles_of(target), dot_of(target)
    written = WrittenKernels("q_packed")

    def lower(
        bb: relax.BlockBuilder,
        x: relax.Expr,
        w: relax.Expr,
        *steps: relax.Expr,
        weight_bits: int,
        group: int,
    ) -> relax.Expr:
        (rows, depth), columns = shape_of(x), shape_of(w)[1]
        codes = str(x.ty.dtype) == "int8"
        chunk = _chunk(depth, group, codes, weight_bits)
        # Other sizes of groups are rare: loops that the scheduler tiles do for them.
        if not chunk:
            return written_out(bb, x, w, *steps, group=group)
        dot = nibbles.dot if codes else float_dot(plain, weight_bits)
        geometry = Geometry.dense(rows, depth, columns)
        result = "sums" if codes else "float"
        # A sum takes a register for the part of its group, too.
        tile = packed_tile(geometry, dot.lanes, dot.registers, 2)
        make: Any = FloatBuilder
        if codes:
            make = functools.partial(NibbleBuilder, nibbles)
        operands = [x, laid_weights(bb, w, geometry, dot, chunk, codes)]
        operands += [laid_steps(bb, each, geometry, dot.lanes) for each in steps]
        if not codes and not steps:
            raise ValueError("products of floats have steps")
        batch = tirx.Var("batch", "int64")
        geometry = geometry.of_any(batch) if any_batch else geometry
        if any_batch:
            tile = packed_tile(geometry, dot.lanes, dot.registers, 2)
        sizes: list[Any] = [(shape_of(o), str(o.ty.dtype)) for o in operands]
        if any_batch:
            sizes[0] = ((batch, depth), sizes[0][1])
        shape = (batch if any_batch else rows, columns)
        build = functools.partial(make, group, chunk)
        # A batch that varies is a variable of its own, so that no two kernels are the same.
        key = None if any_batch else (rows, depth, columns, weight_bits, group, str(sizes))
        name = written.name_of(
            bb,
            key,
            lambda: product_kernel(geometry, dot, result, sizes, shape, cores, tile, build),
        )
        kind = relax.TensorType((rows, columns), "int32" if codes else "float32")
        return bb.emit(relax.call_tir(name, relax.Tuple(operands), kind))

    return lower


class WrittenKernels:
    """The kernels that modules have been given.

    A decoder has hundreds of products of a few shapes, and a kernel takes a tenth of a second to
    write, and as long to be compared with those that a module has.

    Args:
        hint: what kernels are called, but for a number.
    """

    def __init__(self, hint: str):
        self._hint = hint
        # Each with its module's builder, which stays alive that way: another can't have its number.
        self._written: dict[Any, tuple[relax.BlockBuilder, relax.GlobalVar]] = {}

    def name_of(
        self, bb: relax.BlockBuilder, key: Any, write: Callable[[], tirx.PrimFunc]
    ) -> relax.GlobalVar:
        """Returns a kernel's name in a module, where it is written at first.

        Args:
            bb: builder of the module.
            key: what two kernels that are the same have in common; None for one of its own.
            write: writes the kernel.
        """
        if key is None:
            return bb.add_func(write(), self._hint)
        if (id(bb), key) not in self._written:
            self._written[id(bb), key] = bb, bb.add_func(write(), self._hint)
        return self._written[id(bb), key][1]


def product_kernel(
    geometry: Geometry,
    dot: Dot,
    result: str,
    sizes: Sequence[tuple[Any, str]],
    shape: tuple[Any, int],
    cores: int,
    tile: DotTile,
    build: Any,
) -> tirx.PrimFunc:
    """Writes a kernel whose sums leave as they are.

    Args:
        geometry: the product's.
        dot: what multiplies.
        result: "sums" or "float".
        sizes: shape and dtype of every operand.
        shape: that of the result.
        cores: cores that share rows, where there is enough to do.
        tile: rows and vectors that are computed together.
        build: the builder's class, without what all builders are told.
    """
    sharing = Sharing(cores, _STEPS_SHARED * dot.lanes * 4)
    return contraction(
        geometry, dot, {}, lambda _, *rest: Unscaled.of(result, *rest), sizes, shape, sharing,
        tile, build,
    )  # fmt: skip


def float_dot(dot: Dot, bits: int) -> Dot:
    """Describes products of codes by floats in vectors of a processor's length."""
    group = CODES if bits <= 4 else 1
    lanes = max(4, dot.lanes)
    return dataclasses.replace(
        dot, name="codes", lanes=lanes, group=group, data="float32", offset=0
    )


def packed_tile(geometry: Geometry, lanes: int, registers: int, sums: int) -> DotTile:
    """Chooses a tile of rows and vectors.

    Args:
        geometry: the product's.
        lanes: outputs in a vector.
        registers: for sums and operands.
        sums: registers that a sum takes.
    """
    across = -(-geometry.per_group // lanes)
    # Four are for unpacked weights and an input.
    room = max(1, (registers - 4) // sums)
    rows = min(geometry.walked[1], 4, room)
    # A rest of unknown length is walked in tiles of halving widths.
    if geometry.examples is not None and rows == 3:
        rows = 2
    return DotTile(1, rows, max(1, min(across, room // rows, 8)))


def _chunk(depth: int, group: int, codes: bool, bits: int) -> int:
    """Chooses how many codes a turn of a kernel takes; none if there is no kernel."""
    if codes and bits > 4:
        return 0
    # Floats have no part that could overflow: a dword at a time keeps the loop's body short.
    most = CHUNK if codes else CODES
    if group >= depth:
        return most
    return next((n for n in (32, 16, 8) if n <= most and group % n == 0), 0)
