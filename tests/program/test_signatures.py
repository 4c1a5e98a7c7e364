"""Signatures of equations against what their results depend on, entry by entry.

One entry of an operand after the other is replaced, and the results that change are those that
depend on it. Every primitive with a row has an example here.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxeff.core import EXPANSIONS, jax_internals, stack_p, tile_p
from jaxeff.core import primitives as p
from jaxeff.program.ir import FACTS, Facts, OperationFamily, Relation, row_axes, signature
from jaxeff.program.ir import primitives as prim
from jaxeff.program.ir._signature import OPAQUE, ROWS
from tests.program.test_known_primitives import installed

F, I = jnp.float32, jnp.int32  # noqa: E741


def _convolution(**settings):
    settings = {"window_strides": (1,), "padding": ((0, 0),)} | settings
    return lambda x, w: lax.conv_general_dilated(x, w, **settings)


def _reduce_window(x, init, op, size=(1, 2), stride=(1, 1), pad=((0, 0), (0, 0)), **dilations):
    return lax.reduce_window(x, init, op, size, stride, pad, **dilations)


def _gather(x, i):
    numbers = lax.GatherDimensionNumbers((0, 2), (1,), (1,))
    return lax.gather(x, i, numbers, (2, 1, 2))


def _batched_gather(x, i):
    numbers = lax.GatherDimensionNumbers((2,), (1,), (1,), (0,), (0,))
    return lax.gather(x, i, numbers, (1, 1, 2))


def _scatter(name):
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    return lambda x, i, u: getattr(lax, name)(x, i, u, numbers)


def _batched_scatter(x, i, u):
    numbers = lax.ScatterDimensionNumbers((2,), (1,), (1,), (0,), (0,))
    return lax.scatter_add(x, i, u, numbers)


def _unpooled(x, source):
    return jax.vjp(lambda x: _reduce_window(x, -jnp.inf, lax.max), x)[1](source)[0]


def _pooled_slope(x, t):
    return jax.jvp(lambda x: _reduce_window(x, -jnp.inf, lax.max, stride=(1, 2)), (x,), (t,))[1]


_OF_TWO = [
    "atan2", "add", "div", "max", "min", "mul", "nextafter", "pow", "rem", "sub", "eq", "ne", "ge",
    "gt", "le", "lt", "igamma", "igammac", "zeta", "polygamma", "complex",
]  # fmt: skip
_OF_INTEGERS = [
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "bitwise_and", "bitwise_or",
    "bitwise_xor",
]  # fmt: skip
_OF_ONE = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i0e", "bessel_i1e", "cbrt",
    "ceil", "cos", "cosh", "digamma", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor",
    "is_finite", "lgamma", "log", "log1p", "logistic", "neg", "round", "rsqrt", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "tan", "tanh",
]  # fmt: skip
_OF_MATRICES = ["eig", "hessenberg", "lu", "qr", "schur", "svd", "tridiagonal"]

# By name: the function, and the shapes (and types) of its arrays.
EXAMPLES = {
    **{name: (getattr(lax, name), (2, 3)) for name in _OF_ONE},
    **{name: (getattr(lax.linalg, name), (2, 3, 3)) for name in _OF_MATRICES},
    **{name: (getattr(lax, name), (2, 3), (2, 3)) for name in _OF_TWO if hasattr(lax, name)},
    **{name: (getattr(lax, name), ((2, 3), I), ((2, 3), I)) for name in _OF_INTEGERS},
    "a row beside an array": (lambda x, y: p.add_p.bind(x, y), (2, 3), (1, 3)),
    "add_jaxvals": (lambda x, y: p.add_jaxvals_p.bind(x, y), (2, 3), (2, 3)),
    "clamp": (lax.clamp, (2, 3), (2, 3), (2, 3)),
    "clamp by scalars": (lax.clamp, (), (2, 3), ()),
    "clz": (lax.clz, ((2, 3), I)),
    "population_count": (lax.population_count, ((2, 3), I)),
    "bitwise_not": (lax.bitwise_not, ((2, 3), I)),
    "conj": (lambda x: lax.conj(lax.complex(x, x)), (2, 3)),
    "real": (lambda x: lax.real(lax.complex(x, x)), (2, 3)),
    "imag": (lambda x: lax.imag(lax.complex(x, x)), (2, 3)),
    "regularized_incomplete_beta": (lax.betainc, (2, 3), (2, 3), (2, 3)),
    "convert_element_type": (lambda x: lax.convert_element_type(x, jnp.float16), (2, 3)),
    "copy": (lambda x: p.copy_p.bind(x), (2, 3)),
    "integer_pow": (lambda x: lax.integer_pow(x, 3), (2, 3)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 10), (2, 3)),
    "select_n": (lambda c, x, y: p.select_n_p.bind(c > 1, x, y), (2, 3), (2, 3), (2, 3)),
    "device_put": (lambda x: jax.device_put(x), (2, 3)),
    "name": (lambda x: p.name_p.bind(x, name="a"), (2, 3)),
    "broadcast_in_dim": (lambda x: lax.broadcast_in_dim(x, (4, 3, 2), (2, 1)), (2, 3)),
    "broadcast along an axis": (lambda x: lax.broadcast_in_dim(x, (2, 3), (0, 1)), (2, 1)),
    "transpose": (lambda x: lax.transpose(x, (2, 0, 1)), (2, 3, 4)),
    "squeeze": (lambda x: lax.squeeze(x, (1,)), (2, 1, 3)),
    "a merging reshape": (lambda x: lax.reshape(x, (2, 12)), (2, 3, 4)),
    "a splitting reshape": (lambda x: lax.reshape(x, (2, 3, 1, 4)), (2, 12)),
    "a regrouping reshape": (lambda x: lax.reshape(x, (3, 4, 2)), (4, 3, 2)),
    "tile": (lambda x: jnp.tile(x, (1, 2)), (2, 3)),
    "rev": (lambda x: lax.rev(x, (1,)), (2, 3)),
    "slice": (lambda x: lax.slice(x, (0, 1), (2, 6), (1, 2)), (2, 6)),
    "split": (lambda x: lax.split(x, (1, 3), 1), (2, 4)),
    "pad": (lambda x, c: lax.pad(x, c, ((0, 0, 0), (1, 2, 1))), (2, 3), ()),
    "a cutting pad": (lambda x, c: lax.pad(x, c, ((0, 0, 0), (2, -1, 0))), (2, 3), ()),
    "concatenate": (lambda *x: lax.concatenate(x, 1), (2, 3), (2, 1), (2, 2)),
    "stack": (lambda *x: stack_p.bind(*x, axis=1), (2, 3), (2, 3)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (0, i), (2, 2)), (2, 4), ((), I)),
    "dynamic_update_slice": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i)), (2, 4), (2, 2), ((), I),
    ),
    "gather": (_gather, (2, 3, 2), ((4, 1), I)),
    "a batched gather": (_batched_gather, (3, 3, 2), ((3, 4, 1), I)),
    "scatter": (_scatter("scatter"), (4, 3), ((2, 1), I), (2, 3)),
    "scatter_add": (_scatter("scatter_add"), (4, 3), ((6, 1), I), (6, 3)),
    "scatter_mul": (_scatter("scatter_mul"), (4, 3), ((6, 1), I), (6, 3)),
    "scatter_max": (_scatter("scatter_max"), (4, 3), ((6, 1), I), (6, 3)),
    "scatter_min": (_scatter("scatter_min"), (4, 3), ((6, 1), I), (6, 3)),
    "a batched scatter": (_batched_scatter, (3, 3, 2), ((3, 4, 1), I), (3, 4, 2)),
    "sort": (lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), (2, 4), (2, 4)),
    "top_k": (lambda x: lax.top_k(x, 2), (2, 4)),
    "approx_top_k": (lambda x: lax.approx_max_k(x, 2), (2, 4)),
    "reduce_sum": (lambda x: p.reduce_sum_p.bind(x, axes=(1,), out_sharding=None), (2, 3, 2)),
    "reduce_max": (lambda x: lax.reduce_max(x, (0, 2)), (2, 3, 2)),
    "reduce_min": (lambda x: lax.reduce_min(x, (0, 2)), (2, 3, 2)),
    "reduce_prod": (lambda x: lax.reduce_prod(x, (1,)), (2, 3)),
    "reduce_and": (lambda x: lax.reduce_and(x > 0, (1,)), (2, 3)),
    "reduce_or": (lambda x: lax.reduce_or(x, (1,)), ((2, 3), I)),
    "reduce_xor": (lambda x: lax.reduce_xor(x, (1,)), ((2, 3), I)),
    "argmax": (lambda x: lax.argmax(x, 1, I), (2, 3)),
    "argmin": (lambda x: lax.argmin(x, 1, I), (2, 3)),
    "reduce": (lambda x, c: lax.reduce(x, c, lambda a, b: a * b + a + b, (1,)), (2, 3), ()),
    "cumsum": (lambda x: lax.cumsum(x, 1), (2, 4)),
    "cumprod": (lambda x: lax.cumprod(x, 1, reverse=True), (2, 4)),
    "cummax": (lambda x: lax.cummax(x, 1), (2, 4)),
    "cummin": (lambda x: lax.cummin(x, 1, reverse=True), (2, 4)),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), (2, 4)),
    "reduce_window_sum": (lambda x: _reduce_window(x, 0.0, lax.add, pad=((0, 0), (1, 1))), (2, 4)),
    "reduce_window_max": (lambda x: _reduce_window(x, -jnp.inf, lax.max, stride=(1, 2)), (2, 4)),
    "reduce_window_min": (
        lambda x: _reduce_window(x, jnp.inf, lax.min, window_dilation=(1, 2)), (2, 5),
    ),
    "reduce_window": (lambda x, c: _reduce_window(x, c, lambda a, b: a * b + a + b), (2, 4), ()),
    "select_and_scatter_add": (_unpooled, (2, 4), (2, 3)),
    "select_and_gather_add": (_pooled_slope, (2, 4), (2, 4)),
    "dot_general": (
        lambda x, y: lax.dot_general(x, y, (((1,), (2,)), ((0,), (1,)))), (2, 3, 2), (4, 2, 3),
    ),
    "conv_general_dilated": (_convolution(), (2, 2, 5), (3, 2, 2)),
    "a padded convolution": (_convolution(padding=((1, 2),)), (2, 2, 4), (3, 2, 2)),
    "a strided convolution": (_convolution(window_strides=(2,)), (2, 2, 6), (3, 2, 2)),
    "a dilated convolution": (_convolution(rhs_dilation=(2,)), (2, 2, 6), (3, 2, 2)),
    "a transposed convolution": (_convolution(lhs_dilation=(2,)), (2, 2, 4), (3, 2, 2)),
    "a grouped convolution": (_convolution(feature_group_count=2), (2, 4, 5), (6, 2, 2)),
    "a depthwise convolution": (_convolution(feature_group_count=3), (2, 3, 5), (3, 1, 2)),
    "a convolution of places": (_convolution(), (2, 2, 5), (3, 2, 1)),
    "groups of a batch": (_convolution(batch_group_count=2), (4, 2, 5), (6, 2, 2)),
    "fft": (lambda x: lax.fft(lax.complex(x, x), "fft", (3,)), (2, 3)),
    "cholesky": (lambda x: lax.linalg.cholesky(x + np.float32([[[3, 0], [0, 3]]])), (2, 2, 2)),
    "igamma_grad_a": (lambda a, x: p.igamma_grad_a_p.bind(a, x), (2, 3), (2, 3)),
    "eigh": (lambda x: lax.linalg.eigh(x, symmetrize_input=False), (2, 2, 2)),
    "householder_product": (lax.linalg.householder_product, (2, 3, 2), (2, 2)),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), (2, 2, 2), (2, 2, 3),
    ),
    "a solution on the right": (lax.linalg.triangular_solve, (2, 3, 3), (2, 2, 3)),
    "tridiagonal_solve": (lax.linalg.tridiagonal_solve, (2, 3), (2, 3), (2, 3), (2, 3, 2)),
    "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x, I), (2, 3)),
    "a narrowing bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.int16), (2, 3)),
    "a widening bitcast": (lambda x: lax.bitcast_convert_type(x, F), ((2, 3, 2), jnp.int16)),
    "iota": (lambda: lax.broadcasted_iota(I, (2, 3), 1),),
}  # fmt: skip


def _arrays(shapes, seed):
    rng = np.random.default_rng(seed)
    for shape in shapes:
        shape, dtype = shape if shape and isinstance(shape[0], tuple) else (shape, F)
        whole = jnp.issubdtype(dtype, jnp.integer)
        yield jnp.asarray(
            rng.integers(0, 3, shape) if whole else rng.uniform(0.2, 0.8, shape), dtype
        )


def _equations(f, arrays):
    """Yields the equations of a function, and the values of their operands."""
    closed = jax.make_jaxpr(f)(*arrays)
    pending = []

    def read(jaxpr, consts, values):
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True))
        look = lambda a: a.val if isinstance(a, jax_internals.Literal) else known[a]  # noqa: E731
        for eqn in jaxpr.eqns:
            operands = [look(a) for a in eqn.invars]
            bodies = jax_internals.sub_jaxprs(eqn)
            if signature(eqn).family is OperationFamily.CALL:
                results = read(bodies[0].jaxpr, bodies[0].consts, operands)
            else:
                pending.append((eqn, operands))
                results = jax_internals.bind(eqn, *operands)
            known.update(zip(eqn.outvars, results, strict=True))
        return [look(a) for a in jaxpr.outvars]

    read(closed.jaxpr, closed.consts, arrays)
    return pending


def _replacements(eqn, dtype):
    if jnp.issubdtype(dtype, bool):
        return [True, False]
    if jnp.issubdtype(dtype, jnp.integer):
        return [0, 1, 2, 13]
    return [0.05, 0.95, -3.3, 3.7, *([np.inf] if eqn.primitive is p.is_finite_p else [])]


def _differ(a, b):
    # A loop that runs until all entries have converged leaves others a little better, too.
    a, b = (x.astype(np.float64) if x.dtype != bool and x.dtype.kind != "c" else x for x in (a, b))
    return ~np.isclose(a, b, rtol=1e-5, atol=1e-7, equal_nan=True)


def dependence(eqn, operands):
    """Returns for each operand and result which entries change, `[*result, *operand]`."""
    run = jax.jit(lambda *values: jax_internals.bind(eqn, *values))
    operands = [np.asarray(x) for x in operands]
    before = [np.asarray(y) for y in run(*operands)]
    found = []
    for number, x in enumerate(operands):
        changed = [np.zeros(y.shape + x.shape, bool) for y in before]
        for at in np.ndindex(x.shape):
            for value in _replacements(eqn, x.dtype):
                other = x.copy()
                other[at] = value
                after = run(*operands[:number], other, *operands[number + 1 :])
                for mask, y, z in zip(changed, before, after, strict=True):
                    mask[(..., *at)] |= _differ(y, np.asarray(z))
        found.append(changed)
    return found


def _onto(mask, rank, results, axes):
    """Projects a mask `[*result, *operand]` on some axes of both, as a matrix."""
    kept = [*results, *(rank + a for a in axes)]
    others = tuple(a for a in range(mask.ndim) if a not in kept)
    moved = mask.any(others).transpose(np.argsort(np.argsort(kept)))
    return moved.reshape(int(np.prod([mask.shape[a] for a in results])), -1)


def _may(one, rows, columns):
    """Returns which entries of an operand's axis a result's may be made of."""
    may = np.zeros((rows, columns), bool)
    if one.window is not None:
        size, stride, dilation, base, (low, _) = one.window
        for row, tap in itertools.product(range(rows), range(size)):
            at = row * stride + tap * dilation - low
            if at % base == 0 and 0 <= at // base < columns:
                may[row, at // base] = True
    elif one.part is not None:
        start, stop, step, at, apart = one.part
        for k, taken in enumerate(range(start, stop, step)):
            may[at + k * apart, taken] = True
    else:
        may |= np.eye(rows, columns, dtype=bool)
    return may


def check_sound(eqn, found):
    """What doesn't depend by the signature, doesn't."""
    of = signature(eqn)
    for operand, masks in zip(of.operands, found, strict=True):
        for along, mask in zip(operand.along, masks, strict=True):
            if along is None:
                assert not mask.any()
                continue
            rank = len(along)
            assert rank + len(operand_axes(mask, rank)) == mask.ndim
            for b, one in enumerate(along):
                if one.relation in {Relation.MERGED, Relation.SPLIT}:
                    together = [i for i, other in enumerate(along) if other == one]
                    pairs = _onto(mask, rank, together, one.axes)
                    assert not (pairs & ~np.eye(*pairs.shape, dtype=bool)).any(), (b, one)
                elif one.relation is Relation.PLACED and one.part is None:
                    pairs = _onto(mask, rank, [b], one.axes)
                    assert max(pairs.sum(0).max(), pairs.sum(1).max()) <= 1, (b, one)
                elif one.relation is Relation.PLACED and not one.axes:
                    assert not np.delete(_onto(mask, rank, [b], []), one.part.at).any()
                elif one.relation in {Relation.SAME, Relation.PLACED, Relation.WINDOWED}:
                    pairs = _onto(mask, rank, [b], one.axes)
                    assert not (pairs & ~_may(one, *pairs.shape)).any(), (b, one)
        assert set(_combined(masks, operand)) <= set(operand.combined)
    ranks = [len(v.aval.shape) for v in eqn.outvars]
    for i, j in itertools.combinations(range(len(found)), 2):
        assert of.meet(i, j) or not _meet(found[i], found[j], ranks), (i, j)


def operand_axes(mask, rank):
    """Returns the axes of a mask that are the operand's."""
    return range(rank, mask.ndim)


def _combined(masks, operand):
    """Yields the axes along which one result depends on several entries of an operand."""
    for mask, along in zip(masks, operand.along, strict=True):
        rank = len(along or ())
        for axis in operand_axes(mask, rank) if along is not None else ():
            others = tuple(a for a in operand_axes(mask, rank) if a != axis)
            if (mask.any(others).sum(-1) > 1).any():
                yield axis - rank


def _meet(ones, others, ranks):
    """Returns whether a result depends on entries of two operands."""
    reached = (
        (mask.any(tuple(range(rank, mask.ndim))) for mask, rank in zip(masks, ranks, strict=True))
        for masks in (ones, others)
    )
    return any((a & b).any() for a, b in zip(*reached, strict=True))


def check_tight(eqn, found):
    """What may depend by the signature does, in one of several examples."""
    of = signature(eqn)
    for operand, masks in zip(of.operands, found, strict=True):
        for along, mask in zip(operand.along, masks, strict=True):
            if along is None or not mask.any():
                continue
            rank = len(along)
            for b, one in enumerate(along):
                if one.relation is Relation.BROADCAST and mask.shape[b] > 1:
                    assert (mask.sum(b) > 1).any(), (b, one)
                if one.relation is Relation.UNKNOWN and len(one.axes) == 1:
                    pairs = _onto(mask, rank, [b], one.axes)
                    same = pairs.shape[0] == pairs.shape[1]
                    assert not same or (pairs & ~np.eye(len(pairs), dtype=bool)).any(), (b, one)
    ranks = [len(v.aval.shape) for v in eqn.outvars]
    for i, j in itertools.combinations(range(len(found)), 2):
        if all(mask.any() for masks in (found[i], found[j]) for mask in masks):
            assert not of.meet(i, j) or _meet(found[i], found[j], ranks), (i, j)


def check_distinct(eqn):
    """Of operands that are one number everywhere, results are alike along all other axes."""
    numbers = [0.3, 0.7, 0.5, 0.9]
    operands = [
        jnp.full(v.aval.shape, x if jnp.issubdtype(v.aval.dtype, jnp.inexact) else 1, v.aval.dtype)
        for v, x in zip(eqn.invars, numbers, strict=False)
    ]
    distinct = signature(eqn).distinct
    for y in jax_internals.bind(eqn, *operands):
        y = np.asarray(y)
        for axis in set(range(y.ndim)) - distinct:
            first = np.take(y, [0], axis)
            assert not _differ(y, np.broadcast_to(first, y.shape)).any(), axis


@pytest.mark.parametrize("name", EXAMPLES)
def test_axes_are_those_of_what_results_depend_on(name):
    f, *shapes = EXAMPLES[name]
    runs = [_equations(f, list(_arrays(shapes, seed))) for seed in range(3)]
    for of_equation in zip(*runs, strict=True):
        eqn = of_equation[0][0]
        found = [dependence(eqn, operands) for _, operands in of_equation]
        for one in found:
            check_sound(eqn, one)
        together = [
            [functools.reduce(np.logical_or, masks) for masks in zip(*of_operand, strict=True)]
            for of_operand in zip(*found, strict=True)
        ]
        check_tight(eqn, together)
        # Of each run by itself, for indices differ.
        for number, operand in enumerate(signature(eqn).operands):
            axes = set().union(*(_combined(one[number], operand) for one in found))
            if any(mask.any() for mask in together[number]):
                assert axes == set(operand.combined)
        check_distinct(eqn)


@pytest.mark.parametrize(
    ("f", "shape", "repeated"),
    [
        (lambda x: lax.broadcast_in_dim(x, (4, 2, 3), (1, 2)), (1, 3), {0, 1}),
        (lambda x: lax.broadcast_in_dim(x, (2, 3), ()), (), {0, 1}),
        (lambda x: lax.expand_dims(x, (1,)), (2, 3), {1}),
        (lambda x: lax.reshape(x, (2, 1, 3)), (2, 3), {1}),
        (lambda x: lax.reshape(x, (3, 2)), (2, 3), set()),
        (lambda x: lax.transpose(x, (1, 0)), (2, 3), set()),
        (lambda x: lax.squeeze(x, (0,)), (1, 3), set()),
        (lambda x: lax.slice_in_dim(x, 1, 2), (2, 3), set()),
        (lambda x: lax.pad(x, 0.0, ((0, 0, 0),)), (2,), set()),
        (lambda x: tile_p.bind(x, reps=(2, 1)), (2, 3), set()),
        (lambda x: lax.bitcast_convert_type(x, jnp.int8), (2,), set()),
        (jnp.sin, (2, 3), set()),
    ],
)
def test_axes_that_a_broadcast_repeats(f, shape, repeated):
    (eqn,) = jax_internals.equations(jax.make_jaxpr(f)(jnp.ones(shape)))
    assert signature(eqn).repeated == repeated


def test_views_hold_their_operands_entries():
    seen = set()
    for name in ("broadcast_in_dim", "transpose", "squeeze", "a merging reshape", "rev", "slice"):
        f, shape = EXAMPLES[name]
        (eqn,) = jax_internals.equations(jax.make_jaxpr(f)(jnp.ones(shape)))
        (y,) = jax_internals.bind(eqn, jnp.arange(math.prod(shape)).reshape(shape))
        assert signature(eqn).family is OperationFamily.MOVE
        assert (np.bincount(np.ravel(y)).max() == 1) == (eqn.primitive in prim.REARRANGING)
        seen.add(eqn.primitive)
    assert seen == prim.VIEWS


def test_a_look_up_takes_whole_rows():
    indices = jnp.zeros((5, 1), I)

    def axes_of(sizes, **numbers):
        numbers = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,)} | (
            numbers
        )
        dimensions = lax.GatherDimensionNumbers(**numbers)
        gather = functools.partial(lax.gather, dimension_numbers=dimensions, slice_sizes=sizes)
        (eqn,) = jax_internals.equations(jax.make_jaxpr(gather)(jnp.ones((4, 3)), indices))
        return row_axes(eqn)

    assert axes_of((1, 3)) == (0,)
    assert axes_of((1, 3), offset_dims=(1, 2), collapsed_slice_dims=()) == (0,)
    assert axes_of((4, 1), collapsed_slice_dims=(1,), start_index_map=(1,)) == (1,)
    assert axes_of((1, 2)) is None
    (eqn,) = jax_internals.equations(jax.make_jaxpr(lambda x: x[1:])(jnp.ones(3)))
    assert row_axes(eqn) is None


def _drawn(name):
    return name.startswith(("random_", "rng_", "threefry"))


def test_every_primitive_with_a_row_has_an_example():
    seen = set()
    for f, *shapes in EXAMPLES.values():
        closed = jax.make_jaxpr(f)(*_arrays(shapes, 0))
        seen |= set(jax_internals.primitives_in(closed.jaxpr))
    held = {q for q, row in ROWS.items() if row.__qualname__.startswith("_holding")}
    without = {q.name for q in set(ROWS) - seen - held if not _drawn(q.name)}
    assert sorted(without - NO_EXAMPLES) == []


# Of devices and of shardings, which a single processor has none of; of a type of its own.
NO_EXAMPLES = {"pvary", "reshard", "sharding_constraint", "copy_p"}


def test_every_primitive_of_jax_has_a_row_or_a_reason():
    rows = {q.name for q in ROWS}
    opaque = {name for names in OPAQUE.values() for name in names.split()}
    # From JAX 0.11 on it is a call that equations hold, with a row; before, it is a name alone.
    assert rows & opaque <= {"eval_jaxpr"}
    # What one JAX expands, another may have as a call of its own, with a reason.
    expanded = {q.name for q in EXPANSIONS}
    assert sorted(set(installed()) - rows - expanded - opaque) == []


def test_a_primitive_of_somebody_else_is_opaque_with_a_reason():
    stranger = jax.extend.core.Primitive("stranger")
    stranger.def_abstract_eval(lambda x: x)
    (eqn,) = jax.make_jaxpr(stranger.bind)(jnp.ones((2, 3))).eqns
    of = signature(eqn)
    assert of.family is OperationFamily.OPAQUE
    assert "add one" in of.reason
    assert of.operands[0].combined == (0, 1)


def _functions():
    """Yields the pointwise functions of floats among the examples, with what is known of them."""
    for name, (f, *shapes) in EXAMPLES.items():
        eqns = jax.make_jaxpr(f)(*_arrays(shapes, 0)).eqns
        primitive = eqns[0].primitive
        floats = [v.aval.dtype == F for v in (*eqns[0].invars, *eqns[0].outvars)]
        exact = primitive in prim.ELEMENTWISE - {p.reduce_precision_p}  # which rounds
        if len(eqns) == 1 and exact and all(floats):
            count = len(shapes)
            yield pytest.param(f, count, FACTS.get(primitive, Facts()), id=name)


FUNCTIONS = list(_functions())


@pytest.mark.parametrize(("f", "count", "known"), FUNCTIONS)
def test_functions_are_what_is_known_of_them(f, count, known):
    rng = np.random.default_rng(0)
    anywhere, positive = (jnp.asarray(rng.uniform(low, 3, (count, 64)), F) for low in (-3, 0.1))
    if known.domain == "all":
        assert np.isfinite(f(*anywhere)).all()
    if known.domain == "positive":
        assert np.isfinite(f(*positive)).all()
        assert not np.isfinite(f(*anywhere)).all()
    assert known.sign != "never" or (np.asarray(f(*anywhere)) >= 0).all()
    assert known.sign != "kept" or (np.asarray(f(*positive)) >= 0).all()


@pytest.mark.parametrize(("f", "count", "known"), FUNCTIONS)
def test_second_differences_are_those_of_the_form(f, count, known):
    # Where all operands are alike, maxima and clamps have their kinks; at 0, 1/2 and 1 others.
    size = []
    for step in (0.1, 0.01):
        points = jnp.asarray([0.0, 0.5, 1.0] if count == 1 else [0.5, 1.0])
        ends = [points + step * k for k in (-1, 0.5, 2)]
        still = [ends[1]] * (count - 1)
        below, middle, above = (np.asarray(f(end, *still), np.float64) for end in ends)
        second = (below - 2 * middle + above) / (1.5 * step) ** 2
        size.append(np.abs(second[np.isfinite(second)]).max(initial=0))
    grows = size[1] > 5 * size[0] > 0
    if known.form in {"kinked", "staircase"}:
        assert grows or count > 1  # of the other operand
    else:
        assert not grows or known.domain != "all" or size[1] < 1
    assert known.form != "affine" or size[0] < 1e-3


def _degrees(of):
    """Returns degrees of polynomials of two operands along x and y, and along both."""
    t = np.linspace(-1, 1, 8)
    at = {"x": (t, 0 * t + 0.7), "y": (0 * t + 0.7, t), "both": (t, t)}
    found = {}
    for name, (x, y) in at.items():
        value = np.asarray(of(*map(jnp.float32, (x, y))), np.float64)
        fits = (np.polynomial.Polynomial.fit(t, value, n) for n in range(4))
        found[name] = next(
            (n for n, fit in enumerate(fits) if np.abs(fit(t) - value).max() < 1e-5), np.inf
        )
    return found


@pytest.mark.parametrize(
    ("f", "count", "known"),
    [c for c in FUNCTIONS if c.values[1] == 2 and c.values[2].degree != "none"],
)
def test_degrees_of_functions_of_two(f, count, known):
    of = _degrees(f)
    expected = {
        "largest": {"x": 1, "y": 1, "both": 1},
        "added": {"x": 1, "y": 1, "both": 2},
        "quotient": {"x": 1, "y": np.inf, "both": 0},
    }
    # x - x is of degree zero.
    wanted = {n: min(d, of[n]) if n == "both" else d for n, d in expected[known.degree].items()}
    assert wanted == of
