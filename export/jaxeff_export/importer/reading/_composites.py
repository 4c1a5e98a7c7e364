"""Composites of modules of symbolic sizes, which are written as calls.

StableHLO's refinement of shapes goes through calls but not through composites. So a composite of
such a module is a call of its decomposition, whose attributes name it; once the sizes are known it
becomes a composite again.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from jaxeff.core import jax_internals as _compat
from jaxeff_export.importer.reading._attributes import attribute
from jaxeff_export.importer.reading._functions import functions_of, operations


def composites_in(module: ir.Module) -> frozenset[str]:
    """Returns the names of a module's composites, those that are written as calls included."""
    marks = [function.attributes for function in functions_of(module).values()]
    calls = [op for op, _ in operations(module.operation) if op.name == "stablehlo.composite"]
    return frozenset(
        [
            *(attribute(call, "name") for call in calls),
            *(ir.StringAttr(m[_compat.COMPOSITE]).value for m in marks if _compat.COMPOSITE in m),
        ]
    )


def restore_composites(module: ir.Module) -> None:
    """Writes calls of functions that say which composite they are as composites, in place."""
    marked = {
        name: function
        for name, function in functions_of(module).items()
        if _compat.COMPOSITE in function.attributes
    }
    calls = [op for op, _ in operations(module.operation) if op.name == "func.call"]
    for call in calls:
        callee = attribute(call, "callee")
        if callee not in marked:
            continue
        said = marked[callee].attributes
        with ir.InsertionPoint(call), call.location:
            made = ir.Operation.create(
                "stablehlo.composite",
                results=[result.type for result in call.results],
                operands=list(call.operands),
                attributes={
                    "name": said[_compat.COMPOSITE],
                    "decomposition": call.attributes["callee"],
                    "composite_attributes": said[_compat.COMPOSITE_ATTRIBUTES],
                    "version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1),
                },
            )
        for old, new in zip(call.results, made.results, strict=True):
            old.replace_all_uses_with(new)
        call.erase()
