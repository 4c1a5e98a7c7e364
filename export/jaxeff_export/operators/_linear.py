"""Dense and convolutional layers of random tensors: mean and variance from one contraction.

The operators that ``jaxeff.pfp_dense`` and ``jaxeff.pfp_conv2d`` name. With weights w and inputs x

    mean = sum E[x] E[w]
    var  = sum E[x^2] Var[w] + Var[x] E[w]^2        variance form
         = sum E[x^2] E[w^2] - (E[x] E[w])^2        raw form
         = sum E[x]^2 Var[w]                        first layer: the input is deterministic

(Roth 2021, and the source's equations pfp_dense). Both sums walk the same loops, so they are one
block, whose registers hold both, and the bias is added on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te, tirx

from jaxeff_export.operators._inputs import input_tensors
from jaxeff_export.operators._layers import RAW, Form, Moments, moments_of_product

At = Callable[[Sequence[tirx.Expr], Sequence[tirx.IterVar]], Sequence[tirx.Expr]]


def dense(form: Form, *operands: te.Tensor) -> list[te.Tensor]:
    """Writes a dense layer in TE.

    Args:
        form: form of the operands.
        *operands: x (M, K), w (K, N), and a bias (N,), each a mean and what else its form has.

    Returns:
        Mean and variance, (M, N).
    """
    x, w, bias = form.operands(operands)
    (rows, depth), columns = x.mean.shape, w.mean.shape[1]
    return _layer(
        form,
        input_tensors(form, x),
        w,
        bias,
        (rows, columns),
        (depth,),
        lambda at, k: (at[0], *k),
        lambda at, k: (*k, at[1]),
    )


def conv2d(
    form: Form,
    *operands: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> list[te.Tensor]:
    """Writes a two-dimensional convolution in TE.

    Args:
        form: form of the operands.
        *operands: x (N, H, W, C), w (KH, KW, C / groups, O), and a bias (O,), each a mean and what
            else its form has.
        strides: along height and width.
        padding: low and high along the height, low and high along the width.
        dilation: dilation of the kernel, along height and width.
        groups: groups of channels that see only their own.

    Returns:
        Mean and variance, (N, H', W', O).
    """
    x, w, bias = form.operands(operands)
    batch, height, width, channels = (int(n) for n in x.mean.shape)
    kernel_height, kernel_width, depth, features = (int(n) for n in w.mean.shape)
    top, bottom, left, right = padding
    padded = (batch, height + top + bottom, width + left + right, channels)
    if any(padding):
        tensors = input_tensors(form, x, padded, _inside(top, left, height, width))
    else:
        tensors = input_tensors(form, x)
    taps = (kernel_height, kernel_width)
    sizes = [(padded[1 + d] - dilation[d] * (taps[d] - 1) - 1) // strides[d] + 1 for d in range(2)]
    per_group = features // groups

    def at_input(at: Sequence[tirx.Expr], k: Sequence[tirx.IterVar]) -> list[tirx.Expr]:
        spatial = [at[1 + d] * strides[d] + k[d] * dilation[d] for d in range(2)]
        channel = k[2] if groups == 1 else tirx.indexdiv(at[3], per_group) * depth + k[2]
        return [at[0], *spatial, channel]

    return _layer(
        form,
        tensors,
        w,
        bias,
        (batch, *sizes, features),
        (*taps, depth),
        at_input,
        lambda at, k: (*k, at[3]),
    )


def _inside(top: int, left: int, height: int, width: int) -> Callable[..., tirx.Expr]:
    def element(value: Callable[..., tirx.Expr], at: Sequence[tirx.Expr]) -> tirx.Expr:
        n, h, w, c = at
        h, w = h - top, w - left
        inside = tirx.all(h >= 0, h < height, w >= 0, w < width)
        read = value(n, h, w, c)
        return tirx.if_then_else(inside, read, tirx.const(0, read.ty.dtype))

    return element


def _layer(
    form: Form,
    x: Sequence[te.Tensor],
    w: Moments,
    bias: Moments | None,
    shape: Sequence[int],
    depth: Sequence[int],
    at_input: At,
    at_weight: At,
) -> list[te.Tensor]:
    """Writes both contractions, and adds the bias."""
    weights = [w.mean] if w.spread is None else [w.mean, w.spread]

    def contraction(part: int, name: str) -> te.Tensor:
        axes = [te.reduce_axis((0, extent), name=f"k{i}") for i, extent in enumerate(depth)]

        def element(*at: tirx.Expr) -> tirx.Expr:
            terms = moments_of_product(
                form,
                [tensor(*at_input(at, axes)) for tensor in x],
                [tensor(*at_weight(at, axes)) for tensor in weights],
            )
            return te.sum(terms[part], axis=axes)

        return te.compute(shape, element, name=name)

    # Equal loops over equal operands: the compiler joins the two into one block.
    mean, var = contraction(0, "mean"), contraction(1, "var")
    if form.input == RAW:  # the difference may round below zero
        least = tirx.const(0, var.dtype)
        var = te.compute(shape, lambda *at: tirx.max(var(*at), least), name="var_clamped")
    if bias is None:
        return [mean, var]
    return [_plus(mean, bias.mean), var if bias.spread is None else _plus(var, bias.spread)]


def _plus(total: te.Tensor, offset: te.Tensor) -> te.Tensor:
    """Adds a vector along the last axis."""
    return te.compute(total.shape, lambda *at: total(*at) + offset(at[-1]), name="plus")
