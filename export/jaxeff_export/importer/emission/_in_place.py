"""Kernels that may write over the state that they read.

The last kernels of a loop's body often compute the next state from the old, element by element, or
change a few elements of it. Writing the result over the old state saves a copy, which for a
scatter is most of the work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from jaxeff_export.compiler.tir import statements_of


@dataclasses.dataclass
class KernelStep:
    """One kernel of a body: its statement, and the buffers it takes and fills."""

    statement: tirx.Stmt
    reads: tuple[tirx.Buffer, ...]
    writes: tuple[tirx.Buffer, ...]


def update_in_place(
    steps: Sequence[KernelStep], results: Sequence[tirx.Buffer], state: Sequence[tirx.Buffer | None]
) -> tuple[list[KernelStep], list[bool]]:
    """Makes steps write the next state over the old where no result changes.

    Args:
        steps: the kernels of a body, in order.
        results: what the body returns.
        state: for each result the buffer that it replaces, None where it replaces none.

    Returns:
        The steps, in an order in which they may run, and for each result whether it has been
        written over its state.
    """
    # Steps whose results no other step reads run last, after all that read the old state. They
    # keep their order, so an overwritten state can only be missed by a later one of them.
    read = {buffer for step in steps for buffer in step.reads}
    last = [not read.intersection(step.writes) for step in steps]  # these may run at the end
    renamed: dict[tirx.Buffer, tirx.Buffer] = {}
    for result, old in zip(results, state, strict=True):
        # A state that is itself returned must survive; a result returned twice has two places.
        if old is None or old in results or results.count(result) > 1:
            continue
        at = next((k for k, step in enumerate(steps) if result in step.writes), None)
        if at is None or not last[at] or not old.ty.shape:  # copying a scalar costs nothing
            continue
        read_later = any(last[k] and old in steps[k].reads for k in range(at + 1, len(steps)))
        if not read_later and _may_alias(steps[at].statement, old, result):
            renamed[result] = old
    moved = [step for step, is_last in zip(steps, last, strict=True) if not is_last]
    for step, is_last in zip(steps, last, strict=True):
        if is_last:
            moved.append(dataclasses.replace(step, statement=_renamed(step.statement, renamed)))
    return moved, [result in renamed for result in results]


def _may_alias(statement: tirx.Stmt, source: tirx.Buffer, target: tirx.Buffer) -> bool:
    """Tells whether an element of ``source`` is read only where ``target``'s is written."""
    # Every load of the source has to be accounted for: one elsewhere could come after a write.
    fine = 0
    leaves = [block for block in _blocks(statement) if len(_blocks(block.body)) == 0]
    for block in leaves:
        loads = _loads(block.body, source)
        stores = _stores(block.body, target)
        # Iterations of a spatial block touch different elements, so equal indices are enough.
        # A reduction reads its inputs again after it has stored a partial result.
        spatial = all(v.iter_type == tirx.IterVar.DataPar for v in block.iter_vars)
        overwritten = _reads_after_writing(block.body, source, target)
        if stores and spatial and block.init is None and not overwritten:
            fine += sum(all(_same(load, store) for store in stores) for load in loads)
    inside = sum(len(_stores(block.body, target)) for block in leaves)
    stores = _stores(statement, target)
    if inside < len(stores):  # a kernel without blocks, as those that copy and then change
        fine += sum(
            isinstance(s.value, tvm.ir.TensorLoad)
            and s.value.source.same_as(source)
            and _same(s.value, s)
            for s in stores
        )
    return fine == len(_loads(statement, source))


def _reads_after_writing(body: tirx.Stmt, source: tirx.Buffer, target: tirx.Buffer) -> bool:
    """Tells whether a block of several stores reads one buffer after it has written another."""
    statements = statements_of(body)
    first = next((i for i, s in enumerate(statements) if _stores(s, target)), len(statements))
    return any(_loads(statement, source) for statement in statements[first + 1 :])


def _same(load: tvm.ir.TensorLoad, store: tirx.BufferStore) -> bool:
    pairs = zip(load.indices, store.indices, strict=True)
    return all(tvm_ffi.structural_equal(a, b) for a, b in pairs)


def _blocks(tree: object) -> list[s_tir.SBlock]:
    found: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(tree, (s_tir.SBlock, found.append))
    return found


def _loads(tree: object, buffer: tirx.Buffer) -> list[tvm.ir.TensorLoad]:
    found: list[tvm.ir.TensorLoad] = []
    tvm_ffi.structural_walk(tree, (tvm.ir.TensorLoad, found.append))
    return [load for load in found if load.source.same_as(buffer)]


def _stores(tree: object, buffer: tirx.Buffer) -> list[tirx.BufferStore]:
    found: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(tree, (tirx.BufferStore, found.append))
    return [store for store in found if store.buffer.same_as(buffer)]


def _renamed(statement: tirx.Stmt, renamed: dict[tirx.Buffer, tirx.Buffer]) -> tirx.Stmt:
    """Redirects writes to other buffers, and drops copies of a buffer to itself that result."""

    def clean(store: tirx.BufferStore) -> tirx.Stmt:
        value = store.value
        if (
            isinstance(value, tvm.ir.TensorLoad)
            and value.source.same_as(store.buffer)
            and _same(value, store)
        ):
            return tirx.Evaluate(tirx.const(0, "int32"))
        return store

    if not renamed:
        return statement
    other = tvm_ffi.structural_map(statement, (tirx.Var, lambda v: renamed.get(v, v)))
    return tvm_ffi.structural_map(other, (tirx.BufferStore, clean))
