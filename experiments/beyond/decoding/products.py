"""Products of few rows with one matrix of weights, in formats of four to 32 bits, on engines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jaxeff_export
import numpy as np

from experiments import engines
from experiments.harness import Row
from experiments.timing import Meter, measure_rounds, metered
from jaxeff.compression import Int, LayerQuantization, integer
from jaxeff.compression.quantizers import Uniform
from jaxeff.pruning.sparsity import NofM

Call = Callable[[], Any]
FORMATS = ("float32", "int8", "int4 g32", "int4 g128")
BITS = {
    "float32": 32, "int8": 8, "int4 g32": 4, "int4 g128": 4, "float32 2:4": 17, "int8 2:4": 5,
}  # fmt: skip
ENGINES = ("onnxruntime", "openvino", "ggml", "iree")
"""Engines of other libraries, those left out that aren't installed."""
_GROUPS = Int(4, 8, True, "group", "token", steps="int8")
_TOKENS = Uniform(8, symmetric=True, per="token")
SPARSE = {
    "float32 2:4": NofM(2, 4),
    "int8 2:4": LayerQuantization(NofM(2, 4, values=Uniform(8, symmetric=True)), _TOKENS),
}
SETTINGS = {
    "int8": Int(8),
    "int4 g32": replace(_GROUPS, group=32),
    "int4 g128": replace(_GROUPS, group=128),
}
ALONE = {
    "int8": Int(8, activations=False),
    "int4 g32": Int(4, activations=False, per="group", steps="float16"),
}
"""Weights alone: activations are floats."""
CACHES = np.zeros(1 << 26, np.uint8)
"""More than the caches hold: read through before a call that is to find nothing there."""


def product(params: Any, x: Any) -> Any:
    """Multiplies by a matrix."""
    return x @ params["w"]


def measured(rows: int, shape: tuple[int, int], rounds: int) -> Iterator[Row]:
    """Times all formats on all engines in turns, hot and cold, in CPU time of one thread.

    Args:
        rows: Rows of the product.
        shape: Inputs and outputs.
        rounds: How often every call is measured.
    """
    keys = jax.random.split(jax.random.key(rows), 2)
    params = {"w": jax.random.normal(keys[0], shape) / shape[0] ** 0.5}
    x = jax.random.normal(keys[1], (rows, shape[0]))
    with contextlib.ExitStack() as stack:
        calls = {("float32", "XLA"): _xla(params, x)}
        for name, target in _targets().items():
            calls |= _ours(stack, params, x, name, target)
        for engine in engines.available(ENGINES):
            found = engines.load("experiments.beyond.decoding", engine).calls(params, x)
            calls |= {(form, engine): call for form, call in found.items()}
        for name, bits in BITS.items():
            data = np.zeros(shape[0] * shape[1] * bits // 8, np.uint8)
            calls[name, "reading"] = data.max
        named = {f"{form}|{engine}": call for (form, engine), call in calls.items()}
        hot = measure_rounds({n: metered(c, time.process_time) for n, c in named.items()}, rounds)
        cold = measure_rounds({n: _cold(c) for n, c in named.items()}, rounds, 0.05)
    best = {name: (min(hot[name]) * 1e3, min(cold[name]) * 1e3) for name in named}
    for form, engine in calls:
        first, second = best[f"{form}|{engine}"]
        # Of sparse weights: against dense ones of the same numbers.
        dense = form.removesuffix(" 2:4")
        peers = [best[f"{dense}|{e}"] for f, e in calls if f == dense and e in ("XLA", *ENGINES)]
        limit = best[f"{form}|reading"]
        yield {
            "rows": rows, "shape": "{}x{}".format(*shape), "format": form, "engine": engine,
            "hot_us": first, "cold_us": second, "over_limit": second / limit[1],
            **({"hot_ratio": first / min(p[0] for p in peers),
                "cold_ratio": second / min(p[1] for p in peers)} if peers else {}),
        }  # fmt: skip


def one_thread() -> dict[str, Any]:
    """This machine, for kernels on one thread."""
    return {**jaxeff_export.resolve_target("host"), "num-cores": 1}


def _targets() -> dict[str, Any]:
    host = one_thread()
    attributes = [*host.get("mattr", ()), "-avx512f", "-avxvnni"]
    return {"jaxeff": host, "jaxeff, AVX2": {**host, "mattr": attributes}}


def _ours(
    stack: contextlib.ExitStack, params: Any, x: Any, name: str, target: Any
) -> dict[tuple[str, str], Call]:
    functions: dict[tuple[str, str], tuple[Any, Any]] = {("float32", name): (product, params)}
    kinds: dict[str, dict[str, Any]] = {name: SETTINGS | SPARSE, f"{name}, weights alone": ALONE}
    for engine, settings in kinds.items():
        for form, setting in settings.items():
            g = integer(product, {"*": setting}, dynamic=True)
            functions[form, engine] = g, g.convert(params, x)
    calls: dict[tuple[str, str], Call] = {}
    for key, (g, taken) in functions.items():
        bundle = jaxeff_export.deploy(g, (taken, x), target=target)
        runner = stack.enter_context(bundle.on())
        data = np.asarray(x)
        calls[key] = partial(runner.run, data)
    return calls


def _xla(params: Any, x: Any) -> Call:
    run = jax.jit(product)
    return lambda: run(params, x).block_until_ready()


def _cold(call: Call) -> Meter:
    def meter(repeats: int) -> float:
        total = 0.0
        for _ in range(repeats):
            CACHES.max()
            start = time.process_time()
            call()
            total += time.process_time() - start
        return total / repeats

    return meter


__all__ = ["ALONE", "ENGINES", "FORMATS", "SETTINGS", "measured", "one_thread"]
