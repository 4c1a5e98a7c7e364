"""XLA as the oracle: run a JAX function through the importer and TVM, and compare."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import tvm
from jaxeff_export.compiler import compile_module
from jaxeff_export.compiler.passes import LiftedModule, lift_parameters
from jaxeff_export.importer import import_stablehlo
from jaxeff_export.targets import resolve_target
from tvm import relax
from tvm.target import Target


def run(module: tvm.IRModule, *args) -> list[np.ndarray]:
    """Compile an imported module for this machine and call it."""
    vm = relax.VirtualMachine(compile_module(module), tvm.cpu())
    leaves = [tvm.runtime.tensor(np.array(leaf, order="C")) for leaf in jax.tree.leaves(args)]
    result = vm["main"](*leaves)
    return [result.numpy()] if hasattr(result, "numpy") else [r.numpy() for r in result]


def export(function: Callable, *args, keep_unused: bool = False) -> jax.export.Exported:
    return jax.export.export(jax.jit(function, keep_unused=keep_unused))(*args)


def assert_agrees(
    function: Callable,
    *args,
    rtol: float | None = None,
    atol: float = 0.0,
    keep_unused: bool = False,
) -> None:
    """Assert that TVM computes what XLA computes.

    Integers and booleans must be equal. Floats may differ by ``rtol`` (a few units in the last
    place of their dtype by default) and must agree on where they are NaN.
    """
    got = run(import_stablehlo(export(function, *args, keep_unused=keep_unused)), *args)
    want = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*args))]
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        assert_close(ours, theirs, rtol, atol)


def assert_close(
    ours: np.ndarray, theirs: np.ndarray, rtol: float | None = None, atol: float = 0.0
) -> None:
    """Compare two arrays of one dtype: exactly, or to a few units in the last place."""
    if theirs.dtype.kind in "biu":
        np.testing.assert_array_equal(ours, theirs)
        return
    tolerance = 8 * float(jax.numpy.finfo(theirs.dtype).eps) if rtol is None else rtol
    np.testing.assert_allclose(
        ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=atol
    )


def rewritten(
    rewrite: Callable[[tvm.IRModule], tvm.IRModule],
    function: Callable,
    parameter,
    *inputs,
    atol: float = 1e-5,
) -> tuple[LiftedModule, list[np.ndarray]]:
    """A function's kernels rewritten, in two parts that together agree with XLA; derived arrays."""
    exported = export(function, parameter, *inputs, keep_unused=True)
    with Target(resolve_target("host")):
        kernels = relax.transform.LegalizeOps()(import_stablehlo(exported))
    parts = lift_parameters(rewrite(kernels), 1)
    derived = run(parts.derive, parameter) if parts.derive else []
    operands = [[parameter, *derived][index] for index in parts.operands]
    expected = jax.tree.leaves(jax.jit(function)(parameter, *inputs))
    for ours, theirs in zip(run(parts.main, *operands, *inputs), expected, strict=True):
        assert_close(ours, np.asarray(theirs), rtol=1e-5, atol=atol)
    return parts, derived
