"""Custom calls: annotations, those with a lowering, and advice on all others.

A custom call with a lowering is a node named ``custom_call @target``; rules register under that
name, as for operations.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jaxlib.mlir import ir

from jaxeff_export.importer.reading import Unsupported, attribute

_ANNOTATIONS = (
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "annotate_device_placement",
    "shape_assertion",
    "LayoutConstraint",
)
_ADVICE = {
    "lapack_sgeev_ffi": "eigenvalues of unsymmetric matrices are complex; if it is symmetric, "
    "use jnp.linalg.eigh",
    "xla_ffi_python_cpu_callback": "Python callbacks cannot be exported; "
    "remove it (jax.debug.print too)",
    "xla_python_cpu_callback": "Python callbacks cannot be exported; "
    "remove it (jax.debug.print too)",
}
_ADVICE["lapack_dgeev_ffi"] = _ADVICE["lapack_sgeev_ffi"]
_COMPLEX_LAPACK = ("lapack_c", "lapack_z")


def is_annotation(op: ir.Operation) -> bool:
    """Tells whether a custom call only annotates its operands, such as with a sharding.

    The checks of StableHLO's own tests (``check.expect_close`` and its like), which have no
    results, are taken for one too: an imported module computes, it does not test itself.
    """
    target = attribute(op, "call_target_name")
    if target.startswith("check.") and not len(op.results):
        return True
    if target not in _ANNOTATIONS and not target.startswith("xla.sdy."):
        return False
    kinds = [operand.type for operand in op.operands]
    return all(result.type == kind for result, kind in zip(op.results, kinds, strict=False))


def node_name(op: ir.Operation, known_ops: Collection[str]) -> str:
    """Returns the name under which a custom call's lowering is registered.

    Raises:
        Unsupported: there is none, or its matrices are not laid out as LAPACK has them.
    """
    target = attribute(op, "call_target_name")
    name = f"custom_call @{target}"
    if name not in known_ops:
        advice = _ADVICE.get(target)
        if target.startswith(_COMPLEX_LAPACK):
            advice = "TVM has no complex types; compute with real and imaginary parts"
        raise Unsupported(
            f"no lowering of the custom call {target} is known" + (f": {advice}" if advice else "")
        )
    if target.startswith("lapack_"):
        _check_layouts(op, target)
    return name


def _check_layouts(op: ir.Operation, target: str) -> None:
    """Checks that matrices are column-major, which LAPACK's kernels here assume."""
    layouts: list[list[int]] = []
    for name in ("operand_layouts", "result_layouts"):
        found: Any = op.attributes[name]
        layouts += [[int(d) for d in layout] for layout in found]
    matrix_rank = max(len(layout) for layout in layouts)
    for layout in layouts:
        # Layouts name dimensions from the fastest on: batches row-major, matrices column-major.
        expected = list(reversed(range(len(layout))))
        if len(layout) == matrix_rank:
            expected[:2] = reversed(expected[:2])
        if layout != expected:
            raise Unsupported(f"the layout {layout} in the custom call {target}")
