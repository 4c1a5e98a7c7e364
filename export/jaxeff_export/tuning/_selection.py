"""Selects the kernels of a module to tune."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from jaxeff.program import SpecError, Target, deciding_patterns
from jaxeff.program import select as matching
from jaxeff_export.compiler import UnscheduledKernel, kernel_of
from jaxeff_export.compiler.tir import contains, is_contraction
from jaxeff_export.schedules import TuningError


def select(
    mod: tvm.IRModule, include: Sequence[str] | None, exclude: Sequence[str]
) -> list[UnscheduledKernel]:
    """Selects the kernels of a fused module to tune, each workload once.

    Args:
      mod: a module whose kernels are not scheduled.
      include: glob patterns of names; None for the kernels that contract (layers). Elementwise
        kernels and pooling are only tuned if they are asked for by name: MetaSchedule loses much
        time with the former and spoils the latter.
      exclude: glob patterns of names to leave out. Where a name is matched by both, the more
        specific pattern decides (`jaxeff.program`).

    Raises:
      TuningError: if a pattern matches or decides no kernel, two that say the opposite are equally
        specific, or no kernel is left.
    """
    functions = {
        key.name_hint: function
        for key, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc) and _is_tunable(function)
    }
    targets = [Target(name) for name in functions]
    try:
        if include is None:
            chosen = {
                name
                for name, function in functions.items()
                if contains(function.body, s_tir.SBlock, is_contraction)
            }.difference(matching(exclude, targets, what="kernel"))
        else:
            taken = _verdicts(include, exclude)
            decided = deciding_patterns(taken, targets, what="kernel", verdicts=taken)
            chosen = {name for name, pattern in decided.items() if taken[pattern]}
    except SpecError as error:
        raise TuningError(str(error)) from error
    if not chosen:
        raise TuningError(
            f"nothing is left to tune; the kernels are {_listed(functions)}, and without patterns "
            "those that multiply and accumulate are tuned"
        )
    # Equal kernels of several layers share a workload, and so one tuning.
    found: dict[str, UnscheduledKernel] = {}
    for name in sorted(chosen):
        kernel = kernel_of(name, functions[name])
        found.setdefault(kernel.workload, kernel)
    return list(found.values())


def _is_tunable(function: tirx.PrimFunc) -> bool:
    """Tells whether a kernel takes tensors of known shapes and has no schedule of its own."""
    if "tirx.is_scheduled" in function.attrs:
        return False
    types: list[Any] = [parameter.ty for parameter in function.params]
    return all(
        hasattr(kind, "shape") and all(isinstance(n, tirx.IntImm) for n in kind.shape)
        for kind in types
    )


def _verdicts(include: Sequence[str], exclude: Sequence[str]) -> dict[str, bool]:
    both = set(include).intersection(exclude)
    if both:
        raise TuningError(f"{min(both)!r} is both asked for and left out")
    return dict.fromkeys(include, True) | dict.fromkeys(exclude, False)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none with fixed shapes"
