"""The pass of `moments` over a program: how it is read, which rule each layer takes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation import _calibrated, _statistics, _values, dependence
from jaxeff.moment_propagation._attention import AttentionLayer, attention_moments
from jaxeff.moment_propagation._attention_patterns import fuse_attention, with_batch_axes
from jaxeff.moment_propagation._linear_patterns import linear_patterns, with_bias_vectors
from jaxeff.moment_propagation._propagation import Environment, propagate
from jaxeff.moment_propagation._regions import region
from jaxeff.moment_propagation.rules import (
    Rule,
    gelu,
    gelu_in_short,
    silu,
    silu_in_short,
    tanh_gelu,
)
from jaxeff.program import (
    Layer,
    Program,
    check_open,
    evaluate,
    once_for_equal,
    plain_rule,
    read_out_by,
)
from jaxeff.program.ir import Value, primitives, run_nodes
from jaxeff.program.reading import trace_live


class RandomProgram(NamedTuple):
    """A function read at arguments that may be random.

    Attributes:
        program: The program, with bias vectors.
        values: One per input of the program; a `Gaussian` for random ones.
        factors: Factors of the variances of its sites.
    """

    program: Program
    values: Sequence[Any]
    factors: Mapping[str, Any]

    @property
    def random(self) -> list[Value]:
        """The inputs that are random."""
        pairs = zip(self.program.inputs, self.values, strict=True)
        return [value for value, x in pairs if _values.is_random(x)]


def read(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> RandomProgram:
    """Reads a function at arguments any leaf of which may be a `Gaussian`."""
    _check((args, kwargs))
    args, factors = _calibrated.uncalibrated(args)
    means, named = jax.tree.map(
        lambda v: v.mean if _values.is_gaussian(v) else v,
        (args, kwargs),
        is_leaf=_values.is_gaussian,
    )
    program = trace_live(f, *means, **named)
    check_open(program, "moments")
    check_certain(jax.tree.unflatten(program.out_tree, range(program.out_tree.num_leaves)))
    _open_unchanged(program)
    with_bias_vectors(program)
    positions = range(program.in_tree.num_leaves)
    arrays = jax.tree.unflatten(program.in_tree, positions)[1]
    leaves = jax.tree.leaves((args, {k: kwargs[k] for k in arrays}), is_leaf=_values.is_gaussian)
    values = [_values.Pooled.of(v) if _values.is_gaussian(v) else v for v in leaves]
    depending = reached(program, values)
    for layer in program.layers:
        # Loops are looked at by themselves.
        if not depending.isdisjoint(layer.inputs):
            _check_read_out(layer)
    return RandomProgram(program, values, factors)


def reached(program: Program, values: Sequence[Any]) -> set[Value]:
    """Returns the values that depend on random inputs, given those of all inputs."""
    depending = set(RandomProgram(program, values, {}).random)
    for layer in program.layers:
        if not depending.isdisjoint(layer.inputs):
            depending.update(layer.outputs)
    return depending


def _check_read_out(layer: Layer) -> None:
    if transform := read_out_by(layer.nodes):
        raise _values.MomentsError(
            f"moments: a random value reaches {layer.site!r}, which {transform} reads out; "
            f"take {transform}(moments(f), spec), which reads out the means, or what read-outs "
            "add as noise: moments(f, noise=read_out(f, params, x, spec))."
        )


def _open_unchanged(program: Program) -> None:
    """Takes layers that a transform evaluated as they are for those of the function itself.

    They are marked for their names' sake alone, as all layers are behind a batch norm's folding.
    """
    for layer in program.layers:
        for part in layer.programs:  # transforms nest, and act inside of loops
            _open_unchanged(part)
        if layer.mark and layer.programs:
            inside = [one for one in layer.programs[0].layers if one.kind != "shape"]
            if [(one.kind, one.programs) for one in inside] == [(layer.kind, ())]:
                layer.mark, layer.programs = "", ()


def check_certain(result: Any) -> None:
    """Checks that a function returns arrays, not random ones."""
    if any(_values.is_gaussian(v) for v in jax.tree.leaves(result, is_leaf=_values.is_gaussian)):
        raise _values.MomentsError(
            "moments can't act on moments(f), nor on another function that returns a Gaussian: a "
            "Gaussian holds arrays. Take moments once, of f; or of a function that returns the "
            "mean alone."
        )


def _check(tree: Any) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_values.is_gaussian)
    for path, leaf in leaves:
        if _values.is_gaussian(leaf):
            check_certain(leaf.mean)
            position = jax.tree_util.keystr(path[1:2], simple=True)
            name = jax.tree_util.keystr(path[2:], simple=True, separator="/")
            _values.check_gaussian(leaf, f"moments: argument {position}{name and ' '}{name}")


_REGIONS = {"elementwise", "normalization", "reduction"}
_UNROUNDED = "rounding to values that aren't evenly spaced is taken to add no variance, a grid"

IN_SHORT: Mapping[Any, Any] = {
    attention_moments: functools.partial(attention_moments, short=True),
    silu: silu_in_short,
    gelu: gelu_in_short,
    tanh_gelu: functools.partial(gelu_in_short, tanh=True),
    **_statistics.IN_SHORT,
}
"""Cheaper rules by those whose place they take where a posterior has factors of sites.

The factors were measured with the cheaper rules, so they make up for what these leave out.
"""


@dataclass(frozen=True)
class Propagation:
    """One pass of moments over a program.

    Attributes:
        rules: The user's rules by primitive, and those of `IN_SHORT` by what they stand for.
        form: Moments that layers pass to each other, "variance" or "raw".
        note: Called for each place where independence is assumed.
        once: Whether rules are evaluated once for equal layers, so that `note` hears of the first.
    """

    rules: Mapping[Any, Rule]
    form: str
    note: dependence.Note
    once: bool = False

    def run(self, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Evaluates the diagonal pass at arguments, or the calibrated one."""
        return self.finished(self.prepared(read(f, args, kwargs)))

    def prepared(self, of: RandomProgram) -> RandomProgram:
        """Joins the layers of a function that have to be integrated as a whole."""
        return of._replace(program=self.prepare(with_batch_axes(of.program), of.values))

    def finished(self, of: RandomProgram) -> Any:
        """Evaluates a function that was prepared."""
        prepared, values, factors = of
        short = _calibrated.are_of_sites(factors)
        propagation = replace(self, rules={**IN_SHORT, **self.rules}) if short else self
        rule: Callable[..., Sequence[Any]] = propagation.layer
        if self.once:
            rule = once_for_equal(prepared, rule)
        # Factors come after the rule and before the next layer, as they were measured; equal layers
        # have others each.
        scaled = _calibrated.with_factors(rule, factors, propagation.is_sum)
        outputs = propagation.outputs(prepared, scaled, values)
        return _calibrated.with_regressions(gaussian_results(prepared, outputs), factors)

    def outputs(
        self, program: Program, rule: Callable[..., Any], values: Sequence[Any]
    ) -> Sequence[Any]:
        """Evaluates a prepared program under a rule."""

        def prepare(part: Program, inputs: Sequence[Any]) -> Program:
            return part if part is program else self.prepare(part, inputs)

        # Loops take slices of their operands, and a variance of fewer entries has none.
        inside = {v for layer in program.layers if layer.programs for v in layer.inputs}
        values = [
            _values.to_variance(x) if v in inside and isinstance(x, _values.Pooled) else x
            for v, x in zip(program.inputs, values, strict=True)
        ]
        return evaluate(program, rule, None, values, promote, prepare)

    def prepare(self, program: Program, values: Sequence[Any]) -> Program:
        """Fuses the layers that have to be integrated as a whole."""
        random = RandomProgram(program, values, {}).random
        if not random:
            return program
        program = fuse_attention(program, random, self.rules)
        return dependence.fuse_dependent(program, random, self.note)

    def is_sum(self, layer: Layer) -> bool:
        """Returns whether a layer's rule adds the variances of two operands of one shape."""
        if layer.kind != "elementwise" or len(layer.nodes) != 1 or len(layer.inputs) != 2:
            return False
        primitive = layer.nodes[0].primitive
        if primitive not in primitives.SUMS or primitive in self.rules:
            return False
        return len({v.aval.shape for v in (*layer.inputs, *layer.outputs)}) == 1

    def _quantize(self, layer: Layer, values: Sequence[Any]) -> list[Any]:
        """Quantizes a random value; for derivatives rounding has slope one.

        Moments are those of rounded draws where the values are evenly spaced.
        """
        random = [v for v in values if _values.is_random(v)]
        at_means = [v.mean if _values.is_random(v) else v for v in values]
        outputs = layer.fn(*at_means)
        if len(random) != 1 or len(outputs) != 1 or outputs[0].shape != random[0].shape:
            raise _values.no_rule(
                layer.nodes[-1], layer.site, "quantizes several random values at once"
            )
        mean, var = outputs[0], random[0].var
        rounded = _rounded(layer, at_means, random[0])
        if rounded is None:
            # A layer that reads out light rounds downwards what it adds noise of its own to.
            if not layer.outputs[0].is_data or any(n.primitive is p.round_p for n in layer.nodes):
                inputs = [v for v, x in zip(layer.inputs, values, strict=True) if x is random[0]]
                eqn = layer.nodes[-1].eqn
                self.note(dependence.Assumption.at(layer, eqn, _UNROUNDED, inputs, adds_up=True))
            return [_values.Gaussian(mean, var)]
        mean += jax.lax.stop_gradient(rounded.mean - mean)
        return [_values.Gaussian(mean, var + jax.lax.stop_gradient(rounded.var - var))]

    def layer(self, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        """Computes the moments of one layer: the rule that `evaluate` calls."""
        random = any(_values.is_random(v) for v in values)
        if not layer.nodes or not (random or any(isinstance(v, _values.AtMean) for v in values)):
            return plain_rule(layer, key, *values)
        for node in layer.nodes:
            _values.check_real(node, layer.site)
        if not random:
            return _discrete(layer, values)
        if any(isinstance(v, _values.AtMean) for v in values):
            raise _values.no_rule(layer.nodes[-1], layer.site, _values.OF_DISCRETE)
        _check_read_out(layer)
        if layer.kind == "quantize":
            return self._quantize(layer, values)
        # A layer that another transform has acted on holds a program of its own. Factors belong to
        # sites outside of it, so it is evaluated without any.
        if layer.mark and layer.programs:
            return evaluate(layer.programs[0], self.layer, key, values, promote, self.prepare)
        if isinstance(layer, AttentionLayer):
            of_attention: Any = self.rules.get(attention_moments, attention_moments)
            return of_attention(layer, values)
        # Dependent entries may meet in these kinds: they are integrated as one function.
        if layer.kind in _REGIONS or isinstance(layer, dependence.FusedLayer):
            return region(layer, values, self.rules, self.note)
        # Klein's thesis, eq. (8.9): dense layers take E[x^2] and give variances (section 8.4).
        if self.form == "raw" and layer.kind in {"linear", "matmul"}:
            values = tuple(
                _values.to_raw(v) if _values.is_random(v) and i in layer.data else v
                for i, v in enumerate(values)
            )
        operator = linear_patterns(layer, values, self.rules)
        if operator is not None:
            return operator
        env = Environment.of(layer, values, self.rules, self.note)
        propagate(layer.nodes, env)
        return [env.read(v) for v in layer.outputs]


def gaussian_results(program: Program, outputs: Sequence[Any]) -> Any:
    """Returns a program's results with a Gaussian for each floating-point one."""
    return jax.tree.unflatten(program.out_tree, [_result(v) for v in outputs])


def _result(value: Any) -> Any:
    """Converts a value to a result: a Gaussian for floating-point values, else an array."""
    if _values.is_random(value):
        return _values.to_variance(value)
    value = _values.at_mean(value)
    floating = jnp.issubdtype(jnp.result_type(value), jnp.floating)
    return _values.as_random(jnp.asarray(value)) if floating else value


def promote(value: Any, like: Any) -> Any:
    """Brings a value to the structure of another, so that loops and branches keep one type."""
    if isinstance(like, _values.RawMoments):
        return _values.to_raw(_values.as_random(value))
    if isinstance(like, _values.Gaussian):
        return _values.to_variance(_values.as_random(value))
    if isinstance(like, _values.AtMean) and not isinstance(value, _values.AtMean):
        return _values.AtMean(value)
    return value


def _discrete(layer: Layer, values: Sequence[Any]) -> list[Any]:
    """Evaluates a layer of discrete functions of random values, which stay discrete."""
    outputs = layer.fn(*(_values.at_mean(v) for v in values))
    for output in outputs:
        if jnp.issubdtype(jnp.result_type(output), jnp.inexact):
            raise _values.no_rule(layer.nodes[-1], layer.site, _values.OF_DISCRETE)
    return [_values.AtMean(v) for v in outputs]


_FAR = 2.0**20
"""A code beyond the ends of any grid."""
_REACH = 4
"""Steps to either side that rounding is summed over: of noise up to one step, all but 1e-5."""


def _rounded(
    layer: Layer, at_means: Sequence[Any], x: _values.Gaussian | _values.RawMoments
) -> _values.Gaussian | None:
    """Computes the moments of rounded normal values; None if more than one equation rounds.

    The nearest value of a grid is y_j if x lies in its cell, so that with probabilities of cells

        E[y] = sum_j P_j y_j,    Var[y] = sum_j P_j (y_j - E[y])^2.

    Beyond noise of a step they are those of x, clipped to the ends of the grid, and of an even
    error inside, step^2 / 12 (Sheppard's correction), but for e^(-2 pi^2). A range that is the
    array's own grows with noise, so nothing is clipped to it.
    """
    raw = _unrounded(layer, x.shape)
    if raw is None:
        return None
    code: Any = run_nodes(layer.nodes, layer.inputs, at_means, (raw,))[0]
    cell = jnp.round(code)
    after = [node for node in layer.nodes if raw not in node.outputs]

    def value_of(code: Array) -> Array:
        operands = (*at_means, code.astype(raw.aval.dtype))
        (value,) = run_nodes(after, (*layer.inputs, raw), operands, layer.outputs)
        return value

    reach = jnp.arange(-_REACH, _REACH + 1, dtype=code.dtype)
    reach = reach.reshape(-1, *[1] * x.ndim)
    y = jax.vmap(value_of)(cell[None] + reach)
    step = _step(y, jax.vmap(value_of)(jnp.zeros_like(cell)[None] + reach[_REACH - 1 : _REACH + 2]))
    noise = jnp.sqrt(x.var) / jnp.where(step > 0, step, 1)
    known = (step > 0) & (noise > 0)
    edges = (cell - code)[None] + reach[:-1] + 0.5
    below = jax.scipy.special.ndtr(edges / jnp.where(known, noise, 1)[None])
    ends = (jnp.zeros_like(below[:1]), jnp.ones_like(below[:1]))
    cells = jnp.diff(jnp.concatenate([ends[0], below, ends[1]]), axis=0)
    mean = (cells * y).sum(0)
    var = (cells * (y - mean[None]) ** 2).sum(0)
    std, shift, clipped = _clipped_moments(
        layer, x, step, lambda far: value_of(jnp.full_like(cell, far))
    )
    wide = noise > 1
    mean = jnp.where(known, jnp.where(wide, x.mean + std * shift, mean), y[_REACH])
    return _values.Gaussian(mean, jnp.where(known, jnp.where(wide, clipped, var), 0))


def _unrounded(layer: Layer, shape: tuple[int, ...]) -> Any:
    """Finds the value that a layer rounds; None if more than one equation rounds, or another's."""
    # An equation that rounds fewer numbers makes an offset of the grid.
    rounding = [
        node
        for node in layer.nodes
        if node.primitive is p.round_p and node.outputs[0].aval.shape == shape
    ]
    if len(rounding) != 1:
        return None
    maker = {v: node for node in layer.nodes for v in node.outputs}
    raw: Any = rounding[0].inputs[0]
    # What is clipped before it is rounded has its cells before the clip.
    while raw in maker and maker[raw].primitive in {p.max_p, p.min_p, p.clamp_p}:
        operands = [
            v
            for v in maker[raw].values
            if v.aval.shape == shape and not (v in maker and maker[v].signature.repeated)
        ]
        if len(operands) != 1:
            return None
        raw = operands[0]
    return raw if raw in maker and raw.aval.shape == shape else None


def _clipped_moments(
    layer: Layer,
    x: _values.Gaussian | _values.RawMoments,
    step: Array,
    end_of: Callable[[float], Array],
) -> tuple[Array, Array, Array]:
    """Computes the moments of x clipped to a grid's ends, with the even error of a step.

    Returns its deviation, the shift of its mean in deviations, and its variance after the clip.
    """
    # Ends by their distance from the mean, in deviations of x.
    std = jnp.where(x.var > 0, jnp.sqrt(jnp.where(x.var > 0, x.var, 1)), 1)
    low, high = ((end_of(far) - x.mean) / std for far in (-_FAR, _FAR))
    below_low, above_high = jax.scipy.special.ndtr(low), jax.scipy.special.ndtr(-high)
    inside = 1 - below_low - above_high
    at_low, at_high = (jnp.exp(-(end**2) / 2) / np.sqrt(2 * np.pi) for end in (low, high))
    shift = low * below_low + high * above_high + at_low - at_high
    square = low**2 * below_low + high**2 * above_high + inside + low * at_low - high * at_high
    clipped = x.var * jnp.maximum(square - shift**2, 0) + inside * step**2 / 12
    if any(node.primitive in {p.reduce_max_p, p.reduce_min_p} for node in layer.nodes):
        shift, clipped = jnp.zeros_like(shift), x.var + step**2 / 12
    return std, shift, clipped


def _step(nearby: Array, around_zero: Array) -> Array:
    """Returns the distance of values on a grid, from those of codes one after the other.

    Beyond an end of the grid values are the same. Codes around zero are never all beyond one.
    """
    return jnp.maximum(*(abs(jnp.diff(y, axis=0)).max(0) for y in (nearby, around_zero)))
