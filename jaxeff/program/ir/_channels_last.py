"""One pass that turns images channels-last: once where they come in, and back where they leave.

PyTorch, ONNX and Keras may have images as `[batch, channels, rows, columns]`. Kernels for
processors multiply a pixel by the weights of several features at a time, which lie one after the
other where channels are the last axis. So an image is turned where the first convolution reads it;
what follows is computed on turned arrays, as its signature says which axes it keeps; and it is
turned back where something reads it of which a signature says nothing, such as a loop. Weights are
turned too, those of a dense layer that reads a flattened image among them: what depends on
parameters alone is computed once, when they are converted or deployed.

`channels_last(f)` is read by `integer` and by `jaxeff_export.deploy`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxeff.core import ClosedJaxpr, JaxprEqn, bind, split_p
from jaxeff.core import primitives as p
from jaxeff.program.ir import _primitives as prim
from jaxeff.program.ir._axes import Contraction, channels_last_numbers, inverse
from jaxeff.program.ir._signature import OperationFamily, next_group, signature
from jaxeff.program.ir._walk import entering, evaluated_by, inlined


def channels_last(
    f: Callable[..., Any], *, kernels: bool = True, rows: bool = True
) -> Callable[..., Any]:
    """Returns a function of the same results whose convolutions have channels last.

    Results are those of `f` up to the rounding of sums, and so are the names of its layers. Where
    every convolution in floating point has its channels last already, it is `f`.

    Args:
        f: A pure function of arrays. Its loops and branches stay as they are, and derivatives are
            those of what custom derivatives compute.
        kernels: Whether weights are turned too. Else those of convolutions stay as they are, and of
            dense layers only arguments of `f` are turned: grids are said of weights as they are.
        rows: Whether rows of dense weights may be moved, which groups of them may not.
    """

    def rule_for(closed: ClosedJaxpr, arrays: Sequence[Any]) -> Any:
        if not any(map(turns, inlined(closed))):
            return None
        stored = None if kernels else frozenset(map(id, arrays if rows else ()))
        return entering(functools.partial(_evaluated, stored))

    return evaluated_by(f, rule_for, _plain)


def turns(eqn: Any) -> bool:
    """Returns whether an equation is a convolution that the pass turns."""
    if eqn.primitive is not p.conv_general_dilated_p or eqn.params["batch_group_count"] != 1:
        return False
    return not Contraction.of(eqn).is_channels_last and jnp.issubdtype(
        eqn.outvars[0].aval.dtype, jnp.floating
    )


@dataclass(frozen=True, eq=False)
class _Turned:
    """An array that is kept with its axes in another order.

    Attributes:
        array: It, turned.
        order: For each axis of `array`, the axis of the program's array that it is.
        flat: The shape that the program's array has by now, if axes were merged of which `array`
            has others in between: a flattened image.
    """

    array: Any
    order: tuple[int, ...]
    flat: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the program's array has, before it was flattened."""
        return tuple(self.array.shape[axis] for axis in inverse(self.order))


@dataclass(frozen=True, eq=False)
class _Spread:
    """A broadcast that is still to be made: turned or not, as it is read."""

    value: Any
    eqn: JaxprEqn


def _shape(v: Any) -> tuple[int, ...]:
    return tuple(v.aval.shape)


def _permuted(x: Any, order: Sequence[int]) -> Any:
    """Permutes axes; where only axes of one entry move, by a reshape."""
    large = [axis for axis in order if jnp.shape(x)[axis] != 1]
    if tuple(order) == tuple(range(len(order))):
        return x
    if large == sorted(large):
        return lax.reshape(x, [jnp.shape(x)[axis] for axis in order])
    return lax.transpose(x, order)


def _kept(array: Any, order: Sequence[int]) -> Any:
    """Returns an array of an order; as it is, if that is the program's."""
    return array if tuple(order) == tuple(range(len(order))) else _Turned(array, tuple(order))


def _plain(value: Any) -> Any:
    """Returns the program's array."""
    if isinstance(value, _Spread):
        return bind(value.eqn, value.value)[0]
    if not isinstance(value, _Turned):
        return value
    array = _permuted(value.array, inverse(value.order))
    return array if value.flat is None else lax.reshape(array, value.flat)


def _as(value: Any, order: tuple[int, ...]) -> Any:
    """Returns the array of a value that isn't flattened, with its axes in an order."""
    if isinstance(value, _Spread):
        # What is repeated is turned before it is: a bias stays a vector.
        target = value.eqn.params["broadcast_dimensions"]
        places = [order.index(axis) for axis in target]
        small = _permuted(value.value, inverse(places))
        shape = [value.eqn.params["shape"][axis] for axis in order]
        return lax.broadcast_in_dim(small, shape, sorted(places))
    if isinstance(value, _Turned):
        if value.order == order:
            return value.array
        return _permuted(value.array, [value.order.index(axis) for axis in order])
    return _permuted(value, order)


def _evaluated(
    stored: frozenset[int] | None, eqn: JaxprEqn, operands: Sequence[Any]
) -> Sequence[Any]:
    """Evaluates an equation on arrays of which some are turned.

    `stored` are the identities of the arrays that alone are turned as weights; None for any.
    """
    if turns(eqn):
        return [_convolved(eqn, operands, stored is None)]
    if eqn.primitive is p.broadcast_in_dim_p and len(operands) == 1:
        (x,) = operands
        if not isinstance(x, _Turned):
            return [_Spread(_plain(x), eqn)]
    turned = [x for x in operands if isinstance(x, _Turned)]
    rule = _RULES.get(eqn.primitive) if turned else None
    if rule is _multiplied and stored is not None and not any(id(x) in stored for x in operands):
        rule = None
    if turned and signature(eqn).family is OperationFamily.ELEMENTWISE:
        rule = _elementwise
    results = rule(eqn, operands, turned[0]) if rule is not None else None
    return bind(eqn, *map(_plain, operands)) if results is None else results


def convolved_channels_last(eqn: JaxprEqn, image: Any, kernel: Any) -> Any:
    """Computes one convolution with channels last, of operands and a result in its own layout."""
    return _plain(_convolved(eqn, [image, kernel], True))


def _convolved(eqn: JaxprEqn, operands: Sequence[Any], turned_kernel: bool) -> Any:
    contraction, (image, kernel) = Contraction.of(eqn), operands
    (n, c, *places), (o, i, *taps), (rows, columns, *positions) = contraction.layouts
    if isinstance(image, _Turned) and image.flat is not None:
        image = _plain(image)
    numbers, kernel = channels_last_numbers(len(places) + 2), _plain(kernel)
    if turned_kernel:
        kernel = _permuted(kernel, (*taps, i, o))
    else:
        numbers = numbers._replace(rhs_spec=(o, i, *taps))
    (y,) = bind(eqn, _as(image, (n, *places, c)), kernel, dimension_numbers=numbers)
    return _kept(y, (rows, *positions, columns))


def _elementwise(eqn: JaxprEqn, operands: Sequence[Any], like: _Turned) -> Sequence[Any] | None:
    rank = len(like.order) if like.flat is None else len(like.flat)
    if any(len(_shape(v)) != rank for v in eqn.outvars):
        return None
    arrays = []
    for x, v in zip(operands, eqn.invars, strict=True):
        if len(_shape(v)) != rank:
            arrays.append(_plain(x))
        elif like.flat is None:
            x = _plain(x) if isinstance(x, _Turned) and x.flat is not None else x
            arrays.append(_as(x, like.order))
        elif isinstance(x, _Turned) and (x.flat, x.order) == (like.flat, like.order):
            arrays.append(x.array)
        elif _shape(v) == like.flat:
            arrays.append(_permuted(lax.reshape(_plain(x), like.shape), like.order))
        else:
            return None
    return [_Turned(y, like.order, like.flat) for y in bind(eqn, *arrays)]


def _in_place(eqn: JaxprEqn, operands: Sequence[Any], x: _Turned) -> Sequence[Any] | None:
    if len(operands) != 1:
        return None
    return [_Turned(y, x.order, x.flat) for y in bind(eqn, x.array)]


def _by_axis(*names: str) -> _Rule:
    """Makes the rule of an equation whose parameters have an entry for each axis."""

    def rule(eqn: JaxprEqn, operands: Sequence[Any], x: _Turned) -> Sequence[Any] | None:
        if operands[0] is not x or x.flat is not None:
            return None
        entries = {name: eqn.params[name] for name in names if eqn.params[name] is not None}
        turned = {n: tuple(entry[axis] for axis in x.order) for n, entry in entries.items()}
        return [_kept(y, x.order) for y in bind(eqn, x.array, *operands[1:], **turned)]

    return rule


def _along(name: str) -> _Rule:
    """Makes the rule of an equation that does something along one axis, or some."""

    def rule(eqn: JaxprEqn, operands: Sequence[Any], x: _Turned) -> Sequence[Any] | None:
        if any(isinstance(each, _Turned) and each.flat is not None for each in operands):
            return None
        axes = eqn.params[name]
        to = axes if isinstance(axes, int) else tuple(axes)
        places = x.order.index(to) if isinstance(to, int) else tuple(map(x.order.index, to))
        arrays = [_as(each, x.order) for each in operands]
        return [_kept(y, x.order) for y in bind(eqn, *arrays, **{name: places})]

    return rule


def _reduced(eqn: JaxprEqn, operands: Sequence[Any], x: _Turned) -> Sequence[Any] | None:
    if len(operands) != 1 or x.flat is not None:
        return None
    gone = set(eqn.params["axes"])
    left = [axis for axis in x.order if axis not in gone]
    places = tuple(sorted(x.order.index(axis) for axis in gone))
    (y,) = bind(eqn, x.array, axes=places)
    return [_kept(y, _ranks(left))]


def _ranks(axes: Sequence[int]) -> tuple[int, ...]:
    """Numbers axes that are left over anew, in the order that they have."""
    return tuple(sorted(axes).index(axis) for axis in axes)


def _transposed(eqn: JaxprEqn, operands: Sequence[Any], x: _Turned) -> Sequence[Any] | None:
    if x.flat is not None:
        return None
    permutation = list(eqn.params["permutation"])
    return [_kept(x.array, [permutation.index(axis) for axis in x.order])]


def _reshaped(eqn: JaxprEqn, operands: Sequence[Any], x: _Turned) -> Sequence[Any] | None:
    """Reshapes group by group of axes where they lie, if each group lies together."""
    shape = _shape(eqn.outvars[0])
    if len(operands) != 1 or x.flat is not None:
        return None
    groups = _groups(x.shape, shape)
    if groups is None:
        return None
    first = {before[0]: after for before, after in groups if before}
    lead = [before for before, _ in groups]
    order: list[int] = []
    place = 0
    while place < len(x.order):
        group = next(before for before in lead if x.order[place] in before)
        if x.order[place : place + len(group)] != group:
            return [_Turned(x.array, x.order, shape)]
        order += first[group[0]]
        place += len(group)
    return [_kept(lax.reshape(x.array, [shape[axis] for axis in order]), order)]


_Axes = tuple[int, ...]


def _groups(shape: _Axes, out: _Axes) -> list[tuple[_Axes, _Axes]] | None:
    """Pairs the least groups of neighbouring axes that have as many entries; None without."""
    groups: list[tuple[_Axes, _Axes]] = []
    i = j = 0
    while i < len(shape) and j < len(out):
        group = next_group(shape[i:], out[j:])
        if group is None:
            return None
        before, after = group
        groups.append((tuple(range(i, i + before)), tuple(range(j, j + after))))
        i, j = i + before, j + after
    if not groups:
        return None
    # Axes of one entry may be left over at the end.
    (before_last, after_last) = groups.pop()
    rest = tuple(range(i, len(shape))), tuple(range(j, len(out)))
    return [*groups, (before_last, after_last + rest[1]), *(((axis,), ()) for axis in rest[0])]


def _multiplied(eqn: JaxprEqn, operands: Sequence[Any], x: _Turned) -> Sequence[Any] | None:
    """Multiplies a flattened image by a matrix, whose rows are turned in the image's place."""
    (summed, batch) = eqn.params["dimension_numbers"]
    side = 0 if operands[0] is x else 1
    if x.flat is None or any(batch) or len(summed[side]) != 1:
        return None
    groups = _groups(x.shape, x.flat)
    if groups is None or isinstance(operands[1 - side], _Turned):
        return None
    axes = next(before for before, after in groups if summed[side][0] in after)
    if any(len(after) != 1 for _, after in groups):
        return None
    # The image's axes that are summed over lie together, and the others as the program has them.
    inner = [axis for axis in x.order if axis in axes]
    start = x.order.index(inner[0])
    lies = (*x.order[:start], *sorted(inner), *x.order[start + len(inner) :])
    if list(x.order[start : start + len(inner)]) != inner or lies != tuple(range(len(lies))):
        return None
    w, at = _plain(operands[1 - side]), summed[1 - side][0]
    split = lax.reshape(w, [*w.shape[:at], *(x.shape[axis] for axis in axes), *w.shape[at + 1 :]])
    rows = [at + axes.index(axis) for axis in inner]
    columns = [axis for axis in range(split.ndim) if axis not in rows]
    # As Flax has a dense layer: rows are inputs.
    matrix = lax.transpose(split, [*rows, *columns])
    matrix = lax.reshape(matrix, [w.shape[at], *(split.shape[axis] for axis in columns)])
    flat, contracted = lax.reshape(x.array, x.flat), [(0,), (0,)]
    contracted[side] = tuple(summed[side])
    pair = (flat, matrix) if side == 0 else (matrix, flat)
    return bind(eqn, *pair, dimension_numbers=(tuple(contracted), batch))


def _broadcast(eqn: JaxprEqn, operands: Sequence[Any], x: _Turned) -> Sequence[Any] | None:
    """Repeats a turned array; axes that are new come first."""
    if x.flat is not None or len(operands) != 1:
        return None
    target, shape = eqn.params["broadcast_dimensions"], eqn.params["shape"]
    new = [axis for axis in range(len(shape)) if axis not in target]
    order = [*new, *(target[axis] for axis in x.order)]
    sizes = [shape[axis] for axis in order]
    return [_kept(lax.broadcast_in_dim(x.array, sizes, range(len(new), len(order))), order)]


def _squeezed(eqn: JaxprEqn, operands: Sequence[Any], x: _Turned) -> Sequence[Any] | None:
    if x.flat is not None:
        return None
    gone = {axis % len(x.order) for axis in eqn.params["dimensions"]}
    left = [axis for axis in x.order if axis not in gone]
    return [_kept(lax.reshape(x.array, [x.shape[axis] for axis in left]), _ranks(left))]


_Rule = Callable[[JaxprEqn, Sequence[Any], _Turned], Sequence[Any] | None]
"""Evaluates an equation, given its operands and the first that is turned; None if it can't."""

_WINDOW = _by_axis(
    "window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation"
)
_RULES: dict[Any, _Rule] = {
    **dict.fromkeys({p.copy_p, p.device_put_p, prim.NAME}, _in_place),
    **dict.fromkeys({p.reduce_window_max_p, p.reduce_window_min_p, p.reduce_window_sum_p}, _WINDOW),
    **dict.fromkeys({p.reduce_sum_p, p.reduce_max_p, p.reduce_min_p, p.reduce_prod_p}, _reduced),
    p.broadcast_in_dim_p: _broadcast,
    p.concatenate_p: _along("dimension"),
    p.dot_general_p: _multiplied,
    p.pad_p: _by_axis("padding_config"),
    p.reshape_p: _reshaped,
    p.rev_p: _along("dimensions"),
    p.slice_p: _by_axis("start_indices", "limit_indices", "strides"),
    split_p: _along("axis"),
    p.squeeze_p: _squeezed,
    p.transpose_p: _transposed,
}  # fmt: skip
"""By primitive, where the parameters name axes; functions of single entries name none."""
