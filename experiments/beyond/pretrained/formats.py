"""Formats of few bits for the language model: rounded, corrected by data, and those of GGUF."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxeff.compression import (
    Grouped,
    Int,
    LayerQuantization,
    PostTrained,
    Uniform,
    awq,
    gptq,
    memory,
    mxfp,
    nf4,
    nvfp4,
)
from jaxeff.contrib import HalfQuadratic

Fitted = tuple[Any, dict[str, Any], float]
"""Parameters, the setting of each layer, and bits of all parameters."""
Method = Callable[[Any, Any, Any], Fitted]
"""Takes a model, its parameters, and a batch of tokens to correct by."""


def _weights(bits: int, **more: Any) -> Int:
    return Int(bits, activations=False, **more)


EIGHT = _weights(8)
_TABLE = {"embed": EIGHT, "embed#1": EIGHT}
"""The table of embeddings, which is also the head: a fifth of all parameters."""
GROUPS = _weights(4, per="group", group=32, steps="float16")
FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "int8": {"*:linear": EIGHT, **_TABLE},
    "int8, activations by token": {
        "*:linear": Int(8, activations_per="token"), **_TABLE
    },
    "int4": {"*:linear": _weights(4), **_TABLE},
    "int4 by 32": {"*:linear": GROUPS, **_TABLE},
    "int4 by 32, with offsets": {
        "*:linear": Int(4, activations=False, per="group", group=32, symmetric=False), **_TABLE
    },
}  # fmt: skip
"""The setting of each layer; tables have eight bits. The file's own weights have offsets."""
OTHERS = {
    "int4 by 32, 15 values": LayerQuantization(Grouped(Uniform(4, True), 32, "float16")),
    "int4 by 64": _weights(4, per="group", group=64, steps="float16"),
    "NF4 by 64": LayerQuantization(nf4()),
    "MXFP4": LayerQuantization(mxfp()),
    "NVFP4": LayerQuantization(nvfp4()),
}


def _rounded(spec: dict[str, Any]) -> Method:
    """Rounds to the nearest values."""

    def method(f: Any, params: Any, batch: Any) -> Fitted:
        return params, spec, _bits(f, params, spec, batch)

    return method


def _corrected(transform: Callable[..., PostTrained], setting: Any) -> Method:
    """Changes the weights of layers by what they read; the table is rounded."""

    def method(f: Any, params: Any, batch: Any) -> Fitted:
        # The head's weights are the table's: corrected for one use, they'd be wrong in the other.
        _, params, spec = transform(f, params, batch, {"*:linear": setting, "embed#1": None})
        spec = {**spec, **_TABLE}
        return params, spec, _bits(f, params, spec, batch)

    return method


def _bits(f: Any, params: Any, spec: dict[str, Any], batch: Any) -> float:
    if not spec:
        return 32.0
    leaves = jax.tree.leaves(params)
    # Norms stay in float, and `memory` counts what the spec names.
    norms = sum(32 * leaf.size for leaf in leaves if leaf.ndim < 2)
    bits = float(memory(f, params, batch[:1], spec)) + norms
    return bits / sum(leaf.size for leaf in leaves)


def _of_gguf(name: str) -> Method:
    """Rounds by llama.cpp's format, as the package `gguf` has it; the table is Q8_0 as it was."""

    def method(f: Any, params: Any, batch: Any) -> Fitted:
        # The model was read by the same package.
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize, quantize

        counted = []

        def one(path: Any, leaf: Any) -> Any:
            if leaf.ndim < 2:
                counted.append(32 * leaf.size)
                return leaf
            table = path[0].key == "embed"
            kind = GGMLQuantizationType["Q8_0" if table else name]
            # Blocks of a file lie along what a product sums over: a kernel's first axis.
            rows = np.ascontiguousarray(leaf if table else leaf.T)
            codes = quantize(rows, kind)
            counted.append(8 * codes.nbytes)
            values = dequantize(codes, kind)
            return values if table else np.ascontiguousarray(values.T)

        converted = jax.tree_util.tree_map_with_path(one, params)
        return converted, {}, sum(counted) / sum(leaf.size for leaf in jax.tree.leaves(params))

    return method


HALF_QUADRATIC = LayerQuantization(Grouped(HalfQuadratic(4, numbers="float16"), 64))
SLOW: dict[str, Method] = {
    "int4 by 64, HQQ": _rounded({"*:linear": HALF_QUADRATIC, **_TABLE}),
    "int4 by 32, AWQ": _corrected(awq, GROUPS),
    "int4 by 32, GPTQ": _corrected(gptq, GROUPS),
}
METHODS: dict[str, Method] = {
    **{name: _rounded(spec) for name, spec in FORMATS.items()},
    **{name: _rounded({"*:linear": setting, **_TABLE}) for name, setting in OTHERS.items()},
    **SLOW,
    "GGUF Q8_0": _of_gguf("Q8_0"),
    "GGUF Q4_0": _of_gguf("Q4_0"),
    "GGUF MXFP4": _of_gguf("MXFP4"),
}

__all__ = ["EIGHT", "FORMATS", "GROUPS", "HALF_QUADRATIC", "METHODS", "OTHERS", "SLOW"]
