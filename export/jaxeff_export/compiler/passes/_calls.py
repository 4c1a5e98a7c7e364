"""Replaces calls of kernels by others, one binding of ``main`` after the other."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence

import tvm
from tvm import ir, relax, tirx

from jaxeff_export.compiler.passes._lifting import sources_of, stays_small
from jaxeff_export.compiler.tir import FUSES_WHAT_FOLLOWS


@dataclasses.dataclass(frozen=True)
class Other:
    """A kernel that takes some of its operands in another form, given by a number of columns."""

    kernel: tirx.PrimFunc
    exchanged: list[int]
    columns: int


FindOther = Callable[[tirx.PrimFunc, Sequence[int]], Other | None]


class CallRewriter(abc.ABC):
    """Replaces calls of kernels by calls of kernels that take operands in another form.

    Args:
        mod: a module of kernels (operators are legalised); it is not changed.
        parameters: number of leading arguments of ``main`` that are parameters.
        other: finds the kernel to call instead of a kernel, if there is one, given which of its
            operands depend on parameters alone.
    """

    def __init__(self, mod: tvm.IRModule, parameters: int, other: FindOther) -> None:
        self._mod = mod
        self._other = other
        self._sources = sources_of(mod["main"], parameters)
        self._builder = relax.BlockBuilder(mod)
        self._bindings: list[relax.VarBinding] = []
        self._others: dict[tuple[relax.Var, int], relax.Var] = {}

    def module(self) -> tvm.IRModule:
        """Rewrites the module: same results, operands computed on the way for `lift_parameters`."""
        main = self._mod["main"]
        (block,) = main.body.blocks
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, ir.Call) and call.op == ir.Op.get("relax.call_tir"):
                binding = relax.VarBinding(binding.var, self._exchanged(call, binding.var.ty))
            self._bindings.append(binding)
        body = relax.SeqExpr([relax.DataflowBlock(self._bindings)], main.body.body)
        result = self._builder.get()
        result["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return result

    def _exchanged(self, call: ir.Call, result: ir.Type) -> ir.Call:
        """Returns the call to make instead, or the same call."""
        callee, arguments = call.args[:2]
        operands = list(arguments.fields)
        weights = [i for i, operand in enumerate(operands) if stays_small(operand, self._sources)]
        found = self._other(self._mod[callee], weights)
        if found is None:
            return call
        for i in found.exchanged:
            operands[i] = self._made(operands[i], found.columns)
        kernel = found.kernel
        # The rewritten kernel is still to be fused with what follows it, such as an activation.
        if "op_pattern" not in kernel.attrs:
            kernel = kernel.with_attr("op_pattern", FUSES_WHAT_FOLLOWS)
        name = self._builder.add_func(kernel, callee.name_hint)
        results = list(result.fields) if isinstance(result, relax.TupleType) else result
        return relax.call_tir(name, relax.Tuple(operands), results)

    def _made(self, array: relax.Var, columns: int) -> relax.Var:
        """Lays out an array, once for all calls that take it."""
        if (array, columns) not in self._others:
            self._others[array, columns] = self._laid_out(array, columns)
        return self._others[array, columns]

    @abc.abstractmethod
    def _laid_out(self, array: relax.Var, columns: int) -> relax.Var:
        """Lays out an array as the other kernel takes it."""

    def _bound(self, name: str, value: relax.Expr, like: relax.Var, shape: list[int]) -> relax.Var:
        """Binds a value of another array's dtype to a name."""
        var = relax.DataflowVar(name, relax.TensorType(shape, like.ty.dtype))
        self._bindings.append(relax.VarBinding(var, value))
        return var
