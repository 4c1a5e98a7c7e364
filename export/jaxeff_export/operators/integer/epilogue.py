"""From int32 sums to what a layer returns, while they are in registers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.tirx import Expr

from .code import Code, cast, const, load

LIMIT = 2.0**29  # what a shortcut may add, as `jaxeff.compression.integers.operators` has it

_RESULTS = {"codes": "uint8", "float": "float32", "sums": "int32"}


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """What is done to a vector of sums.

    Attributes:
        result: "codes", "float" or "sums".
        shortcut: "none", "codes" or "float".
        zero: of the result's codes, `lower` and `upper` their ends.
        shortcut_zero: of the shortcut's codes.
        bias: for each feature, whole vectors of them; so are `scale` and `factor`.
        added: the shortcut.
    """

    result: str
    shortcut: str
    zero: int
    lower: int
    upper: int
    shortcut_zero: int
    bias: tirx.Buffer
    scale: tirx.Buffer | None = None
    added: tirx.Buffer | None = None
    factor: tirx.Buffer | None = None

    @property
    def dtype(self) -> str:
        """Of the result."""
        return _RESULTS[self.result]

    def value(self, sums: Expr, feature: Any, at: Any, lanes: int) -> Expr:
        """The results of a vector of sums.

        Args:
            sums: int32.
            feature: the first of them, in vectors that are whole.
            at: where they go in the result.
            lanes: how many.
        """
        total = sums + load(self.bias, feature, lanes)
        if self.added is not None:
            total = total + self._units(feature, at, lanes)
        if self.result == "sums":
            return total
        assert self.scale is not None
        y = cast(total, "float32", lanes) * load(self.scale, feature, lanes)
        if self.result == "float":
            return y
        low, high = (float(end - self.zero) for end in (self.lower, self.upper))
        steps = cast(_clamped(tirx.nearbyint(y), low, high, lanes), "int32", lanes)
        return cast(steps + const(self.zero, "int32", lanes), "uint8", lanes)

    def _units(self, feature: Any, at: Any, lanes: int) -> Expr:
        assert self.added is not None and self.factor is not None
        value = load(self.added, at, lanes)
        if self.shortcut == "codes":
            whole = cast(value, "int32", lanes) - const(self.shortcut_zero, "int32", lanes)
            value = cast(whole, "float32", lanes)
        units = tirx.nearbyint(value * load(self.factor, feature, lanes))
        return cast(_clamped(units, -LIMIT, LIMIT, lanes), "int32", lanes)

    def write(
        self, code: Code, y: tirx.Buffer, sums: Expr, feature: Any, at: Any, lanes: int, used: int
    ) -> None:
        """Writes a vector of results, of which the last may be of no use."""
        if used >= lanes:
            code.store(y, at, self.value(sums, feature, at, lanes), lanes)
            return
        if self.added is None:  # what is computed for lanes beyond the last feature is of no use
            made = code.vector(self.value(sums, feature, at, lanes), lanes, self.dtype, "made")
            for lane in range(used):
                code.store(y, at + lane, tirx.Shuffle([made.get()], [tirx.const(lane, "int32")]))
            return
        kept = code.vector(sums, lanes, "int32", "kept")
        for lane in range(used):
            one = load(kept.buffer, lane)
            code.store(y, at + lane, self.value(one, feature + lane, at + lane, 1))


def epilogue_of(attributes: Mapping[str, Any], *operands: tirx.Buffer) -> Epilogue:
    """The epilogue of a composite's attributes, and its operands after the weights."""
    names = ("result", "shortcut", "zero", "lower", "upper", "shortcut_zero")
    bias, *rest = operands
    scale = rest.pop(0) if attributes["result"] != "sums" else None
    added, factor = rest if rest else (None, None)
    return Epilogue(*(attributes[name] for name in names), bias, scale, added, factor)


def _clamped(x: Expr, low: float, high: float, lanes: int) -> Expr:
    x = tirx.max(x, const(low, "float32", lanes))
    return tirx.min(x, const(high, "float32", lanes))
