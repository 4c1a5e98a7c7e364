"""Variances with correlations: `moments(f, correlations=True)`, and the delta method.

The variance of y = f(w) for independent Gaussian w of variances v is a sum over orders (the Hermite
expansion of f), and the first is

    sum_p v_p (d E[y] / d E[w_p])^2,

since the derivative of a mean by the mean of an input is the expected slope. Derived in reverse
through the means that moments propagate, it follows every path from a random entry to a result: a
kernel's noise over positions, a residual stream, attention, noise at the input. The orders left out
are some per cent of a network's variance; `calibrate_moments(..., correlations=True)` measures them
as one factor per result.

The same slopes hold what two results share, `sum_p v_p J_ip J_jp`: with `full` every result is a
`JointGaussian` with the covariance of the entries of an example.

Sharp edges
- One pass backward for each entry of a result that is left of an example, so about the cost of
  twice as many samples as there are logits, whatever the samples cost to draw.
- Examples are derived together, as many as `CHUNK_ENTRIES` has room for. A convolution's kernel has
  slopes of its own for each of them, which are made of patches (`_slopes`).
- Examples are separated by following the first axis of every data argument to the first of every
  result (`batched_leaves`). Where that fails (a `while` over a batch), all entries of a result are
  derived one by one, up to `MOST_RESULTS`.
- Variances inside the network, which the slopes are expected under, are those of the diagonal.

By the delta method, `moments(f, method="linear")`, the function is replaced by its tangent at the
means. For independent entries w of variances v,

    E[y] = f(m),   Var[y_k] = sum_w v_w (dy_k / dw)^2,

which is exact to first order in the noise and holds everything that results share, through any
differentiable program: loops, attention, functions that no rule is known for. The sum is taken in
the same way, of the function's own slopes in the place of expected ones. Where a last dense layer
makes more results than it reads units, the units are derived instead (`_slopes`).

Sharp edges
- Against Monte Carlo the error is a few per cent (median over results) up to noise of 10 % of the
  spread of each weight array, and grows with noise (`experiments.beyond.moment_variances`):
  `correlations=True` has slopes that noise averages, and `calibrate_moments` measures what is left.
- A slope of zero is no variance: what is discrete is certain, and so is what the function stops
  the gradient of, and what it rounds without a gradient of its own.
- The mean is the function's result at the means: noise doesn't shift it.
- A pass backward per result of an example takes twice the function's arithmetic: a ResNet-8 with
  ten results took 23 times as long as the function, LeNet-5 15, a U-Net with 392 results 904.
  Batches too large for `CHUNK_ENTRIES` go through a loop in groups, in which XLA's convolutions are
  six times slower on a processor.
- Examples that a `while` or a branch carries together aren't told apart, so each result is derived
  by the whole batch: vmap over examples there,
  `jax.vmap(moments(f, method="linear"), in_axes=(None, 0))`.
- A `while_loop` whose number of steps is unknown has no derivative in reverse.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.moment_propagation import _calibrated as calibrated
from jaxeff.moment_propagation import _moment_pass as moment_pass
from jaxeff.moment_propagation import _values
from jaxeff.moment_propagation._slopes import (
    OutputLayer,
    RandomEntries,
    last_layer,
    let_through,
    variance_through,
)
from jaxeff.program import CORRELATIONS, Layer, Program, closed, evaluate, plain_rule
from jaxeff.program.ir import Value
from jaxeff.program.ir import primitives as prim

MOST_RESULTS = 256
CHUNK_ENTRIES = 2**25
"""Slopes and activations that are held at once: 128 MiB in float32."""
_UNROLLED = 4
HIDDEN_ENTRIES = 2**28
"""Slopes of a hidden state that may be held at once, 1 GiB; of more, each result is derived."""


class Pass(Protocol):
    """The pass over a program that slopes are taken through.

    Attributes:
        expected_slopes: Whether slopes are those of means under noise, and not those at the means.
    """

    expected_slopes: ClassVar[bool]

    def prepare(self, program: Program, values: Sequence[Any]) -> Program:
        """Returns the program with the layers grouped that have to be integrated together."""
        ...

    def layer(
        self, factors: Mapping[str, Any], layer: Layer, key: Any, *values: Any
    ) -> Sequence[Any]:
        """Returns the moments of one layer, or its values."""
        ...

    def own_variance(self, layer: Layer, *values: Any) -> Array:
        """Returns the variance of a linear layer's one result."""
        ...

    def evaluated(self, program: Program, rule: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Returns the results of a prepared program under a rule."""
        ...


def correlated(
    propagation: Pass,
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    full: bool = False,
) -> Any:
    """Computes moments with variances of first order, correlations included.

    Slopes are taken through `propagation`; no derivative passes through a variance. `kwargs` are
    taken as shared by the examples. With `full` each floating-point leaf is a `JointGaussian`, with
    the covariances of an example's entries.

    Raises:
        MomentsError: A result has more entries for an example than the pass allows, or, if `full`,
            more than one axis of them.
    """
    program = moment_pass.read(f, args, kwargs).program
    args, factors = calibrated.uncalibrated(args)
    leaves, structure = jax.tree.flatten(tuple(args), is_leaf=_values.is_gaussian)
    batched = moment_pass.batched_leaves(program, len(leaves))
    axes = (1 + any(batched)) if full else 0  # of a vector, and of the one example

    def first_order(leaves: Sequence[Any]) -> Any:
        return _first_order(propagation, f, jax.tree.unflatten(structure, leaves), kwargs, axes)

    if not any(batched):
        out = first_order(leaves)
    else:

        def one(examples: Sequence[Any]) -> Any:
            rows = iter(examples)
            # An axis of size one stays: the function was written for batches.
            arguments = [
                jax.tree.map(lambda a: a[None], next(rows)) if b else leaf
                for leaf, b in zip(leaves, batched, strict=True)
            ]
            return jax.tree.map(lambda a: a[0], first_order(arguments))

        examples = [leaf for leaf, b in zip(leaves, batched, strict=True) if b]
        # As many at once as memory is meant for: all of them, but for large ones.
        count, size = examples[0].shape[0], _entries(program, ()) * _results(program)
        fit = max(CHUNK_ENTRIES * count // max(size, 1), 1)
        out = _in_groups(one, examples, count, fit)
    return _closed(
        calibrated.with_result_factors(
            out, factors, calibrated.result_name(propagation.expected_slopes)
        )
    )


def _results(program: Program) -> int:
    """Returns how many entries of its results one example has, at most."""
    sizes = [v.aval.size // max(v.aval.shape[0], 1) for v in program.outputs if v.aval.ndim]
    return max(sizes, default=1)


def _in_groups(f: Callable[[Any], Any], rows: Any, count: int, fit: int) -> Any:
    """Maps a function over the first axis, `fit` of its places at once."""
    # Convolutions in a loop take XLA six times as long on a processor: a few groups are unrolled.
    if count > _UNROLLED * fit:
        return jax.lax.map(f, rows, batch_size=fit)
    starts = range(0, max(count, 1), fit)
    parts = [jax.vmap(f)(jax.tree.map(lambda a, i=i: a[i : i + fit], rows)) for i in starts]
    return jax.tree.map(lambda *a: jnp.concatenate(a), *parts) if len(parts) > 1 else parts[0]


def _closed(out: Any) -> Any:
    """Closes the results' spreads, so that no other transform acts on them."""
    return jax.tree.map(_closed_result, out, is_leaf=calibrated.is_result)


def _closed_result(result: Any) -> Any:
    if _values.is_gaussian(result):
        return _values.Gaussian(result.mean, closed(result.var, CORRELATIONS))
    if _values.is_joint_gaussian(result):
        return _values.JointGaussian(result.mean, closed(result.cov, CORRELATIONS))
    return result


class _Linearized(NamedTuple):
    """A pass forward, with what passes backward need.

    Attributes:
        y: The means of the random results, and the hidden state where it is derived.
        pull: Slopes of a combination of them: by followed inputs, by steps of owned layers, and by
            convolutions' kernels.
        out: The results.
        spreads: Variances, in the order of `pull`.
    """

    y: list[Array]
    pull: Callable[..., Any]
    out: Any
    spreads: tuple[list[Array], list[Array], list[Array]]


def _linearized(
    propagation: Pass, program: Program, entries: RandomEntries, last: OutputLayer | None
) -> _Linearized:
    known, owned, convolved, followed, apart = (
        entries.known, entries.owned, entries.convolved, entries.followed, entries.apart,
    )  # fmt: skip
    stepped = [*owned, *convolved]
    taken: list[Array] = []

    def means(at: Sequence[Array], noise: Sequence[Array]) -> tuple[list[Array], Any]:
        moved = dict(zip(followed, at, strict=True))
        inputs = [_values.Gaussian(moved[v], x.var) if v in moved else x for v, x in known.items()]
        steps = dict(zip(stepped, noise, strict=True))
        # Of an owned layer its own variance, of a convolution what its taps read.
        beside: dict[Layer, Any] = {}

        def rule(layer: Layer, key: Any, *operands: Any) -> Any:
            outputs = propagation.layer({}, layer, key, *operands)
            if last is not None and layer is last.layer:
                taken.append(operands[layer.inputs.index(last.hidden)])
            if layer not in steps:
                return outputs
            if layer in convolved:
                beside[layer] = convolved[layer].windows(layer, operands)
                return [_stepped(outputs[0], steps[layer])]
            # The layer once more with the other inputs certain: the part of its variance that its
            # own kernel makes.
            only = [
                known[v] if v in apart else x.mean if _values.is_random(x) else x
                for v, x in zip(layer.inputs, operands, strict=True)
            ]
            beside[layer] = propagation.own_variance(layer, *only)
            return [_stepped(outputs[0], steps[layer])]

        out = propagation.evaluated(program, rule, inputs)
        results = filter(_values.is_gaussian, jax.tree.leaves(out, is_leaf=_values.is_gaussian))
        return [g.mean for g in results] + taken, (out, [beside[layer] for layer in stepped])

    # One trace forward serves all results: each then costs a pass backward.
    start = [known[v].mean for v in followed]
    still = [jnp.zeros(o.aval.shape, o.aval.dtype) for layer in stepped for o in layer.outputs]
    y, back, (out, beside) = jax.vjp(means, start, still, has_aux=True)
    alone, windows = beside[: len(owned)], beside[len(owned) :]
    of_kernels = [one.variances(known[one.kernel]) for one in convolved.values()]

    def pull(seeds: Any) -> Any:
        try:
            by_inputs, by_steps = back(seeds)
        except ValueError as error:
            raise _refused(program, error) from error
        rows = zip(convolved.values(), windows, by_steps[len(owned) :], strict=True)
        return by_inputs, by_steps[: len(owned)], [one.slopes(x, g) for one, x, g in rows]

    return _Linearized(y, pull, out, ([known[v].var for v in followed], alone, of_kernels))


def _refused(program: Program, error: ValueError) -> Exception:
    """Names the loops that have no derivative in reverse; other errors stay as they are."""
    # A loop whose end is decided at run time keeps none of the values that the way back needs.
    ends = [s.site for s in program.layers if any(n.primitive is prim.p.while_p for n in s.nodes)]
    if not ends or "Reverse-mode" not in str(error):
        return error
    return _values.MomentsError(
        f"moments: {', '.join(map(repr, ends))} loops until something is reached, which has no "
        "derivative in reverse, as method='linear' and correlations=True need. Give the loop a "
        "fixed number of steps (lax.scan, or lax.fori_loop between constants), or draw samples "
        "with jaxeff.bayes.predict."
    )


def _first_order(
    propagation: Pass, f: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], vector_axes: int
) -> Any:
    program, values, _ = moment_pass.read(f, args, kwargs)
    random = [v for v, x in zip(program.inputs, values, strict=True) if _values.is_gaussian(x)]
    program = propagation.prepare(let_through(program, random), values)
    entries = RandomEntries.of(program, values)
    followed, kernels = entries.followed, entries.kernels
    last = None
    if not vector_axes:
        last = _last_layer(propagation, program, followed, [*entries.apart, *kernels])
    y, pull, out, spreads = _linearized(propagation, program, entries, last)
    if propagation.expected_slopes:
        _check_sizes(y)
    numbers, chunk = range(len(y)), _chunk(program, [*followed, *kernels])
    if last is not None:
        slopes = _hidden_slopes(pull, y, spreads, chunk, [followed.index(v) for v in last.tied])
        inputs = {**program.constants, **entries.known}
        spreads_of_results = [
            variance_through(last, slopes, y[-1], inputs, propagation.own_variance)
        ]
    elif vector_axes:
        spreads_of_results = [_covariance(pull, y, n, spreads, vector_axes) for n in numbers]
    else:
        spreads_of_results = [_variance(pull, y, n, spreads, chunk) for n in numbers]
    make = _values.JointGaussian if vector_axes else _values.Gaussian
    spread = iter(spreads_of_results)
    return jax.tree.map(
        lambda r: make(r.mean, next(spread)) if _values.is_gaussian(r) else r,
        out,
        is_leaf=_values.is_gaussian,
    )


def _last_layer(
    propagation: Pass, program: Program, followed: Sequence[Value], apart: Iterable[Value]
) -> OutputLayer | None:
    """Finds the last layer to derive the results' variances through, if its slopes fit."""
    if propagation.expected_slopes:
        return None
    last = last_layer(program, [*followed, *apart])
    if last is None or last.units * _entries(program, followed) > HIDDEN_ENTRIES:
        return None
    return last


def _stepped(value: Any, step: Array) -> Any:
    """Adds a step to a layer's result, or to its mean."""
    if not _values.is_random(value):
        return value + step
    moments = _values.to_variance(value)
    return _values.Gaussian(moments.mean + step, moments.var)


def _check_sizes(y: Sequence[Array]) -> None:
    for number, one in enumerate(y):
        if one.size > MOST_RESULTS:
            raise _values.MomentsError(
                f"moments: correlations=True derives every entry of a result, and result {number} "
                f"has {one.size} for one example, more than {MOST_RESULTS}. Leave it out, return "
                "less, take method='linear', or, if these are examples, vmap over them: "
                "jax.vmap(moments(f, correlations=True), in_axes=(None, 0))."
            )


def _entries(program: Program, followed: Sequence[Value]) -> int:
    """Returns how many numbers one pass backward makes: activations and slopes."""
    activations = [v for layer in program.layers for v in layer.outputs]
    return sum(v.aval.size for v in (*activations, *followed)) + 1


def _chunk(program: Program, followed: Sequence[Value]) -> int:
    """Returns how many entries of a result are derived at once."""
    return min(max(CHUNK_ENTRIES // _entries(program, followed), 1), MOST_RESULTS)


def _in_chunks(f: Callable[[Array], Any], count: int, chunk: int) -> Any:
    """Maps a function over the numbers below `count`, a chunk of them at once."""
    # Whole chunks, the last one filled up: the rest of a chunk would be compiled a second time.
    chunk = min(chunk, max(count, 1))
    numbers = jnp.arange(-(-count // chunk) * chunk) % max(count, 1)
    results = _in_groups(f, numbers, len(numbers), chunk)
    return jax.tree.map(lambda a: a[:count], results)


def _variance(
    pull: Callable[..., Any], y: Sequence[Array], number: int, spreads: Any, chunk: int
) -> Array:
    one = y[number]
    slopes = _slopes(pull, y, number)

    def spread(entry: Array) -> Array:
        # First order of the Hermite expansion: sum_p v_p (d E y / d m_p)^2, the module's equation.
        direction = jnp.zeros(one.size, one.dtype).at[entry].set(1)
        parts = jax.tree.map(lambda v, s: jnp.sum(v * s * s), spreads, slopes(direction))
        return jnp.stack(jax.tree.leaves(parts)).sum()

    return _in_chunks(spread, one.size, chunk).reshape(one.shape)


def _hidden_slopes(
    pull: Callable[..., Any], y: Sequence[Array], spreads: Any, chunk: int, tied: Sequence[int]
) -> Callable[[Array], tuple[Array, list[Array]]]:
    """Makes a function of a position: its hidden state's covariance, and slopes by tied inputs."""
    hidden = y[-1]
    width = hidden.shape[-1]
    slopes = _slopes(pull, y, len(y) - 1)

    def at(position: Array) -> tuple[Array, list[Array]]:
        def unit(i: Array) -> Any:
            return slopes(jnp.zeros(hidden.size, hidden.dtype).at[position * width + i].set(1))

        slopes_of_units = _in_chunks(unit, width, chunk)
        return _spread_product(spreads, slopes_of_units, width), [
            slopes_of_units[0][i] for i in tied
        ]

    return at


def _covariance(
    pull: Callable[..., Any], y: Sequence[Array], number: int, spreads: Any, axes: int
) -> Array:
    one = y[number]
    if one.ndim != axes or one.shape[-1] != one.size:
        raise _values.MomentsError(
            "moments: correlations='full' takes results that are vectors, one per example; "
            f"result {number} has shape {one.shape}. Reshape it to one axis, or take "
            "correlations=True."
        )
    slopes = jax.vmap(_slopes(pull, y, number))(jnp.eye(one.size, dtype=one.dtype))
    return _spread_product(spreads, slopes, one.size).reshape(*one.shape, one.size)


def _spread_product(spreads: Any, slopes: Any, count: int) -> Array:
    """Computes J diag(v) J^T for the slopes of `count` values."""

    def part(v: Array, s: Array) -> Array:
        flat = s.reshape(count, -1)
        return (flat * v.reshape(1, -1)) @ flat.T

    return jnp.stack(jax.tree.leaves(jax.tree.map(part, spreads, slopes))).sum(0)


def _slopes(pull: Callable[..., Any], y: Sequence[Array], number: int) -> Callable[[Array], Any]:
    """Makes a function of the expected slopes of a combination of one result's entries."""

    def slopes(direction: Array) -> Any:
        seeds = [
            direction.reshape(v.shape) if i == number else jnp.zeros_like(v)
            for i, v in enumerate(y)
        ]
        return pull(seeds)

    return slopes


METHODS = ("layers", "linear")


@dataclass(frozen=True)
class Linearization:
    """A pass that evaluates a program at the means, so that its slopes are the function's own.

    Attributes:
        propagation: The moments that give the variance of a linear layer's own kernel.
        expected_slopes: Whether derivatives of its results are expected slopes.
    """

    propagation: moment_pass.Propagation
    expected_slopes: ClassVar[bool] = False

    def prepare(self, program: Program, values: Sequence[Any]) -> Program:
        """Returns the program as it is: nothing is integrated together."""
        return program

    def layer(
        self, factors: Mapping[str, Any], layer: Layer, key: Any, *values: Any
    ) -> Sequence[Any]:
        """Evaluates a layer."""
        return plain_rule(layer, key, *values)

    def own_variance(self, layer: Layer, *values: Any) -> Array:
        """Computes the variance of a linear layer's one result, which is exact."""
        return self.propagation.own_variance(layer, *values)

    def evaluated(self, program: Program, rule: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Evaluates a program at the means."""
        means = [v.mean if _values.is_gaussian(v) else v for v in values]
        return moment_pass.gaussian_results(program, evaluate(program, rule, None, means))


def check_method(name: str, method: str) -> None:
    """Checks the name of a method."""
    if method not in METHODS:
        raise ValueError(f"{name}: method {method!r} is unknown; choose one of {METHODS}.")


def first_order_pass(propagation: moment_pass.Propagation, method: str) -> Pass:
    """Returns the pass that first-order variances are derived through."""
    # Expected slopes are derivatives of means alone: variances are held while they are taken.
    slopes = replace(propagation, differentiable=False)
    return Linearization(slopes) if method == "linear" else slopes
