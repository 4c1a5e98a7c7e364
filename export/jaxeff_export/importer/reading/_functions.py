"""A module's functions: which one is public, and which it calls, checked before they are inlined.

The importer inlines every call, so its graph can be exponentially larger than the text, and
recursion would never end. Both are found here in time linear in the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from jaxlib.mlir import ir

from jaxeff_export.importer.reading._attributes import attribute
from jaxeff_export.importer.reading._errors import (
    StableHLOParseError,
    Unsupported,
    UnsupportedOpError,
    describe,
)

MAX_OPERATIONS = 500_000
MAX_DEPTH = 100  # regions and calls in one another; the importer recurses into them

_CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}


@dataclasses.dataclass
class _Inlined:
    """A function with all its calls inlined: its operations, and how deep they nest."""

    operations: int = 0
    depth: int = 0


def functions_of(module: ir.Module) -> dict[str, ir.Operation]:
    """Returns the functions of a module by name."""
    return {
        attribute(op.operation, "sym_name"): op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def public_function(functions: Mapping[str, ir.Operation]) -> ir.Operation:
    """Returns the function that a module is imported for.

    Raises:
        StableHLOParseError: there is no single public function with a body.
    """
    public = [
        f
        for f in functions.values()
        if "sym_visibility" not in f.attributes or attribute(f, "sym_visibility") == "public"
    ]
    # Of several, MLIR's convention makes `main` the entry.
    if len(public) > 1:
        public = [f for f in public if attribute(f, "sym_name") == "main"]
    if len(public) != 1 or not len(public[0].regions[0].blocks):
        names = ", ".join(functions) or "none at all"
        raise StableHLOParseError(
            f"the module has no single public function to import (its functions: {names}); "
            "mark one as public, or name it main"
        )
    return public[0]


def refuse_endless_calls(function: ir.Operation, functions: Mapping[str, ir.Operation]) -> None:
    """Checks that inlining all calls of ``function`` ends, and soon.

    Args:
        function: function that the program starts in.
        functions: all functions of the module, by name.

    Raises:
        UnsupportedOpError: it does not; names the call.
    """
    # A function called many times is measured once, which keeps the check linear in the text.
    known: dict[str, _Inlined] = {}
    open_calls: set[str] = set()

    def inlined(function: ir.Operation) -> _Inlined:
        total = _Inlined()
        for op, depth in operations(function):
            total.operations += 1
            total.depth = max(total.depth, depth)
            try:
                if depth > MAX_DEPTH:
                    raise Unsupported(f"it is nested more than {MAX_DEPTH} regions deep")
                if op.name in _CALLS:
                    body = called(op)
                    total.operations += body.operations
                    total.depth = max(total.depth, depth + body.depth)
                if total.operations > MAX_OPERATIONS or total.depth > MAX_DEPTH:
                    raise Unsupported(
                        f"its functions, inlined, come to more than {MAX_OPERATIONS} operations or "
                        f"nest more than {MAX_DEPTH} deep"
                    )
            except Unsupported as error:
                raise UnsupportedOpError([describe(op, str(error))]) from error
        return total

    def called(op: ir.Operation) -> _Inlined:
        name = attribute(op, _CALLS[op.name])
        if name not in known:
            # Still being inlined itself: recursion.
            if name in open_calls:
                raise Unsupported(f"@{name} calls itself; XLA has no recursion either")
            if name not in functions or not len(functions[name].regions[0].blocks):
                raise Unsupported(f"the module has no body for the function @{name}")
            # This check recurses into calls itself.
            if len(open_calls) >= MAX_DEPTH:
                raise Unsupported(f"calls nest more than {MAX_DEPTH} deep")
            open_calls.add(name)
            known[name] = inlined(functions[name])
            open_calls.remove(name)
        return known[name]

    open_calls.add(attribute(function, "sym_name"))
    inlined(function)


def operations(op: ir.Operation) -> Iterator[tuple[ir.Operation, int]]:
    """Yields all operations inside ``op``, each with the number of regions around it."""
    pending = [(op, 0)]
    while pending:
        parent, depth = pending.pop()
        for region in parent.regions:
            for block in region.blocks:
                for view in block.operations:
                    yield view.operation, depth + 1
                    if len(view.operation.regions):
                        pending.append((view.operation, depth + 1))
