"""One operator as a module of its own, joint or separate: for tests and for studying its forms."""

from __future__ import annotations

import tvm
from tvm import relax, te

from jaxeff_export.operators import _linear as linear
from jaxeff_export.operators._composites import emit_operator
from jaxeff_export.operators._layers import Form, tensors_in


def dense_module(
    rows: int, depth: int, columns: int, form: Form | None = None, *, joint: bool = True
) -> tvm.IRModule:
    """Builds a dense layer of random tensors.

    Args:
        rows: batch size M.
        depth: inputs K.
        columns: outputs N.
        form: form of the operands.
        joint: whether one kernel computes mean and variance, or one kernel each.

    Returns:
        A module whose ``main`` takes x (M, K), w (K, N) and a bias (N,), each a mean and what else
        its form has, in float32, and returns mean and variance (M, N).
    """
    form = form or Form()
    parts = [((rows, depth), form.input), ((depth, columns), form.weight), ((columns,), form.bias)]
    shapes = [shape for shape, kind in parts for _ in range(tensors_in(kind))]
    arguments = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    bb = relax.BlockBuilder()
    with bb.function("main", arguments):
        with bb.dataflow():
            if joint:
                results = emit_operator(
                    bb, lambda *t: linear.dense(form, *t), *arguments, name="pfp_dense"
                )
            else:
                results = [_separate(bb, form, arguments, i) for i in range(2)]
            output = bb.emit_output(relax.Tuple(results))
        bb.emit_func_output(output)
    return bb.get()


def _separate(
    bb: relax.BlockBuilder, form: Form, arguments: list[relax.Var], which: int
) -> relax.Var:
    def one(*tensors: te.Tensor) -> te.Tensor:
        return linear.dense(form, *tensors)[which]

    return bb.emit_te(one, *arguments, primfunc_name_hint=("pfp_mean", "pfp_variance")[which])
