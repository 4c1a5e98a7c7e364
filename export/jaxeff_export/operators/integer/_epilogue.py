"""Turns int32 sums into a layer's results while they are in registers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.operators.statements import StatementBuilder, cast, const, load, splat

LIMIT = 2.0**29  # what a shortcut may add, as `jaxeff.compression.integers` has it

MOST = 2**15  # before a multiplier, as `jaxeff.compression.integers` has it
RESULTS = {"codes": "uint8", "whole": "int32", "float": "float32", "sums": "int32"}
"""Dtypes of a layer's results."""


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """The operations on a vector of sums.

    Attributes:
        result: "codes", "whole", "float" or "sums".
        shortcut: "none", "codes" or "float".
        zero: zero point of the result's codes, `lower` and `upper` their ends.
        shortcut_zero: zero point of the shortcut's codes.
        finer: bits by which bias and shortcut are finer than products.
        bias: for each feature, whole vectors of them.
        scale: likewise; or a multiplier and the shifts before and after it.
        added: the shortcut.
        factor: like the scale; or a multiplier and the shift after it.
    """

    result: str
    shortcut: str
    zero: int
    lower: int
    upper: int
    shortcut_zero: int
    finer: int
    bias: tirx.Buffer
    scale: Sequence[tirx.Buffer] = ()
    added: tirx.Buffer | None = None
    factor: Sequence[tirx.Buffer] = ()

    @property
    def dtype(self) -> str:
        """Names the dtype of the result."""
        return RESULTS[self.result]

    @property
    def scale_dtype(self) -> str:
        """Names the dtype of scaled sums."""
        return "float32" if len(self.scale) == 1 else "int32"

    @property
    def wide_dtype(self) -> str:
        """Names the dtype of results before codes become bytes."""
        return "float32" if self.result == "float" else "int32"

    def value(self, sums: Expr, feature: Any, at: Any, lanes: int) -> Expr:
        """Computes the results of a vector of sums.

        Args:
            sums: int32.
            feature: the first of them, in vectors that are whole.
            at: index of the first of them in the result.
            lanes: number of lanes.
        """
        return self.narrowed(self.rounded(self.scaled_at(sums, feature, at, lanes), lanes), lanes)

    def scaled_at(self, sums: Expr, feature: Any, at: Any, lanes: int) -> Expr:
        """Scales sums of neighbouring features, with bias and shortcut, to units of the result."""
        return self.scaled(sums, feature, lambda buffer, lanes: load(buffer, at, lanes), lanes)

    def scaled(self, sums: Expr, feature: Any, added: Any, lanes: int, alone: bool = False) -> Expr:
        """Scales sums, with bias and shortcut, to units of the result; order is kept.

        Args:
            sums: int32.
            feature: the first of them, or the only one.
            added: takes as many of the shortcut's buffer, `added(buffer, lanes)`.
            lanes: number of lanes.
            alone: whether they are many pixels of one feature.
        """

        def of(buffer: tirx.Buffer) -> Expr:
            return splat(load(buffer, feature), lanes) if alone else load(buffer, feature, lanes)

        # Bias and shortcut have more bits than products: sums are brought to their units first.
        if self.finer:
            sums = tirx.shift_left(sums, const(self.finer, "int32", lanes))
        total = sums + of(self.bias)
        if self.added is not None:
            factor = [of(buffer) for buffer in self.factor]
            total = total + self._units(added(self.added, lanes), factor, lanes)
        if self.result == "sums":
            return total
        if len(self.scale) > 1:
            multiplier, before, after = (of(buffer) for buffer in self.scale)
            return _multiplied(total, multiplier, before, after, lanes)
        return cast(total, "float32", lanes) * of(self.scale[0])

    def rounded(self, y: Expr, lanes: int) -> Expr:
        """Rounds scaled sums to codes or whole numbers in 32 bits, where the result is such."""
        if self.result in ("float", "sums"):
            return y
        if len(self.scale) > 1:
            return _clamped(y, self.lower - self.zero, self.upper - self.zero, lanes) + const(
                self.zero, "int32", lanes
            )
        # Clamped as floats: casting a float beyond int32 is undefined.
        low, high = (float(end - self.zero) for end in (self.lower, self.upper))
        steps = cast(_clamped(tirx.nearbyint(y), low, high, lanes), "int32", lanes)
        return steps + const(self.zero, "int32", lanes)

    def narrowed(self, wide: Expr, lanes: int) -> Expr:
        """Converts codes to bytes."""
        return cast(wide, self.dtype, lanes) if self.result == "codes" else wide

    def _units(self, value: Expr, factor: Sequence[Expr], lanes: int) -> Expr:
        if self.shortcut == "codes":
            whole = cast(value, "int32", lanes) - const(self.shortcut_zero, "int32", lanes)
            if len(factor) > 1:
                # A code times a multiplier of at most 2^21: below 2^29, so rounding still fits.
                return _shifted(whole * factor[0], factor[1], lanes)
            value = cast(whole, "float32", lanes)
        # Limited to 2^29, so that it can't overflow int32 beside the products and the bias.
        units = tirx.nearbyint(value * factor[0])
        return cast(_clamped(units, -LIMIT, LIMIT, lanes), "int32", lanes)

    def write(
        self, code: StatementBuilder, y: tirx.Buffer, taken: Taken, at: Any, lanes: int
    ) -> None:
        """Writes a vector of results, whose last lanes may be unused.

        Args:
            code: the code under construction, which statements are appended to.
            y: the result.
            taken: the sums, of one place or of several whose largest is taken.
            at: index of the first of them in the result.
            lanes: number of lanes of a vector.
        """
        # A shortcut must not be read beyond its last feature: with one, a vector that isn't full is
        # written lane by lane.
        if taken.used >= lanes or self.added is None:
            scaled = [
                self.scaled_at(total, taken.feature, there, lanes)
                for total, there in zip(taken.sums, taken.places, strict=True)
            ]
            # Rounding keeps the order, so that the largest is found first and only one is rounded.
            best = functools.reduce(tirx.max, scaled)
            value = self.narrowed(self.rounded(best, lanes), lanes)
            if taken.used >= lanes:
                code.store(y, at, value, lanes)
                return
            # What is computed for lanes beyond the last feature is of no use.
            made = code.vector(value, lanes, self.dtype, "made")
            done = 0
            while done < taken.used:  # powers of two, which are stored at once
                many = 1 << ((taken.used - done).bit_length() - 1)
                picked = [tirx.const(done + i, "int32") for i in range(many)]
                code.store(y, at + done, tirx.Shuffle([made.get()], picked), many)
                done += many
            return
        kept = [code.vector(total, lanes, "int32", "kept") for total in taken.sums]
        for lane in range(taken.used):
            scaled = [
                self.scaled_at(load(one.buffer, lane), taken.feature + lane, there + lane, 1)
                for one, there in zip(kept, taken.places, strict=True)
            ]
            best = functools.reduce(tirx.max, scaled)
            code.store(y, at + lane, self.narrowed(self.rounded(best, 1), 1))


@dataclasses.dataclass(frozen=True)
class Taken:
    """Sums of a vector of features, at the places of a window.

    Attributes:
        sums: sums of each place.
        places: index of each without a window, for a shortcut.
        feature: the first, in vectors that are whole.
        used: number of features.
    """

    sums: list[Expr]
    places: list[Any]
    feature: Any
    used: int


def epilogue_of(attributes: Mapping[str, Any], *operands: tirx.Buffer) -> Epilogue:
    """Reads an epilogue from a composite's attributes and its operands after the weights."""
    bias, *rest = operands
    is_fixed = attributes.get("scales") == "fixed"
    count = {"sums": 0, "codes": 3 if is_fixed else 1}.get(attributes["result"], 1)
    scale, (added, *factor) = rest[:count], rest[count:] or (None,)
    return Epilogue(
        attributes["result"],
        attributes["shortcut"],
        attributes["zero"],
        attributes["lower"],
        attributes["upper"],
        attributes["shortcut_zero"],
        attributes.get("finer", 0),
        bias,
        scale,
        added,
        factor,
    )


def _clamped(x: Expr, low: float, high: float, lanes: int) -> Expr:
    dtype = "float32" if isinstance(low, float) else "int32"
    x = tirx.max(x, const(low, dtype, lanes))
    return tirx.min(x, const(high, dtype, lanes))


def _multiplied(sums: Expr, multiplier: Expr, before: Expr, after: Expr, lanes: int) -> Expr:
    """Scales sums in fixed point, bit for bit as `jaxeff.compression.integers` does."""
    zero, one = const(0, "int32", lanes), const(1, "int32", lanes)
    # The uppermost bit that is shifted out rounds half up; adding half first could overflow.
    # |short| <= 2^15 times 16 bits stays within int32.
    half = tirx.shift_right(sums, tirx.max(before - one, zero)) & tirx.min(before, one)
    short = _clamped(tirx.shift_right(sums, before) + half, -MOST, MOST, lanes)
    return _shifted(short * multiplier, after, lanes)


def _shifted(product: Expr, after: Expr, lanes: int) -> Expr:
    one = const(1, "int32", lanes)
    # 2^(after - 1), and 0 where nothing is shifted out.
    half = tirx.shift_right(tirx.shift_left(one, after), one)
    return tirx.shift_right(product + half, after)
