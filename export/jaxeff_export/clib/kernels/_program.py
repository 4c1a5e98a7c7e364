"""Program of a library: calls of kernels, one after the other, on arrays of known sizes.

Loops and branches of the function lie within kernels (see `jaxeff_export.importer.rules`), so a
program is a straight line.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from jaxeff_export.clib.objects import CLibraryError


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """A call of a kernel.

    Attributes:
        kernel: the name of the kernel.
        arguments: the arrays it reads; state among them it also writes.
        results: the arrays it writes.
    """

    kernel: str
    arguments: tuple[int, ...]
    results: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class KernelProgram:
    """Calls of kernels on numbered arrays.

    Attributes:
        sizes: sizes of all arrays, in bytes.
        operands: the arrays that hold what is bound: parameters, and what is derived from them.
        inputs: the arrays that a call is given.
        constants: the arrays that the function itself holds, with their values.
        outputs: the arrays that are results.
        calls: what is done, in order.
    """

    sizes: tuple[int, ...]
    operands: tuple[int, ...]
    inputs: tuple[int, ...]
    constants: tuple[tuple[int, np.ndarray], ...]
    outputs: tuple[int, ...]
    calls: tuple[KernelCall, ...]


def with_views(mod: tvm.IRModule) -> tvm.IRModule:
    """Makes views of what only changes its shape, and drops the kernels that this leaves unused."""
    passes = [relax.transform.RewriteDataflowReshape(), relax.transform.DeadCodeElimination()]
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(mod)


def program_of(mod: tvm.IRModule, bound: int) -> KernelProgram:
    """Reads the program of a module.

    Args:
        mod: module that `with_views` returned; its ``main`` calls kernels.
        bound: number of its leading arguments that are bound.

    Raises:
        CLibraryError: if a size is not known, or ``main`` does anything but call kernels.
    """
    return _ArrayNumbering(mod["main"]).read(bound)


class _ArrayNumbering:
    """Numbers arrays; a view of an array has its number."""

    def __init__(self, main: relax.Function) -> None:
        self._main = main
        self._sizes: list[int] = []
        self._values: dict[relax.Var, int | list[int]] = {}
        self._constants: list[tuple[int, np.ndarray]] = []
        self._calls: list[KernelCall] = []

    def read(self, bound: int) -> KernelProgram:
        arguments = [self._new(parameter.ty, parameter.name) for parameter in self._main.params]
        self._values.update(zip(self._main.params, arguments, strict=True))
        for block in self._main.body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._bound(binding)
        outputs = self._of(self._main.body.body)
        return KernelProgram(
            sizes=tuple(self._sizes),
            operands=tuple(arguments[:bound]),
            inputs=tuple(arguments[bound:]),
            constants=tuple(self._constants),
            outputs=tuple(outputs if isinstance(outputs, list) else [outputs]),
            calls=tuple(self._calls),
        )

    def _bound(self, binding: relax.Binding) -> int | list[int]:
        value = binding.value
        if not isinstance(value, tvm.ir.Call):
            return self._of(value)
        name = getattr(value.op, "name", str(value.op))
        # The same bytes in the same order: the view has the number of what it views.
        if name == "relax.reshape":
            return self._of(value.args[0])
        # State: the kernel writes over the array that it is given first.
        if name == "relax.call_tir_inplace":
            read = [self._one(argument) for argument in value.args[1]]
            self._calls.append(KernelCall(value.args[0].name_hint, tuple(read), ()))
            return read[0]
        # A third argument would be sizes that only a call tells.
        if name != "relax.call_tir" or len(value.args) != 2:
            raise CLibraryError(
                f"{binding.var.name} is computed by {name}, which has no static kernel; "
                "a C library calls kernels of fixed shapes alone"
            )
        # The type of the results is the only place that says how many arrays the kernel writes.
        made_of, name = value.ty_args[0], binding.var.name
        several = isinstance(made_of, relax.TupleType)
        made = [self._new(kind, name) for kind in (made_of.fields if several else [made_of])]
        read = [self._one(argument) for argument in value.args[1]]
        self._calls.append(KernelCall(value.args[0].name_hint, tuple(read), tuple(made)))
        return made if several else made[0]

    def _of(self, value: relax.Expr) -> int | list[int]:
        match value:
            case relax.Var():
                return self._values[value]
            case relax.Tuple():
                return [self._one(field) for field in value.fields]
            case relax.TupleGetItem():
                return self._several(value.tuple_value)[value.index]
            case tvm.ir.expr.GenericConst():
                number = self._new(value.ty, "a constant")
                self._constants.append((number, value.value.numpy()))
                return number
        raise CLibraryError(f"a {type(value).__name__} has no place in a C library")

    def _one(self, value: relax.Expr) -> int:
        found = self._of(value)
        if isinstance(found, list):
            raise CLibraryError("a kernel takes a tuple, which has no place in a C library")
        return found

    def _several(self, value: relax.Expr) -> list[int]:
        found = self._of(value)
        return found if isinstance(found, list) else [found]

    def _new(self, kind: relax.Type, name: str) -> int:
        shape: Sequence[Any] = getattr(getattr(kind, "shape", None), "values", [None])
        if not all(isinstance(n, tirx.IntImm) for n in shape):
            raise CLibraryError(
                f"{name} has no fixed shape; a C library plans its memory in advance: deploy for a "
                "fixed batch, without any_batch"
            )
        # Booleans are stored as a byte each.
        bits = tvm.DataType(str(kind.dtype)).bits
        self._sizes.append(math.prod(int(n) for n in shape) * -(-int(bits) // 8))
        return len(self._sizes) - 1
