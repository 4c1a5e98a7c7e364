"""What a rule of an operator is given: its settings, and ways to refuse what it can't take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff_export.litert_files._flatbuffer import FlatTable
from jaxeff_export.litert_files._to_litert import LitertError

Value = Any
"""An array of JAX, or one of NumPy where it is known before any input is."""

LARGEST = 2**28
"""Elements that an operator may make at most."""

_WINDOW = {"padding": (0, "b", 0), "stride_w": (1, "i", 1), "stride_h": (2, "i", 1)}
_POOL = {
    **_WINDOW, "width": (3, "i", 1), "height": (4, "i", 1), "activation": (5, "b", 0),
}  # fmt: skip
_FUSED = {"activation": (0, "b", 0)}
_KEPT = {"keep": (0, "B", 0)}

_FIELDS: dict[str, dict[str, tuple[int, str, Any]]] = {
    "CONV_2D": {
        **_WINDOW, "activation": (3, "b", 0), "dilation_w": (4, "i", 1),
        "dilation_h": (5, "i", 1),
    },
    "DEPTHWISE_CONV_2D": {
        **_WINDOW, "activation": (4, "b", 0), "dilation_w": (5, "i", 1),
        "dilation_h": (6, "i", 1),
    },
    "TRANSPOSE_CONV": {**_WINDOW, "activation": (3, "b", 0)},
    "FULLY_CONNECTED": {
        **_FUSED, "format": (1, "b", 0), "keep": (2, "B", 0),
    },
    "AVERAGE_POOL_2D": _POOL, "MAX_POOL_2D": _POOL, "L2_POOL_2D": _POOL,
    "ADD": _FUSED, "SUB": _FUSED, "MUL": _FUSED, "DIV": _FUSED, "L2_NORMALIZATION": _FUSED,
    "CONCATENATION": {"axis": (0, "i", 0), "activation": (1, "b", 0)},
    "SOFTMAX": {"beta": (0, "f", 0.0)}, "LEAKY_RELU": {"alpha": (0, "f", 0.0)},
    "GELU": {"approximate": (0, "B", 0)},
    "RESHAPE": {"shape": (0, "i4", None)}, "SQUEEZE": {"axes": (0, "i4", None)},
    "PACK": {"axis": (1, "i", 0)}, "UNPACK": {"count": (0, "i", 0), "axis": (1, "i", 0)},
    "SPLIT": {"count": (0, "i", 0)}, "SPLIT_V": {"count": (0, "i", 0)},
    "GATHER": {"axis": (0, "i", 0), "batch_dims": (1, "i", 0)},
    "MEAN": _KEPT, "SUM": _KEPT, "REDUCE_MAX": _KEPT, "REDUCE_MIN": _KEPT, "REDUCE_PROD": _KEPT,
    "REDUCE_ANY": _KEPT, "REDUCE_ALL": _KEPT,
    "STRIDED_SLICE": {
        name: (i, "i", 0) for i, name in enumerate(("begin", "end", "ellipsis", "new", "shrink"))
    } | {"relative": (5, "B", 0)},
    "MIRROR_PAD": {"mode": (0, "b", 0)},
    "RESIZE_BILINEAR": {"align": (2, "B", 0), "half": (3, "B", 0)},
    "RESIZE_NEAREST_NEIGHBOR": {"align": (0, "B", 0), "half": (1, "B", 0)},
    "BATCH_MATMUL": {"adj_x": (0, "B", 0), "adj_y": (1, "B", 0)},
    "CUMSUM": {"exclusive": (0, "B", 0), "reverse": (1, "B", 0)},
    "DEPTH_TO_SPACE": {"size": (0, "i", 0)}, "SPACE_TO_DEPTH": {"size": (0, "i", 0)},
    "ONE_HOT": {"axis": (0, "i", 0)},
}  # fmt: skip
"""The settings of operators: the field in their table, its kind, and the schema's default."""


@dataclass(frozen=True)
class OperatorCall:
    """An operator as it is computed.

    Attributes:
        name: The operator.
        place: The name of its first result in the file.
        settings: The operator's settings by name.
        shapes: The shapes of its results in the file; -1 for a size that is open.
        dtypes: Their dtypes; that of floats for integers on a grid.
    """

    name: str
    place: str
    settings: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    def __getitem__(self, setting: str) -> Any:
        return self.settings[setting]

    def refused(self, what: str) -> LitertError:
        """Makes the error that names the operator and its place."""
        return LitertError(f"from_litert: {self.name} at {self.place!r} {what}.")

    def integers(self, value: Value, what: str) -> list[int]:
        """Returns numbers that say a shape, which no input may have a part in."""
        if not isinstance(value, np.ndarray):
            raise self.refused(f"takes {what} from an input; only what the file knows is read")
        return [int(number) for number in value.ravel()]

    def number(self, value: Value, what: str) -> int:
        """Returns the one number that says an axis or a count."""
        numbers = self.integers(value, what)
        if len(numbers) != 1:
            raise self.refused(f"has {len(numbers)} numbers for {what}")
        return numbers[0]

    def axes(self, value: Value, rank: int) -> tuple[int, ...]:
        """Returns axes, counted from the front."""
        axes = self.integers(value, "its axes")
        if any(not -rank <= axis < rank for axis in axes):
            raise self.refused(f"names the axes {axes} of {rank}")
        return tuple(sorted({axis % rank for axis in axes}))

    def bounded(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns a shape that the file asks for, or refuses one that is far too large."""
        if any(size < 0 for size in shape) or math.prod(shape) > LARGEST:
            raise self.refused(
                f"asks for an array of {tuple(shape)}; at most {LARGEST} elements are made"
            )
        return tuple(map(int, shape))

    def activated(self, x: Value) -> Value:
        """Applies the activation that is fused with the operator."""
        number = self.settings.get("activation", 0)
        if number not in ACTIVATIONS:
            raise self.refused(f"has the activation {number}, which isn't read")
        return ACTIVATIONS[number](x)


def settings_of(name: str, options: FlatTable | None) -> dict[str, Any]:
    """Reads the settings of an operator; the schema's defaults where it has no table."""
    settings = {}
    for setting, (field, kind, default) in _FIELDS.get(name, {}).items():
        if kind == "i4":
            settings[setting] = () if options is None else tuple(options.numbers(field, kind))
        else:
            settings[setting] = default if options is None else options.number(field, kind, default)
    return settings


def _between(low: float, high: float) -> Callable[[Value], Value]:
    return lambda x: jnp.clip(x, np.float32(low), np.float32(high))


relu6 = _between(0, 6)
relu_one = _between(-1, 1)

ACTIVATIONS: dict[int, Callable[[Value], Value]] = {
    0: lambda x: x, 1: jax.nn.relu, 2: relu_one, 3: relu6, 4: jnp.tanh,
}  # fmt: skip
"""Fused activations by their number."""
