"""Checks that a candidate computes what its kernel computes, and times it.

TVM miscompiles some vectorised forms silently, so every candidate is held against the plain loops
of the kernel, NaN included, before its time counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm

from jaxeff_export.compiler import UnscheduledKernel, ready_to_lower

_MILLISECONDS = 10  # one repetition lasts at least that
_REPEAT = 3

Draw = tuple[list[np.ndarray], dict[int, np.ndarray]]  # arguments, and the expected outputs


class CandidateError(RuntimeError):
    """Raised for a candidate that fails, or computes something else than the kernel."""


def timed(module: Any, device: Any, draws: Sequence[Draw]) -> float:
    """Checks a built kernel on every draw, and times it on the first.

    Raises:
      CandidateError: if an output differs from what is expected.
    """
    put = [
        [tvm.runtime.tensor(array, device=device) for array in arguments] for arguments, _ in draws
    ]
    # Checked before it is timed: a wrong candidate must not enter the database as fast.
    for tensors, (_, expected) in zip(put, draws, strict=True):
        module["main"](*tensors)
        for index, value in expected.items():
            _require_close(tensors[index].numpy(), value)
    timer = module.time_evaluator(
        "main", device, number=1, repeat=_REPEAT, min_repeat_ms=_MILLISECONDS
    )
    return float(min(timer(*put[0]).results))  # of the repetition that was disturbed least


def _require_close(computed: np.ndarray, expected: np.ndarray) -> None:
    if not np.issubdtype(expected.dtype, np.bool_) and not _is_integer(expected.dtype):
        # Differences in double precision, so that the comparison adds no rounding of its own.
        wide = np.complex128 if np.iscomplexobj(expected) else np.float64
        epsilon = float(ml_dtypes.finfo(expected.dtype).eps)
        computed, expected = computed.astype(wide), expected.astype(wide)
        finite = np.abs(expected[np.isfinite(expected)])
        # A sum of a thousand terms, reordered; narrower types round at every store.
        tolerance = min(1000 * epsilon, 0.05) * float(finite.max(initial=0.0))
        close = np.allclose(computed, expected, rtol=0.0, atol=tolerance, equal_nan=True)
    else:
        close = np.array_equal(computed, expected)
    if not close:
        raise CandidateError("it computes something else than plain loops do")


def _is_integer(dtype: np.dtype) -> bool:
    return np.issubdtype(dtype, np.integer) or "int" in dtype.name


def entry_module(mod: tvm.IRModule) -> tvm.IRModule:
    """Makes a module to compile of a kernel, scheduled or not; its one function is ``main``."""
    function = mod["main"].with_attr("global_symbol", "main")
    return ready_to_lower(tvm.IRModule({"main": function}))


def draws_of(kernel: UnscheduledKernel) -> list[Draw]:
    """Draws arguments of two kinds, positive and of any sign, and computes expected outputs.

    Variances are positive; on numbers of any sign, roots and logarithms have to give NaN where the
    plain loops do.
    """
    # The plain loops, for TVM's generic CPU: neither schedules nor vectors that could be at fault.
    plain = tvm.compile(
        entry_module(kernel.module), target=tvm.target.Target({"kind": "llvm"})
    ).jit()
    # A fixed seed: candidates of all sessions are checked and timed on the same numbers.
    rng = np.random.default_rng(0)
    draws = []
    for any_sign in (False, True):
        arguments = [_array(rng, parameter.ty, any_sign) for parameter in kernel.function.params]
        tensors = [tvm.runtime.tensor(array) for array in arguments]
        plain["main"](*tensors)
        draws.append((arguments, {index: tensors[index].numpy() for index in kernel.outputs}))
    return draws


def _array(rng: np.random.Generator, kind: Any, any_sign: bool) -> np.ndarray:
    shape = [int(n) for n in kind.shape]
    dtype = np.dtype(getattr(ml_dtypes, str(kind.dtype), None) or str(kind.dtype))
    if dtype == np.bool_ or _is_integer(dtype):
        return rng.integers(0, 2, shape).astype(dtype)  # an index that fits everywhere
    values = rng.standard_normal(shape) if any_sign else rng.uniform(0.1, 1.0, shape)
    return values.astype(dtype)
