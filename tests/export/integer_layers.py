"""Integer layers for tests: many of them in one module, and what NumPy makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from jaxeff_export.operators.integer import integer_operators
from tvm import relax


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer: a composite, its operands and attributes."""

    name: str
    arrays: tuple[np.ndarray, ...]
    attributes: Mapping[str, Any]

    def expected(self) -> np.ndarray:
        """Sums, in NumPy's integers, and what becomes of them."""
        x, w, bias, *rest = self.arrays
        at = self.attributes
        sums = _dense(x, w) if self.name == "q_dense" else _conv2d(x, w, at)
        total = sums * 2 ** at.get("finer", 0) + bias
        if at["shortcut"] != "none":
            scale_count = {"sums": 0, "float": 1, "codes": 3 if at.get("scales") else 1}
            count = scale_count[at["result"]]
            rest, (added, *factor) = rest[:count], rest[count:]
            total = total + _units(added, factor, at)
        assert np.abs(total).max() < 2**31
        return _largest(self._written(total, rest), at.get("pool", (1, 1)))

    def _written(self, total: np.ndarray, rest: Sequence[np.ndarray]) -> np.ndarray:
        at = self.attributes
        if at["result"] == "sums":
            return total.astype(np.int32)
        if len(rest) > 1:
            multiplier, before, after = rest
            short = np.clip(_shifted(total, before), -(2**15), 2**15)
            whole = _shifted(short * multiplier, after) + at["zero"]
            return np.clip(whole, at["lower"], at["upper"]).astype(np.uint8)
        y = total.astype(np.float32) * rest[0]
        if at["result"] == "float":
            return y
        steps = np.clip(np.rint(y), at["lower"] - at["zero"], at["upper"] - at["zero"])
        return (steps.astype(np.int32) + at["zero"]).astype(np.uint8)


def _units(added: np.ndarray, factor: Sequence[np.ndarray], at: Mapping[str, Any]) -> np.ndarray:
    """A shortcut in units of the sums."""
    value = added.astype(np.float32)
    if at["shortcut"] == "codes":
        whole = added.astype(np.int64) - at["shortcut_zero"]
        if len(factor) > 1:
            return _shifted(whole * factor[0], factor[1])
        value = whole.astype(np.float32)
    return np.clip(np.rint(value * factor[0]), -(2**29), 2**29).astype(np.int64)


def _shifted(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """To the nearest, halves up."""
    return np.floor(x / 2.0**by + 0.5).astype(np.int64)


def _largest(y: np.ndarray, window: Sequence[int]) -> np.ndarray:
    """The largest of windows side by side."""
    if tuple(window) == (1, 1):
        return y
    down, right = window
    rows, columns = y.shape[1] // down, y.shape[2] // right
    y = y[:, : rows * down, : columns * right]
    return y.reshape(y.shape[0], rows, down, columns, right, -1).max((2, 4))


def dense(seed: int, rows: int, depth: int, columns: int, bits=(8, 8), **changes: Any) -> Case:
    """A dense layer of random codes."""
    return _case(seed, "q_dense", (rows, depth), (depth, columns), (rows, columns), bits, changes)


def conv2d(seed: int, x: Sequence[int], w: Sequence[int], bits=(8, 8), **changes: Any) -> Case:
    """A convolution of random codes."""
    window = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
    window |= {"input_zero": min(3, 2 ** bits[1] - 1)}
    at = {**window, **changes}
    padded = [x[1 + d] + at["padding"][2 * d] + at["padding"][2 * d + 1] for d in (0, 1)]
    sizes = [
        (padded[d] - at["dilation"][d] * (w[d] - 1) - 1) // at["strides"][d] + 1 for d in (0, 1)
    ]
    return _case(seed, "q_conv2d", x, w, (x[0], *sizes, w[3]), bits, at)


def _case(
    seed: int,
    name: str,
    x: Sequence[int],
    w: Sequence[int],
    shape: Sequence[int],
    bits: tuple[int, int],
    changes: Mapping[str, Any],
) -> Case:
    rng = np.random.default_rng(seed)
    at = {"result": "sums", "shortcut": "none", "zero": 0, "lower": 0, "upper": 255}
    at |= {"shortcut_zero": 5, "weight_bits": bits[0], "activation_bits": bits[1], **changes}
    extreme = at.pop("extreme", False)
    most = max(1, 2 ** (bits[0] - 1) - 1)
    codes, weights = np.arange(2 ** bits[1]), np.arange(-most, most + 1)
    if bits[0] == 1:
        weights = np.array([-1, 1])
    if extreme:
        codes, weights = codes[-1:], weights[:1]
    arrays = [
        rng.choice(codes, x).astype(np.uint8),
        rng.choice(weights, w).astype(np.int8),
        rng.integers(-(2**20), 2**20, w[-1]).astype(np.int32),
    ]
    is_fixed = at.get("scales") == "fixed"
    if at["result"] == "codes" and is_fixed:
        ranges = ((-(2**15), 2**15), (0, 17), (10, 31))
        arrays += [rng.integers(*ends, w[-1]).astype(np.int32) for ends in ranges]
    elif at["result"] != "sums":
        arrays.append(rng.uniform(1e-4, 1e-3, w[-1]).astype(np.float32))
    if at["shortcut"] == "codes":
        arrays.append(rng.integers(0, 256, shape).astype(np.uint8))
    if at["shortcut"] == "float":
        arrays.append(rng.normal(size=shape).astype(np.float32))
    if at["shortcut"] == "codes" and is_fixed:
        arrays += [rng.integers(*ends, w[-1]).astype(np.int32) for ends in ((0, 2**21), (0, 31))]
    elif at["shortcut"] != "none":
        arrays.append(rng.uniform(1e2, 1e4, w[-1]).astype(np.float32))
    return Case(name, tuple(arrays), at)


def module_of(
    cases: Sequence[Case],
    target: Mapping[str, Any],
    by_planes: bool | None = False,
    any_batch: bool = False,
) -> tvm.IRModule:
    """A module that computes all of them."""
    operators = integer_operators(target, by_planes, any_batch)
    bb, arguments = relax.BlockBuilder(), []
    given = [
        [relax.Var(f"x{i}_{j}", _kind(array)) for j, array in enumerate(case.arrays)]
        for i, case in enumerate(cases)
    ]
    arguments = [v for each in given for v in each]
    with bb.function("main", arguments):
        with bb.dataflow():
            results = [
                operators[f"jaxeff.{case.name}"](bb, *each, **case.attributes)
                for case, each in zip(cases, given, strict=True)
            ]
            output = bb.emit_output(relax.Tuple(results))
        bb.emit_func_output(output)
    return bb.get()


def _kind(array: np.ndarray) -> relax.TensorType:
    return relax.TensorType(array.shape, str(array.dtype))


def _dense(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x.astype(np.int64) @ w.astype(np.int64)


def _conv2d(x: np.ndarray, w: np.ndarray, at: Mapping[str, Any]) -> np.ndarray:
    top, bottom, left, right = at["padding"]
    (sh, sw), (dh, dw), groups = at["strides"], at["dilation"], at["groups"]
    zero = at["input_zero"]
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=zero)
    x, w = x.astype(np.int64), w.astype(np.int64)
    kh, kw, depth, features = w.shape
    rows = (x.shape[1] - dh * (kh - 1) - 1) // sh + 1
    columns = (x.shape[2] - dw * (kw - 1) - 1) // sw + 1
    y = np.zeros((x.shape[0], rows, columns, features), np.int64)
    per_group = features // groups
    for g in range(groups):
        out = slice(g * per_group, (g + 1) * per_group)
        for i in range(kh):
            for j in range(kw):
                part = x[:, i * dh :: sh, j * dw :: sw][:, :rows, :columns]
                part = part[..., g * depth : (g + 1) * depth]
                y[..., out] += part @ w[i, j][:, out]
    return y
