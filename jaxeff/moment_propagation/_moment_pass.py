"""The pass of `moments` over a program: how it is read, which rule each layer takes, its results.

Any leaf of the arguments may be random. Those that hold an example per place of their first axis
are found for results that are derived example by example (`batched_leaves`). The first axis of
every data argument is followed to the first of every result, through scans too; of a state that is
fed back, what all steps have in common counts. In doubt (a while loop, a branch, a mixed axis, rows
that a captured array or their place makes different) the answer is that there are no examples:
dearer for those who ask, but never wrong.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation import _calibrated, _statistics, _values, dependence
from jaxeff.moment_propagation._attention import AttentionLayer, attention_moments
from jaxeff.moment_propagation._attention_patterns import fuse_attention, with_batch_axes
from jaxeff.moment_propagation._covariance_gaps import find_gaps
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
from jaxeff.moment_propagation.shared_kernels import steps_apart, with_shared_noise
from jaxeff.program import (
    Layer,
    Program,
    check_open,
    evaluate,
    once_for_equal,
    plain_rule,
    read_out_by,
)
from jaxeff.program.ir import Scan, Value, fixed_point, run_nodes
from jaxeff.program.reading import trace_live


class RandomProgram(NamedTuple):
    """A function read at arguments that may be random.

    Attributes:
        program: The program, with bias vectors.
        values: One per input of the program; a `Gaussian` for random ones.
        factors: Factors of the variances of its sites.
    """

    program: Program
    values: list[Any]
    factors: Mapping[str, Any]


def read(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rewrite: Callable[[Program, Sequence[Value]], Callable[..., Any] | None] | None = None,
) -> RandomProgram:
    """Reads a function at arguments any leaf of which may be a `Gaussian`.

    `rewrite` makes an equal function of a program and its random inputs, which is read in its
    place; None where there is nothing to change. Functions whose sites are calibrated are read as
    they are.
    """
    _check((args, kwargs))
    args, factors = _calibrated.uncalibrated(args)
    means, named = jax.tree.map(
        lambda v: v.mean if _values.is_gaussian(v) else v,
        (args, kwargs),
        is_leaf=_values.is_gaussian,
    )
    program = _opened(f, means, named)
    positions = range(program.in_tree.num_leaves)
    arrays = jax.tree.unflatten(program.in_tree, positions)[1]
    leaves = jax.tree.leaves((args, {k: kwargs[k] for k in arrays}), is_leaf=_values.is_gaussian)
    values = [_values.Pooled.of(v) if _values.is_gaussian(v) else v for v in leaves]
    if rewrite is not None and (not factors or _calibrated.of_shared_pass(factors)):
        random = [v for v, x in zip(program.inputs, values, strict=True) if _values.is_gaussian(x)]
        other = rewrite(program, random)
        if other is not None:
            program = _opened(other, means, {k: named[k] for k in arrays})
    return RandomProgram(program, values, factors)


def _opened(f: Callable[..., Any], means: Sequence[Any], named: Mapping[str, Any]) -> Program:
    """Reads a function at arrays."""
    program = trace_live(f, *means, **named)
    check_open(program, "moments")
    check_certain(jax.tree.unflatten(program.out_tree, range(program.out_tree.num_leaves)))
    _open_unchanged(program)
    with_bias_vectors(program)
    return program


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
            name = jax.tree_util.keystr(path[2:], simple=True, separator="/")
            _values.check_gaussian(leaf, f"moments: argument {_position(path)}{name and ' '}{name}")


def _position(path: Any) -> str:
    return jax.tree_util.keystr(path[1:2], simple=True)


_REGIONS = {"elementwise", "normalization", "reduction"}


_DISCRETE = "computes with a discrete function of a random value"


IN_SHORT: Mapping[Any, Any] = {
    attention_moments: functools.partial(attention_moments, short=True),
    silu: silu_in_short,
    gelu: gelu_in_short,
    tanh_gelu: functools.partial(gelu_in_short, tanh=True),
    **_statistics.IN_SHORT,
}
"""What stands for dearer rules beside factors of sites, which make up for what it leaves out."""


@dataclass(frozen=True)
class Propagation:
    """One pass of moments over a program.

    Attributes:
        rules: The user's rules by primitive, and those of `IN_SHORT` by what they stand for.
        form: Moments that layers pass to each other, "variance" or "raw".
        note: Called for each place where independence is assumed.
        differentiable: Whether derivatives pass through variances; not those by expected slopes.
        shared: Whether noise of a kernel that positions share is followed to their mean;
            "attention": through attention as well.
        gaps: Gets the first covariance gap of each kind.
        once: Whether rules are evaluated once for equal layers, so that `note` hears of the first.
        expected_slopes: Whether derivatives of its results are expected slopes.
    """

    rules: Mapping[Any, Rule]
    form: str
    note: dependence.Note
    differentiable: bool = True
    shared: bool | str = False
    gaps: _values.Gaps = field(default_factory=dict)
    once: bool = False
    expected_slopes: ClassVar[bool] = True

    def run(self, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Evaluates `moments(f)` at arguments."""
        if not any(
            _values.is_gaussian(v)
            for v in jax.tree.leaves((args, kwargs), is_leaf=_values.is_gaussian)
        ):
            # Nothing is random: the function itself, so that results are equal bit for bit.
            result = f(*args, **kwargs)
            check_certain(result)
            return jax.tree.map(_result, result)
        program, values, factors = read(f, args, kwargs, steps_apart if self.shared else None)
        program = with_batch_axes(program)  # here, so that both passes know the same values
        assumptions: list[dependence.Assumption] = []
        prepared = replace(self, note=assumptions.append).prepare(program, values)
        of_results = _calibrated.of_shared_pass(factors)
        short = _calibrated.are_of_sites(factors)
        propagation = replace(self, rules={**IN_SHORT, **self.rules}) if short else self
        rule: Callable[..., Sequence[Any]] = functools.partial(propagation.layer, factors)
        if self.once and not factors:
            rule = once_for_equal(prepared, rule)
        known: Collection[Layer] = ()
        if of_results and not self.shared:
            raise ValueError(
                "moments: these factors were measured for moments(f) with what positions share, "
                "and shared=False leaves that out; leave out one of the two."
            )
        # Factors of sites were measured beside the diagonal pass, and hold what it forgets.
        if self.shared and (of_results or not factors):
            prepared, rule, known = with_shared_noise(
                rule, program, prepared, values, self.rules, self.gaps,
                attention=self.shared == "attention",
            )  # fmt: skip
        resolved = {(layer.site, layer.kind) for layer in known}
        for one in assumptions:
            if (one.site, one.kind) not in resolved:
                self.note(one)
        result = propagation.evaluated(prepared, rule, values)
        if not factors:  # bodies of loops are prepared while they are evaluated
            _values.warn_of(self.gaps)
        result = _calibrated.with_result_factors(
            result, of_results, _calibrated.result_name(expected_slopes=True)
        )
        return _calibrated.with_regressions(result, of_results or factors)

    def evaluated(self, program: Program, rule: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Evaluates a prepared program under a rule."""

        def prepare(part: Program, inputs: Sequence[Any]) -> Program:
            return part if part is program else self.prepare(part, inputs)

        # Loops take slices of their operands, and a variance of fewer entries has none.
        inside = {v for layer in program.layers if layer.programs for v in layer.inputs}
        values = [
            _values.to_variance(x) if v in inside and isinstance(x, _values.Pooled) else x
            for v, x in zip(program.inputs, values, strict=True)
        ]
        outputs = evaluate(program, rule, None, values, promote, prepare)
        return gaussian_results(program, outputs)

    def prepare(self, program: Program, values: Sequence[Any]) -> Program:
        """Fuses the layers that have to be integrated as a whole."""
        random = [v for v, x in zip(program.inputs, values, strict=True) if _values.is_random(x)]
        if not random:
            return program
        program = fuse_attention(program, random, self.rules, self.gaps)
        if self.shared:
            find_gaps(program, random, self.gaps)
        # Slopes are taken through means, which products with dependent operands hardly change.
        return dependence.fuse_dependent(program, random, self.note, products=self.differentiable)

    def layer(
        self, factors: Mapping[str, Any], layer: Layer, key: Any, *values: Any
    ) -> Sequence[Any]:
        """Computes the moments of one layer: the rule that `evaluate` calls."""
        outputs = self._moments(layer, key, values)
        if not self.differentiable:
            outputs = [_held(value) for value in outputs]
        # Factors come after the rule and before the next layer, as they were measured.
        if layer.site in factors and _calibrated.is_scaled(layer, outputs[0]):
            factor = _calibrated.factor_of(factors, layer.site, outputs[0])
            first = _values.Gaussian(outputs[0].mean, outputs[0].var * factor)
            return [first, *outputs[1:]]
        return outputs

    def own_variance(self, layer: Layer, *values: Any) -> Array:
        """Computes the variance of a linear layer's one result."""
        # No slope is taken through it, so it may have derivatives by the kernel's variances.
        (out,) = replace(self, differentiable=True).layer({}, layer, None, *values)
        return _values.to_variance(out).var

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
        if not self.differentiable:
            # Straight through: the value is rounded, the slope is one.
            mean = random[0].mean + jax.lax.stop_gradient(mean - random[0].mean)
        rounded = _rounded(layer, at_means, random[0])
        if rounded is None:
            # A layer that reads out light rounds downwards what it adds noise of its own to.
            if not layer.outputs[0].is_data or any(n.primitive is p.round_p for n in layer.nodes):
                self.gaps.setdefault("rounding", _UNROUNDED)
            return [_values.Gaussian(mean, var)]
        mean += jax.lax.stop_gradient(rounded.mean - mean)
        return [_values.Gaussian(mean, var + jax.lax.stop_gradient(rounded.var - var))]

    def _moments(self, layer: Layer, key: Any, values: Sequence[Any]) -> Sequence[Any]:
        random = any(_values.is_random(v) for v in values)
        if not layer.nodes or not (random or any(isinstance(v, _values.AtMean) for v in values)):
            return plain_rule(layer, key, *values)
        for node in layer.nodes:
            _values.check_real(node, layer.site)
        if not random:
            return _discrete(layer, values)
        if any(isinstance(v, _values.AtMean) for v in values):
            raise _values.no_rule(layer.nodes[-1], layer.site, _DISCRETE)
        if transform := read_out_by(layer.nodes):
            raise _values.MomentsError(
                f"moments: a random value reaches {layer.site!r}, which {transform} reads out; "
                f"take {transform}(moments(f), spec), which reads out the means, or what read-outs "
                "add as noise: moments(f, noise=read_out(f, params, x, spec))."
            )
        if layer.kind == "quantize":
            return self._quantize(layer, values)
        # A layer that another transform has acted on holds a program of its own. Factors belong to
        # sites outside of it, so it is evaluated without any.
        if layer.mark and layer.programs:
            rule = functools.partial(self.layer, {})
            return evaluate(layer.programs[0], rule, key, values, promote, self.prepare)
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
    if jnp.issubdtype(jnp.result_type(value), jnp.floating):
        value = jnp.asarray(value)
        return _values.Gaussian(value, jnp.zeros_like(value))
    return value


def promote(value: Any, like: Any) -> Any:
    """Brings a value to the structure of another, so that loops and branches keep one type."""
    if isinstance(like, _values.RawMoments):
        return _values.to_raw(_random(value))
    if isinstance(like, _values.Gaussian):
        return _values.to_variance(_random(value))
    if isinstance(like, _values.AtMean) and not isinstance(value, _values.AtMean):
        return _values.AtMean(value)
    return value


def _random(value: Any) -> Any:
    return value if _values.is_random(value) else _values.Gaussian(value, jnp.zeros_like(value))


def _discrete(layer: Layer, values: Sequence[Any]) -> list[Any]:
    """Evaluates a layer of discrete functions of random values, which stay discrete."""
    outputs = layer.fn(*(_values.at_mean(v) for v in values))
    for output in outputs:
        if jnp.issubdtype(jnp.result_type(output), jnp.inexact):
            raise _values.no_rule(layer.nodes[-1], layer.site, _DISCRETE)
    return [_values.AtMean(v) for v in outputs]


def _held(value: Any) -> Any:
    """Stops derivatives through the variance of a random value."""
    if not _values.is_random(value):
        return value
    if isinstance(value, _values.Pooled):
        value = _values.to_variance(value)
    if isinstance(value, _values.Gaussian):
        return replace(value, var=jax.lax.stop_gradient(value.var))
    # E[x^2] must still follow the mean: only the variance in it is held.
    return _values.RawMoments(value.mean, value.mean**2 + jax.lax.stop_gradient(value.var))


_UNROUNDED = _values.CovarianceGap(
    "what rounding to values that aren't evenly spaced adds to random ones",
    "too small",
    "calibrate_moments makes up for it",
)

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
    # An equation that rounds fewer numbers makes an offset of the grid.
    rounding = [
        node
        for node in layer.nodes
        if node.primitive is p.round_p and node.outputs[0].aval.shape == x.shape
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
            if v.aval.shape == x.shape
            and not (v in maker and maker[v].primitive is p.broadcast_in_dim_p)
        ]
        if len(operands) != 1:
            return None
        raw = operands[0]
    if raw not in maker or raw.aval.shape != x.shape:
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
    # Ends by their distance from the mean, in deviations of x.
    std = jnp.where(x.var > 0, jnp.sqrt(jnp.where(x.var > 0, x.var, 1)), 1)
    low, high = ((value_of(jnp.full_like(cell, far)) - x.mean) / std for far in (-_FAR, _FAR))
    below_low, above_high = jax.scipy.special.ndtr(low), jax.scipy.special.ndtr(-high)
    inside = 1 - below_low - above_high
    at_low, at_high = (jnp.exp(-(end**2) / 2) / np.sqrt(2 * np.pi) for end in (low, high))
    shift = low * below_low + high * above_high + at_low - at_high
    square = low**2 * below_low + high**2 * above_high + inside + low * at_low - high * at_high
    clipped = x.var * jnp.maximum(square - shift**2, 0) + inside * step**2 / 12
    if any(node.primitive in {p.reduce_max_p, p.reduce_min_p} for node in layer.nodes):
        shift, clipped = jnp.zeros_like(shift), x.var + step**2 / 12
    wide = noise > 1
    mean = jnp.where(known, jnp.where(wide, x.mean + std * shift, mean), y[_REACH])
    return _values.Gaussian(mean, jnp.where(known, jnp.where(wide, clipped, var), 0))


def _step(nearby: Array, around_zero: Array) -> Array:
    """Returns the distance of values on a grid, from those of codes one after the other.

    Beyond an end of the grid values are the same. Codes around zero are never all beyond one.
    """
    return jnp.maximum(*(abs(jnp.diff(y, axis=0)).max(0) for y in (nearby, around_zero)))


def batched_leaves(program: Program, count: int) -> list[bool]:
    """Returns which of the first inputs hold an example per place of their first axis.

    The first `count` inputs may; data among the others leaves the answer in doubt.
    """
    inputs = program.inputs[:count]
    data = [v for v in inputs if v.is_data]
    none = [False] * count
    if (
        not data
        or any(v.is_data for v in program.inputs[count:])
        or not all(v.aval.ndim for v in data)
        or len({v.aval.shape[0] for v in data}) > 1
    ):
        return none
    sources = [{v: dependence.identity(v.aval.shape)} if v in data else {} for v in program.inputs]
    for lineage in _followed(program, sources) or [{}]:
        if not lineage or any(not labels or labels[0] != 0 for labels in lineage.values()):
            return none
    # What else differs from row to row isn't there when one example is computed alone.
    if any(axes[0] for axes in dependence.varying_axes(program)):
        return none
    return [v.is_data for v in inputs]


def _followed(
    program: Program, sources: Sequence[dependence.Lineage]
) -> list[dependence.Lineage] | None:
    """Follows lineages to a program's outputs; None where there is a loop that isn't followed."""
    lineages = {v: x for v, x in zip(program.inputs, sources, strict=True) if x}
    for layer in program.layers:
        here = {v: lineages[v] for v in layer.inputs if v in lineages}
        if not here:
            continue
        if layer.kind == "control flow":
            results = _through_scan(layer, here)
            if results is None:
                return None
            # A layer has the outputs that are read; the loop's node has all of them.
            lineages.update(zip(layer.nodes[0].outputs, results, strict=True))
        elif not layer.nodes:
            lineages.update(
                (o, here[i]) for i, o in zip(layer.inputs, layer.outputs, strict=True) if i in here
            )
        else:
            reached, _ = dependence.follow_lineages(layer.nodes, here)
            lineages.update((v, reached[v]) for v in layer.outputs if v in reached)
    return [lineages.get(v, {}) if isinstance(v, Value) else {} for v in program.outputs]


def _through_scan(
    layer: Layer, lineages: Mapping[Value, dependence.Lineage]
) -> list[dependence.Lineage] | None:
    """Follows lineages through a scan; None if the layer is another loop or a branch."""
    if [node.primitive for node in layer.nodes] != [p.scan_p] or len(layer.programs) != 1:
        return None
    (node,), (body,) = layer.nodes, layer.programs
    operands = [lineages.get(a, {}) if isinstance(a, Value) else {} for a in node.inputs]
    loop = Scan.of(node, operands)
    # A step reads a place of the first axis. If that is the examples' own, no label of it is left,
    # so what is made of it isn't taken for an example's.
    rows = [{source: labels[1:] for source, labels in x.items()} for x in loop.xs]

    def step(
        carry: Sequence[dependence.Lineage],
    ) -> tuple[Sequence[dependence.Lineage], list[dependence.Lineage] | None]:
        results = _followed(body, loop.inputs(carry, rows))
        # A loop inside that isn't followed: this one ends as it is, and is given up.
        return (carry, None) if results is None else loop.split(results)

    carry, stacked = fixed_point(step, loop.carry, lambda a, b: dependence.union((a, b)))
    if stacked is None:
        return None
    return [*carry, *({s: (dependence.APART, *labels) for s, labels in x.items()} for x in stacked)]
