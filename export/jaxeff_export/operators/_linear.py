"""Dense and convolutional layers of random tensors: mean and variance from one contraction.

The operators that ``jaxeff.pfp_dense`` and ``jaxeff.pfp_conv2d`` name. With weights w and inputs x

    mean = sum E[x] E[w]
    var  = sum E[x^2] Var[w] + Var[x] E[w]^2        variance form
         = sum E[x^2] E[w^2] - (E[x] E[w])^2        raw form
         = sum E[x]^2 Var[w]                        first layer: the input is deterministic

(Roth 2021, and the source's equations pfp_dense). Both sums walk the same loops, so they are one
block, whose registers hold both, and the bias is added on the way out. Input, weights and bias come
in one of several forms each; the moments of an input are computed once for all that read them.

``dense_kernel`` and ``dense_module`` exist to be measured: the textbook optimizations of the dense
operator, switched on one by one as in the source's table, and its forms, joint or separate.
Deployed networks run with the schedules of ``jaxeff_export.compiler``.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tvm
from tvm import relax, te, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, Schedule

from jaxeff_export.compiler import divisors, join_siblings
from jaxeff_export.compiler.tir import FUSES_WHAT_FOLLOWS, is_contraction

DETERMINISTIC, VARIANCE, RAW, NONE = "deterministic", "variance", "raw", "none"


def tensors_in(kind: str) -> int:
    """Counts the tensors of an operand in a form."""
    return {NONE: 0, DETERMINISTIC: 1}.get(kind, 2)


@dataclasses.dataclass(frozen=True)
class Moments:
    """A random tensor in TE.

    Attributes:
        mean: E[x].
        spread: Var[x], or E[x^2] in the raw form; None for a deterministic tensor.
    """

    mean: te.Tensor
    spread: te.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Form:
    """The forms a layer's operands come in, as the composite's attributes name them.

    Attributes:
        input: ``deterministic`` (the first layer), ``variance``, or ``raw``: E[x^2], and random
            weights come as E[w^2] too.
        weight: ``deterministic`` or ``variance``.
        bias: ``none``, ``deterministic`` or ``variance``.
    """

    input: str = VARIANCE
    weight: str = VARIANCE
    bias: str = NONE

    def __post_init__(self) -> None:
        known = {
            "input": (DETERMINISTIC, VARIANCE, RAW),
            "weight": (DETERMINISTIC, VARIANCE),
            "bias": (NONE, DETERMINISTIC, VARIANCE),
        }
        for name, forms in known.items():
            if getattr(self, name) not in forms:
                raise ValueError(f"{name} {getattr(self, name)!r} is unknown; it is one of {forms}")
        if self.input == self.weight == DETERMINISTIC:
            raise ValueError("nothing is random: input and weight are both deterministic")

    @property
    def inputs(self) -> int:
        """Counts the operands that belong to the input."""
        return tensors_in(self.input)

    def operands(self, tensors: Sequence[te.Tensor]) -> tuple[Moments, Moments, Moments | None]:
        """Sorts a composite's operands into input, weight and bias.

        Raises:
            ValueError: another number of operands than these forms have.
        """
        rest = list(tensors)
        counts = [n for kind in (self.input, self.weight, self.bias) if (n := tensors_in(kind))]
        if len(rest) != sum(counts):
            raise ValueError(f"{len(rest)} operands do not make {self}")
        moments = [Moments(rest.pop(0), rest.pop(0) if n == 2 else None) for n in counts]
        return moments[0], moments[1], moments[2] if len(moments) > 2 else None


def moments_of_product(
    form: Form, x: Sequence[tirx.Expr], w: Sequence[tirx.Expr]
) -> tuple[tirx.Expr, tirx.Expr]:
    """Computes what one pair of entries adds to the mean and to the variance of a layer.

    `x` are the scalars that `input_tensors` lists for the form; `w` is the mean of the weight, and
    its variance (E[w^2] in the raw form) if it has one. The variance form adds products of
    non-negative numbers only. In the raw form E[xw]^2 is subtracted, and the product of the means
    is computed once for both.
    """
    product = x[0] * w[0]
    # Var[x w] = w^2 Var[x]; with E[x^2] given, (E[x] w)^2 is subtracted.
    if form.weight == DETERMINISTIC:
        if form.input == RAW:
            return product, x[1] * (w[0] * w[0]) - product * product
        return product, x[1] * (w[0] * w[0])
    if form.input == DETERMINISTIC:
        return product, x[1] * w[1]
    if form.input == RAW:
        return product, x[1] * w[1] - product * product
    # For independent x and w: Var[x w] = E[x^2] Var[w] + Var[x] E[w]^2.
    return product, x[1] * w[1] + x[2] * (w[0] * w[0])


Element = Callable[[Callable[..., tirx.Expr], Sequence[tirx.Expr]], tirx.Expr]


def input_tensors(
    form: Form, x: Moments, shape: Sequence[int] | None = None, element: Element | None = None
) -> list[te.Tensor]:
    """Lists the tensors a contraction reads of its input, in ``moments_of_product``'s order.

    `shape` is the shape that is read, if it is another (a padded one); `element` reads an element
    of that shape, given a function of an index of `x`. Returns the mean, and the factor of the
    weights' variance: x^2 of a deterministic input, E[x^2] otherwise. In the variance form with
    random weights also Var[x]. With fixed weights the mean and the given spread.
    """
    mean, spread = x.mean, x.spread

    def stage(name: str, value: Callable[..., tirx.Expr], plain: te.Tensor | None) -> te.Tensor:
        if element is None:
            return plain if plain is not None else te.compute(mean.shape, value, name=name)
        return te.compute(shape, lambda *at: element(value, at), name=name)

    tensors = [stage("mean", lambda *at: mean(*at), mean)]
    if form.input == DETERMINISTIC:
        return [*tensors, stage("square", lambda *at: mean(*at) * mean(*at), None)]
    assert spread is not None
    as_given = stage("spread", lambda *at: spread(*at), spread)
    if form.input == VARIANCE and form.weight == VARIANCE:
        # Once per element of the input; in the product it would be computed for every feature.
        second = stage("second", lambda *at: mean(*at) * mean(*at) + spread(*at), None)
        return [*tensors, second, as_given]
    assert form.input in (RAW, VARIANCE)
    return [*tensors, as_given]


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
    products = _Sum((depth,), lambda at, k: (at[0], *k), lambda at, k: (*k, at[1]))
    return _layer(form, input_tensors(form, x), w, bias, (rows, columns), products)


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

    products = _Sum((*taps, depth), at_input, lambda at, k: (*k, at[3]))
    return _layer(form, tensors, w, bias, (batch, *sizes, features), products)


def _inside(top: int, left: int, height: int, width: int) -> Callable[..., tirx.Expr]:
    def element(value: Callable[..., tirx.Expr], at: Sequence[tirx.Expr]) -> tirx.Expr:
        n, h, w, c = at
        h, w = h - top, w - left
        inside = tirx.all(h >= 0, h < height, w >= 0, w < width)
        read = value(n, h, w, c)
        return tirx.if_then_else(inside, read, tirx.const(0, read.ty.dtype))

    return element


class _Sum(NamedTuple):
    """The sum of products that makes an entry of a layer's result.

    Attributes:
        extents: extents of the axes that are summed.
        at_input: indices of the input, of those of the result and of the summed axes.
        at_weight: indices of the weight.
    """

    extents: Sequence[int]
    at_input: At
    at_weight: At


def _layer(
    form: Form,
    x: Sequence[te.Tensor],
    w: Moments,
    bias: Moments | None,
    shape: Sequence[int],
    products: _Sum,
) -> list[te.Tensor]:
    """Writes both contractions, and adds the bias."""
    weights = [w.mean] if w.spread is None else [w.mean, w.spread]

    def contraction(part: int, name: str) -> te.Tensor:
        extents = enumerate(products.extents)
        axes = [te.reduce_axis((0, extent), name=f"k{i}") for i, extent in extents]

        def element(*at: tirx.Expr) -> tirx.Expr:
            terms = moments_of_product(
                form,
                [tensor(*products.at_input(at, axes)) for tensor in x],
                [tensor(*products.at_weight(at, axes)) for tensor in weights],
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


def emit_operator(
    bb: relax.BlockBuilder,
    operator: Callable[..., list[te.Tensor]],
    *tensors: relax.Expr,
    name: str,
) -> list[relax.Expr]:
    """Emits an operator of two results as one kernel."""
    result = bb.emit_te(
        operator,
        *tensors,
        primfunc_name_hint=name,
        primfunc_attrs={"op_pattern": FUSES_WHAT_FOLLOWS},
    )
    return [bb.emit(relax.TupleGetItem(result, i)) for i in range(2)]


def _dense(
    bb: relax.BlockBuilder, *tensors: relax.Expr, input: str, weight: str, bias: str
) -> list[relax.Expr]:
    form = Form(input, weight, bias)
    x, rest = list(tensors[: form.inputs]), _weights(bb, form, tensors)
    *leading, depth = (int(n) for n in x[0].ty.shape)
    columns = int(rest[0].ty.shape[1])
    # A product has one axis of rows: leading dimensions become one and are restored after it.
    if len(leading) != 1:
        flat = (math.prod(leading), depth)
        x = [bb.emit(relax.op.reshape(tensor, flat)) for tensor in x]
    results = emit_operator(bb, lambda *t: dense(form, *t), *x, *rest, name="pfp_dense")
    if len(leading) != 1:
        results = [bb.emit(relax.op.reshape(r, (*leading, columns))) for r in results]
    return results


def _conv2d(
    bb: relax.BlockBuilder, *tensors: relax.Expr, input: str, weight: str, bias: str, **window: Any
) -> list[relax.Expr]:
    form = Form(input, weight, bias)

    def operator(*operands: te.Tensor) -> list[te.Tensor]:
        return conv2d(form, *operands, **window)

    x = tensors[: form.inputs]
    return emit_operator(bb, operator, *x, *_weights(bb, form, tensors), name="pfp_conv2d")


def _weights(bb: relax.BlockBuilder, form: Form, tensors: Sequence[relax.Expr]) -> list[relax.Expr]:
    """Returns weights and bias, with E[w^2] in place of Var[w] in the raw form.

    A kernel of its own computes it. If the weights are parameters, it runs once, with the bundle.
    """
    mean, *rest = tensors[form.inputs :]
    if form.input != RAW or form.weight == DETERMINISTIC:
        return [mean, *rest]

    def second_moment(mean: te.Tensor, var: te.Tensor) -> te.Tensor:
        return te.compute(mean.shape, lambda *at: mean(*at) * mean(*at) + var(*at), name="second")

    variance, *bias = rest
    second = bb.emit_te(second_moment, mean, variance, primfunc_name_hint="second_moment")
    return [mean, second, *bias]


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "jaxeff.pfp_dense": _dense,
    "jaxeff.pfp_conv2d": _conv2d,
}


_TILE_ROWS, _TILE_COLUMNS, _TILE_DEPTH = 5, 20, 16
_UNROLLED = 8


@dataclasses.dataclass(frozen=True)
class Optimizations:
    """The optimizations that are on.

    Attributes:
        tiling: blocks of rows, columns and depth, so that operands are used again while cached.
        reordering: columns innermost instead of the sum, so that memory is read in order.
        vectorization: several columns in one instruction.
        parallelization: rows on several cores.
        unrolling: several terms of the sum in one turn of its loop.
    """

    tiling: bool = False
    reordering: bool = False
    vectorization: bool = False
    parallelization: bool = False
    unrolling: bool = False


def dense_kernel(
    rows: int,
    depth: int,
    columns: int,
    optimizations: Optimizations,
    *,
    lanes: int = 16,
    form: Form | None = None,
) -> tirx.PrimFunc:
    """Builds the joint dense operator under a choice of optimizations.

    Args:
        rows: batch size M.
        depth: inputs K.
        columns: outputs N.
        optimizations: what is on.
        lanes: float32 elements in a vector; the widest divisor of N up to it is used.
        form: form of the operands.

    Returns:
        A kernel of x (M, K) and w (K, N), each a mean and what else its form has, that writes
        mean and variance (M, N), all float32.
    """
    form = form or Form()
    x = [te.placeholder((rows, depth), name=f"x{i}") for i in range(tensors_in(form.input))]
    w = [te.placeholder((depth, columns), name=f"w{i}") for i in range(tensors_in(form.weight))]
    plain = te.create_prim_func([*x, *w, *dense(form, *x, *w)])
    sch = Schedule(tvm.IRModule({"main": join_siblings(plain, lambda block: True)}))
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    (block,) = (b for b in blocks if is_contraction(sch.get(b)))
    _schedule(sch, block, optimizations, lanes)
    return sch.mod["main"]


def _schedule(sch: Schedule, block: SBlockRV, on: Optimizations, lanes: int) -> None:
    i, j, k = sch.get_loops(block)
    outer: list[LoopRV] = []
    if on.tiling:
        (i0, i), (j0, j), (k0, k) = (
            sch.split(loop, [None, _divisor(sch, loop, size)])
            for loop, size in ((i, _TILE_ROWS), (j, _TILE_COLUMNS), (k, _TILE_DEPTH))
        )
        outer = [i0, j0, k0]
    inner = [i, k, j] if on.reordering else [i, j, k]
    sch.reorder(*outer, *inner)
    first_sum = outer[2] if outer else k
    vector = None
    if on.vectorization:
        j, vector = sch.split(j, [None, _divisor(sch, j, lanes)])
    if on.unrolling:
        k, several = sch.split(k, [None, _divisor(sch, k, _UNROLLED)])
        sch.unroll(several)
        first_sum = outer[2] if outer else k
    if vector is not None:
        sch.vectorize(vector)
    if on.parallelization:
        sch.parallel(outer[0] if outer else i)
    if on.reordering or on.tiling:  # the sum is no longer innermost
        # Sums have to start outside of all loops over their terms.
        init = sch.decompose_reduction(block, first_sum)
        if vector is not None:
            _vectorize_last(sch, init)


def _vectorize_last(sch: Schedule, block: SBlockRV) -> None:
    last = sch.get_loops(block)[-1]
    if sch.get(last).kind != tirx.ForKind.VECTORIZED:
        sch.vectorize(last)


def _divisor(sch: Schedule, loop: LoopRV, most: int) -> int:
    return max(d for d in divisors(int(sch.get(loop).extent)) if d <= most)


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
                    bb, lambda *t: dense(form, *t), *arguments, name="pfp_dense"
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
        return dense(form, *tensors)[which]

    return bb.emit_te(one, *arguments, primfunc_name_hint=("pfp_mean", "pfp_variance")[which])
