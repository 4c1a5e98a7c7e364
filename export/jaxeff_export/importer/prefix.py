"""Windows that reach from an element to the end of its dimension: cumulative sums and the like.

JAX writes these as ``reduce_window`` over the whole dimension, which taken literally is quadratic.
Here every element continues from its neighbour. Sums and products of float32 run in float64, so a
long sum is no less accurate than one that adds in pairs; 16-bit floats are rounded at every step,
as XLA does in windows.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx
from tvm.tirx import Expr

from .attributes import integers, padding
from .emitter import Emitter
from .graph import Node
from .loops import Code, View
from .scalars import ScalarOp, apply_scalar
from .scope import dtype_of

_LITERAL = 64


def running_dimension(node: Node) -> tuple[int, bool] | None:
    """The dimension along which a ``reduce_window`` runs on, and whether it runs backwards.

    Returns:
        None where the windows are of another form.
    """
    shape = node.operands[0].type.shape
    ones = [1] * len(shape)
    window = integers(node.op, "window_dimensions")
    wide = [d for d, size in enumerate(window) if size != 1]
    others = ("window_strides", "base_dilations", "window_dilations")
    if len(wide) != 1 or any(integers(node.op, name, ones) != ones for name in others):
        return None
    (d,) = wide
    n = shape[d]
    pads = padding(node.op, len(shape))
    if window[d] != n or any(pad != (0, 0) for k, pad in enumerate(pads) if k != d):
        return None
    if pads[d] not in ((n - 1, 0), (0, n - 1)):
        return None
    backwards = pads[d] == (0, n - 1)
    if backwards and node.result.type.dtype in ("float16", "bfloat16") and n <= _LITERAL:
        return None  # each window is summed forwards, and every sum rounded
    return d, backwards


def emit_running(
    e: Emitter, node: Node, operation: str, dimension: int, backwards: bool
) -> Sequence[relax.Expr]:
    """Emit a running sum, product, maximum or minimum, started from the operation's identity."""
    kind = node.result.type
    before, n, after = kind.shape[:dimension], kind.shape[dimension], kind.shape[dimension + 1 :]
    summed = operation in ("stablehlo.add", "stablehlo.multiply")
    wide = "float64" if summed and kind.dtype == "float32" else kind.dtype

    def body(code: Code, x: View, _: View, y: View) -> None:
        total = code.local(wide, *after)
        with code.loops(before) as outer, code.loop(n) as step:
            i = n - 1 - step if backwards else step
            with code.loops(after) as k:
                value = _converted(x[*outer, i, *k], wide)
                kind = ScalarOp(wide, None)
                continued = apply_scalar(operation, code, kind, total[k], value)
                total[k] = tirx.if_then_else(step == 0, value, continued)
                y[*outer, i, *k] = _converted(total[k], y.dtype)

    return e.kernel(body, node, name=operation.rpartition(".")[2])


def _converted(x: Expr, dtype: str) -> Expr:
    return tirx.Cast(dtype, x) if "float64" in (dtype, dtype_of(x)) else x
