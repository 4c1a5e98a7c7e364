"""Branches and loops as nodes of ONNX, which hold graphs of their own.

A graph inside a node reads what is outside by name, so that only what an iteration changes is
handed to the next. Constants stay in the file's own list, wherever they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxeff.core import ClosedJaxpr
from jaxeff.program.ir import Scan, While
from jaxeff_export.onnx_files._graph import OnnxGraph, Value, integers

Write = Callable[[OnnxGraph, ClosedJaxpr, Sequence[Value]], list[Value]]
"""Writes the equations of a jaxpr for values of its inputs."""

_TURN = np.dtype(np.int64), ()  # the number of an iteration
_GOES_ON = np.dtype(np.bool_), ()


def branched(g: OnnxGraph, eqn: Any, values: list[Value], write: Write) -> list[Value]:
    """Writes a `cond` or `switch`: a branch of which only one is computed."""
    which, given = values[0], values[1:]
    branches = eqn.params["branches"]
    if not isinstance(which, str):  # of parameters alone
        return write(g, branches[int(np.clip(which, 0, len(branches) - 1))], given)
    kinds = [(var.aval.dtype, var.aval.shape) for var in eqn.outvars]

    def chosen(first: int) -> list[Value]:
        """Chooses among the branches from one on: it, or one of those after it."""
        if first == len(branches) - 1:
            return write(g, branches[first], given)
        test = g.emit("LessOrEqual", [which, np.asarray(first, np.int32)])
        parts = {
            "then_branch": g.inside([], kinds, lambda _: write(g, branches[first], given)),
            "else_branch": g.inside([], kinds, lambda _: chosen(first + 1)),
        }
        return [*g.emit_all("If", [test], len(kinds), **parts)]

    return chosen(0)


def repeated(g: OnnxGraph, loop: While[Value], write: Write) -> list[Value]:
    """Writes a `while_loop`; the test of what follows stands at the end of each iteration."""
    kinds = _kinds(loop.body.out_avals)

    def body(names: list[str]) -> list[Value]:
        carry, _ = loop.split(write(g, loop.body, loop.inputs(names[2:])))
        return [*write(g, loop.test, loop.test_inputs(carry)), *carry]

    first = write(g, loop.test, loop.test_inputs(loop.carry))
    part = g.inside([_TURN, _GOES_ON, *kinds], [_GOES_ON, *kinds], body)
    return [*g.emit_all("Loop", ["", *first, *loop.carry], len(kinds), body=part)]


def scanned(g: OnnxGraph, scan: Scan[Value], write: Write) -> list[Value]:
    """Writes a `scan` as a loop of a known number of iterations."""
    kinds = _kinds(scan.body.out_avals)
    last = np.asarray(scan.length - 1, np.int64)

    def body(names: list[str]) -> list[Value]:
        turn, goes_on, *carry = names
        at = g.emit("Sub", [last, turn]) if scan.reverse else turn
        row: list[Value] = [g.emit("Gather", [x, at], axis=0) for x in scan.xs]
        return [goes_on, *write(g, scan.body, scan.inputs(carry, row))]

    carried = kinds[: len(scan.carry)]
    part = g.inside([_TURN, _GOES_ON, *carried], [_GOES_ON, *kinds], body)
    count: list[Value] = [np.asarray(scan.length, np.int64), np.asarray(True)]
    made = g.emit_all("Loop", [*count, *scan.carry], len(kinds), body=part)
    carry, stacked = scan.split(made)
    if scan.reverse:
        # Rows were stacked in the order of iterations, the last row first.
        back = [integers([number]) for number in (-1, np.iinfo(np.int64).min, 0, -1)]
        stacked = [g.emit("Slice", [rows, *back]) for rows in stacked]
    return [*carry, *stacked]


def _kinds(avals: Sequence[Any]) -> list[tuple[Any, tuple[int, ...]]]:
    return [(aval.dtype, aval.shape) for aval in avals]
