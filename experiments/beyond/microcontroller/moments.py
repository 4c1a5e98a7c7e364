"""Rows of moment passes in float: instructions and memory beside the network's own float pass."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jaxeff_export
import numpy as np
from jaxeff_export.clib import ExampleProgram, count_instructions
from jaxeff_export.targets import find_c_toolchain

import jaxeff
from experiments.beyond.c_library.subjects import SPREAD, in_codes, of_codes
from experiments.beyond.microcontroller.networks import SHAPES, network
from experiments.harness import Row

PASSES = ("float", "diagonal", "diagonal, int8")
"""The network's own pass, and its moments: positions apart, so from int8 weights, the default."""


def moment_rows(name: str, core: str, passes: tuple[str, ...] = PASSES) -> Iterator[Row]:
    """Counts the passes of a network, and compares the moments with XLA's."""
    x = jax.random.normal(jax.random.key(1), (1, *SHAPES[name]))
    counts = {kind: counted(*_pass(name, kind), x, core) for kind in passes}
    base = counts["float"]
    for kind, count in counts.items():
        yield {
            "table": "moments", "network": name, "core": core, "pass": kind, **count,
            "times": count["instructions"] / base["instructions"],
            "memory times": count["workspace"] / base["workspace"],
        }  # fmt: skip


def has_toolchain(core: str) -> bool:
    """Whether programs for a core can be built here."""
    try:
        find_c_toolchain(jaxeff_export.resolve_target(core))
    except jaxeff_export.ToolchainError:
        return False
    return True


def counted(f: Callable[..., Any], params: Any, x: jax.Array, core: str) -> Row:
    """Counts a call on an emulated core, and compares its results with XLA's."""
    bundle = jaxeff_export.deploy(f, (params, x), target=core)
    with tempfile.TemporaryDirectory() as home:
        library = bundle.export_c(f"{home}/net", name="net")
        count = count_instructions(library, core)
        results = ExampleProgram(library, core).run()
    expected = jax.tree.leaves(jax.jit(f)(params, x))
    return {
        "instructions": count.total, "workspace": library.sizes.workspace,
        "code": library.sizes.code, "parameters": library.sizes.parameters,
        # Of the largest mean, and of the largest variance.
        "error": max(
            float(np.abs(ours - xla).max() / np.abs(xla).max())
            for ours, xla in zip(results, expected, strict=True)
        ),
    }  # fmt: skip


def _pass(name: str, kind: str) -> tuple[Callable[..., Any], Any]:
    f, params = network(name)
    if kind == "float":
        return f, params
    belief = jax.tree.map(lambda w: jaxeff.Gaussian(w, SPREAD * w**2), params)
    moments = jaxeff.moments(f, method="diagonal")
    if kind.endswith("int8"):
        return of_codes(moments), in_codes(belief)
    return moments, belief
