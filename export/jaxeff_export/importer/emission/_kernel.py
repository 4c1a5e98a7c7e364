"""Sequences of compiled calls as one TIR function, for the bodies of loops.

A body is emitted like any function, fused and scheduled for any machine. The kernels that it calls
then follow each other, with buffers in place of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, s_tir, tirx

from jaxeff_export.compiler import fuse
from jaxeff_export.compiler.passes import OUTSIDE
from jaxeff_export.compiler.schedules import ANY_MACHINE, schedule_cpu
from jaxeff_export.compiler.tir import lets_to_locals, renamed
from jaxeff_export.importer.emission._in_place import KernelStep
from jaxeff_export.importer.emission._loops import CodeBuilder
from jaxeff_export.importer.emission._views import View
from jaxeff_export.importer.reading import TensorType
from jaxeff_export.importer.scalar import HELD_AS_FLOAT32


class KernelBuilder:
    """Builds a TIR function.

    Attributes:
        constants: tensors known at import time, which become parameters.
        spilled: temporaries that become further results: TVM would make float32 of them.
        outside: whether one of the kernels calls C of a library.
    """

    def __init__(self) -> None:
        self.constants: dict[tvm.ir.GenericConst, tirx.Buffer] = {}
        self.spilled: list[tirx.Buffer] = []
        self.outside = False
        self._allocated: list[tirx.Buffer] = []

    def allocate(self, kind: TensorType, name: str) -> tirx.Buffer:
        """Returns a new buffer that lives as long as the function runs."""
        buffer = declare(kind, name)
        if kind.dtype in HELD_AS_FLOAT32:
            self.spilled.append(buffer)
        else:
            self.adopt([buffer])
        return buffer

    def adopt(self, buffers: Sequence[tirx.Buffer]) -> None:
        """Takes over buffers that an inlined function allocates."""
        self._allocated += list(buffers)

    def inline(
        self, module: tvm.IRModule, inputs: Sequence[tirx.Buffer]
    ) -> tuple[list[KernelStep], list[tirx.Buffer]]:
        """Returns the kernels of a body and the buffers that hold its results.

        Args:
            module: module that ``Emitter.emit_body`` returned.
            inputs: one buffer for each parameter of its ``main``.

        Returns:
            The kernels, and one buffer for each result: an input where that is the result.
        """
        return _Body(self, _scheduled(module)).inline(inputs)

    def function(
        self, inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer], body: tirx.Stmt
    ) -> tirx.PrimFunc:
        """Returns the finished function of inputs, constants, outputs and spilled buffers."""
        root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=self._allocated)
        attributes = {"s_tir": True, "tirx.noalias": True, "tirx.is_scheduled": True}
        if self.outside:
            attributes[OUTSIDE] = True
        return tirx.PrimFunc(
            [*inputs, *self.constants.values(), *outputs, *self.spilled],
            s_tir.SBlockRealize([], True, root),
        ).with_attr(attributes)


def declare(kind: TensorType, name: str) -> tirx.Buffer:
    """Returns a buffer for a tensor of type ``kind``."""
    return tirx.decl_buffer([tirx.const(n, "int64") for n in kind.shape], kind.dtype, name)


def copy(
    source: tirx.Buffer, target: tirx.Buffer, offsets: Sequence[tirx.Expr] | None = None
) -> tirx.Stmt:
    """Copies one buffer into all of another, or into its part from ``offsets`` on."""
    code = CodeBuilder()
    part = View(code.write, target)
    if offsets is not None:
        part = part.shifted(*offsets)
    code.copy(View(code.write, source), part, source.ty.shape)
    return code.finish()


def _scheduled(module: tvm.IRModule) -> tvm.IRModule:
    # The importer knows no target, so bodies get a schedule that suits any machine.
    fused = fuse(relax.transform.LegalizeOps()(module))
    return lets_to_locals(schedule_cpu(fused, ANY_MACHINE))


class _Body:
    """Walks the bindings of one Relax function."""

    def __init__(self, kernel: KernelBuilder, module: tvm.IRModule):
        self._kernel = kernel
        self._module = module
        self._values: dict[relax.Var, tirx.Buffer | list[tirx.Buffer]] = {}
        self._steps: list[KernelStep] = []

    def inline(self, inputs: Sequence[tirx.Buffer]) -> tuple[list[KernelStep], list[tirx.Buffer]]:
        main = self._module["main"]
        self._values.update(zip(main.params, inputs, strict=True))
        for block in main.body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._binding(binding)
        results = self._value(main.body.body)
        assert isinstance(results, list)
        return self._steps, results

    def _binding(self, binding: relax.Binding) -> tirx.Buffer | list[tirx.Buffer]:
        value = binding.value
        if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir":
            return self._call(value, binding.var)
        return self._value(value)

    def _value(self, expr: relax.Expr) -> tirx.Buffer | list[tirx.Buffer]:
        if isinstance(expr, relax.Tuple):
            return [self._value(field) for field in expr.fields]  # type: ignore[misc]
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[expr.index]  # type: ignore[index]
        if isinstance(expr, tvm.ir.GenericConst):
            return self._constant(expr)
        return self._values[expr]

    def _constant(self, expr: tvm.ir.GenericConst) -> tirx.Buffer:
        constants = self._kernel.constants
        if expr not in constants:
            constants[expr] = declare(TensorType.of(expr.ty), f"constant{len(constants)}")
        return constants[expr]

    def _call(self, call: relax.Call, var: relax.Var) -> tirx.Buffer | list[tirx.Buffer]:
        name, arguments = call.args
        tuple_type = isinstance(var.ty, relax.TupleType)
        types = var.ty.fields if tuple_type else [var.ty]
        results = [self._kernel.allocate(TensorType.of(ty), name.name_hint) for ty in types]
        # Every call gets variables and buffers of its own: TIR allows one definition of each.
        function = s_tir.renew_defs(self._module[name])
        self._kernel.outside |= OUTSIDE in function.attrs
        taken = [self._value(a) for a in arguments.fields]
        place = dict(zip(function.params, [*taken, *results], strict=True))
        body = renamed(function.body, place)
        if isinstance(body, s_tir.SBlockRealize):
            self._kernel.adopt(body.block.alloc_buffers)
            body = body.block.body
        else:
            # Kernels that are written statement by statement have no block around them. They index
            # arrays as if they were flat, or hand their addresses to C: in an array that lies
            # within a kernel TVM would leave room for the elements of the first row alone, or for
            # the first of all. An address of the whole array, which nobody takes, keeps it whole.
            arrays = [a for a in (*taken, *results) if isinstance(a, tirx.Var)]
            body = tirx.SeqStmt([*(tirx.Evaluate(a.access_ptr("rw")) for a in arrays), body])
        self._steps.append(KernelStep(body, tuple(taken), tuple(results)))  # type: ignore[arg-type]
        return results if tuple_type else results[0]
