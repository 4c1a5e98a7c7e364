"""The diagonal pass with what positions share, where a kernel's noise reaches a mean over them.

Behind normalizations of channels, what positions share is changed. A layer norm takes its
statistics at one position, from C channels. What they pass from one channel to another is of order
1 / C, and left out: the norm is a gate. Of up to 32 channels, each with one noise for all positions
(that of a kernel of one weight a channel, or of a mean), it is followed by the norm's slopes
(`CrossedTerm`). Rectified multiples of one input have a norm that doesn't depend on it: the noise
of one channel is taken back in the others.

A group norm takes them from all positions P of the n channels of a group, N = P n entries. With the
standardised entries h = (x - mean) / deviation and D the scale over the deviation, to first order,

    δy[p, c] = D_c (δx[p, c] - δmean - h[p, c] δs),
    δmean = (1 / N) Σ_(p, c) δx[p, c],    δs = (1 / N) Σ_(p, c) h[p, c] δx[p, c].

Both statistics are the same at all positions, and noise of a kernel moves them: a mean over
positions lacks what they take away. What is a channel's own part of them is a linear map of its
positions (`MixedTerm`); the parts of the n - 1 other channels are noise of its own, of variance

    Var[Σ_(c' != c) z_c'] / n^2,    z_c = mean_p δx[p, c] or mean_p h[p, c] δx[p, c],

which moves entries by D and by D h. An RMS norm of groups has no δmean.

Loops whose steps don't wait for each other are taken all at once, and their results added. A scan
that only adds to its carry, `c + f(w, x_t)`, or only stacks what its steps make, computes a sum or
rows of one function at many inputs. As a function of all rows its steps are positions, whose noise
is followed (`_plan`); as a loop, they would be taken as independent. A carry that is read in
another way (a recurrent state) stays a loop, unless it is certain: a count, a schedule.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import Literal
from jaxeff.core import primitives as p
from jaxeff.moment_propagation._values import (
    CovarianceGap,
    Gaps,
    Gaussian,
    is_random,
    to_variance,
)
from jaxeff.moment_propagation.dependence import FusedLayer, WholeLayer, with_layers
from jaxeff.moment_propagation.shared_kernels import _channels, _layouts, _plan, _terms
from jaxeff.moment_propagation.shared_kernels import _rules as rules
from jaxeff.moment_propagation.shared_kernels._layouts import canonical, restored
from jaxeff.moment_propagation.shared_kernels._rules import RuleContext, terms_of
from jaxeff.program import Layer, Program, plain_rule, run_layers
from jaxeff.program.ir import Axes, Scan, Value
from jaxeff.program.ir import primitives as prim

# The price of crossed slopes is that of a dense layer of as many channels. After a ReLU and before
# a mean, a gate alone has variances 1.24 (.69 to 19) times the true ones for 4 channels, 1.04 (.74
# to 2.2) for 8, 1.04 (.82 to 1.6) for 12; before another convolution 1.09 (.40 to 1.5) for 3, 1.05
# (.80 to 1.6) for 4, 1.00 (.95 to 1.2) for 8.
_FEW_CHANNELS, _MANY_CHANNELS, _MANY_BEFORE_A_KERNEL = 32, 12, 4


class _Normalized(NamedTuple):
    """A normalization with its parameters certain.

    Attributes:
        value: The value that is normalized.
        operand: The moments of that value.
        result: The moments of the result, of a certain scale.
        layout: The layout of both.
        parameters: What the noise of its parameters is.
    """

    value: Value
    operand: Gaussian
    result: Gaussian
    layout: Axes
    parameters: list[_terms.NoiseTerm]


def normalization(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a normalization of channels at each position.

    Of many channels, what its statistics take from one is in the variances before and after, whose
    ratio is the gate.
    """
    outputs = here.moments(layer, *values)
    norm = _normalized(here, layer, values, outputs)
    if norm is None:
        return outputs
    var = canonical(norm.operand.var, norm.layout)
    gate = _terms.root(_terms.divided(canonical(norm.result.var, norm.layout), var))
    terms = terms_of(here.noise, norm.value, var)
    if var.shape[-1] <= _FEW_CHANNELS and all(_is_one_noise(term) for term in terms):
        _terms.marginalise(here.noise, norm.value)
        terms = _crossed(here, layer, values, norm, gate)
    else:
        enough = _MANY_CHANNELS if here.is_pooled else _MANY_BEFORE_A_KERNEL
        if (channels := var.shape[-1]) < enough:
            what = (
                f"what {channels} channels share of the statistics of {layer.site or layer.kind!r}"
            )
            here.gaps.setdefault("channels", CovarianceGap(what, "mostly too large"))
        terms = _terms.gated(terms, gate)
    here.keep(layer.outputs[0], [*terms, *norm.parameters])
    return outputs


def _is_one_noise(term: _terms.NoiseTerm) -> bool:
    """Returns whether a channel's noise is one number times an amplitude at each position."""
    if isinstance(term, _terms.ContractionTerm):
        return math.prod(term.kernel[0].shape[:-1]) == 1
    return isinstance(term, _terms.EntryTerm | _terms.ResidualTerm)


def _crossed(
    here: RuleContext, layer: Layer, values: Sequence[Any], norm: _Normalized, gate: Array
) -> list[_terms.NoiseTerm]:
    """Returns what the noise of all channels moves entries by, and the rest of each entry."""
    a, s = here.noise.amplitudes[norm.value], here.noise.variances[norm.value]
    means = {
        v: to_variance(x).mean if is_random(x) else x
        for v, x in zip(layer.inputs, values, strict=True)
    }

    def of_value(x: Array) -> Array:
        return layer.fn(*(x if v is norm.value else means[v] for v in layer.inputs))[0]

    along = jax.linearize(of_value, means[norm.value])[1]

    def of_channel(unit: Array) -> Array:
        return canonical(along(restored(a * unit, norm.layout)), norm.layout)

    steps = jax.vmap(of_channel, out_axes=-2)(jnp.eye(a.shape[-1], dtype=a.dtype))
    residual = jnp.maximum(
        canonical(norm.operand.var, norm.layout) - a * a * _terms.spread(s, a), 0
    )
    one = jnp.ones_like(a)
    return [_terms.CrossedTerm(one, steps, s, norm.value), _terms.ResidualTerm(gate, residual, 1.0)]


def group_normalization(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a normalization over positions and groups of channels."""
    noise, outputs = here.noise, here.moments(layer, *values)
    norm = _normalized(here, layer, values, outputs)
    if norm is None:
        return outputs
    groups = _channels.ChannelGroups.of(layer, norm.value, norm.layout)
    # The plan holds no other layers.
    assert groups is not None
    x, var = (canonical(part, norm.layout) for part in (norm.operand.mean, norm.operand.var))
    y, after = (canonical(part, norm.layout) for part in (norm.result.mean, norm.result.var))
    # The slope is one number for a channel. Its sign, the scale's, is that of results by inputs.
    centred = x - _terms.spread(_terms.mean_over_positions(x), x)
    sign = jnp.where(_terms.mean_over_positions(centred * y) < 0, -1.0, 1.0).astype(x.dtype)
    slope = sign * _terms.root(
        _terms.divided(_terms.mean_over_positions(after), _terms.mean_over_positions(var))
    )
    if sum(term.source is not None for term in noise.terms.get(norm.value, ())) > 1:
        # Parts that share a source add up before they are squared.
        _terms.marginalise(noise, norm.value)
    h = _standardised(x, var, groups)
    before = terms_of(noise, norm.value, var)
    itself = _own_part(_terms.spread(slope, x), h, groups)
    ones = jnp.ones_like(x)
    terms: list[_terms.NoiseTerm] = [_terms.MixedTerm(ones, term, itself) for term in before]
    for weight in (ones, h) if groups.is_centred else (h,):
        others = _of_others(_terms.weighted_covariance(noise, before, weight), groups)
        step = _terms.spread(slope * _terms.root(others), x) * weight
        terms.append(_terms.EntryTerm(-step, jnp.ones_like(others)))
    here.keep(layer.outputs[0], [*terms, *norm.parameters])
    return outputs


def _normalized(
    here: RuleContext, layer: Layer, values: Sequence[Any], outputs: Sequence[Any]
) -> _Normalized | None:
    """Returns the two ends of a normalization; None where nothing is followed."""
    source, layout = here.source(), here.layouts[layer.outputs[0]]
    if source is None or not is_random(outputs[0]):
        return None
    operands = dict(zip(layer.inputs, values, strict=True))
    random = [v for v in layer.inputs if is_random(operands[v]) and v is not source]
    still = {v: to_variance(x).mean if v in random else x for v, x in operands.items()}
    result = here.moments(layer, *still.values())[0] if random else outputs[0]
    means = {**still, source: to_variance(operands[source]).mean}
    terms: list[_terms.NoiseTerm] = []
    for v, is_number in _channels.shared_parameters(layer, random, layout).items():
        # A parameter moves all positions of a channel by its slope there.
        step = _terms.root(to_variance(operands[v]).var)

        def of(w: Array, moved: Value = v) -> Array:
            return layer.fn(*(w if a is moved else means[a] for a in layer.inputs))[0]

        along = canonical(jax.jvp(of, (means[v],), (step,))[1], layout)
        one = jnp.ones((len(along), along.shape[-1]), along.dtype)
        terms.append(_terms.EntryTerm(along, one, is_number=is_number))
    return _Normalized(source, to_variance(operands[source]), to_variance(result), layout, terms)


def _by_group(x: Array, groups: _channels.ChannelGroups) -> Array:
    """Brings `[batch, channels]` to `[batch, groups, channels of a group]`."""
    return x.reshape(len(x), groups.count, -1)


def _standardised(x: Array, var: Array, groups: _channels.ChannelGroups) -> Array:
    """Computes h, the entries less their group's mean over its deviation, or over its root."""

    def of_group(per_channel: Array) -> Array:
        mean = _by_group(per_channel, groups).mean(-1, keepdims=True)
        return jnp.broadcast_to(mean, _by_group(per_channel, groups).shape).reshape(x.shape[0], -1)

    if groups.is_centred:
        x = x - _terms.spread(of_group(_terms.mean_over_positions(x)), x)
    power = of_group(_terms.mean_over_positions(x * x + var))
    return jnp.where(
        _terms.spread(power, x) > 0, _terms.divided(x, _terms.spread(_terms.root(power), x)), 0
    )


def _own_part(slope: Array, h: Array, groups: _channels.ChannelGroups) -> _terms.LinearMap:
    """Makes the map of a channel's noise to its results, its own part of the statistics included.

    L δ = D (δ - (1 / N) Σ_p δ - (1 / N) h Σ_p h δ), and without the first sum for an RMS norm.
    """
    size = h.shape[-1] // groups.count  # N over the number of positions
    centre = 1.0 if groups.is_centred else 0.0

    def mean(x: Array) -> Array:
        return _terms.spread(_terms.mean_over_positions(x), h) / size

    def less_statistics(x: Array) -> Array:
        return x - centre * mean(x) - h * mean(h * x)

    def squared(x: Array) -> Array:
        # Σ_q (δ_pq - (c + h_p h_q) / N)^2 V_q, multiplied out.
        entries = size * h[0, ..., 0].size
        both = centre * mean(x) + 2 * centre * h * mean(h * x) + h * h * mean(h * h * x)
        return slope**2 * (x * (1 - 2 * (centre + h * h) / entries) + both / entries)

    return _terms.LinearMap(
        lambda x: slope * less_statistics(x), lambda x: less_statistics(slope * x), squared
    )


def _of_others(covariance: Array, groups: _channels.ChannelGroups) -> Array:
    """Computes the variances of what all other channels of a group add to its statistic.

    `covariance` is that of the channels' means, `[batch, channels, channels]`. Returns `[batch,
    channels]`.
    """
    batch, channels, _ = covariance.shape
    size = channels // groups.count
    blocks = covariance.reshape(batch, groups.count, size, groups.count, size)
    blocks = jnp.einsum("bgigj->bgij", blocks)
    # Of the sum over both indices, what has c in one of them goes off, once.
    rows, variances = blocks.sum(-1), jnp.einsum("bgii->bgi", blocks)
    others = blocks.sum((-2, -1))[..., None] - 2 * rows + variances
    return jnp.maximum(others.reshape(batch, channels), 0) / size**2


NORMALIZATION = _plan.SharingRule(_plan.match_normalization, normalization)
GROUP_NORMALIZATION = _plan.SharingRule(
    _plan.match_group_normalization, group_normalization, resolves=True
)

RULES = (
    rules.CONTRACTION, rules.JOIN, rules.POINTWISE, rules.POOLING, rules.GATHERED, rules.MIXING,
    rules.CHOSEN, rules.ATTENDED, NORMALIZATION, GROUP_NORMALIZATION,
)  # fmt: skip
"""The rules, in the order in which they are tried."""


def with_shared_noise(
    moments: Callable[..., Sequence[Any]],
    program: Program,
    prepared: Program,
    values: Sequence[Any],
    own_rules: Mapping[Any, Any],
    gaps: Gaps,
    attention: bool = False,
) -> tuple[Program, Callable[..., Sequence[Any]], Collection[Layer]]:
    """Makes the rule of layers that carries what positions share; the given one if none does.

    Args:
        moments: The diagonal rule, `moments(layer, key, *values)`.
        program: The program.
        prepared: The same with layers joined that the diagonal pass integrates together.
        values: Inputs of the program.
        own_rules: The user's rules by primitive.
        gaps: Gets the first covariance gap of each kind.
        attention: Whether it is followed through attention, too.

    Returns:
        The prepared program, in which poolings that have a rule here aren't joined with what comes
        before them; a rule for one evaluation of it; and the layers that don't take what positions
        share as independent any more.
    """
    random = [v for v, x in zip(program.inputs, values, strict=True) if is_random(x)]
    joined = [v for v in prepared.layers if isinstance(v, FusedLayer | WholeLayer)]
    program = _channels.with_splits_apart(program)
    heads = _channels.heads_layers(prepared) if attention else []
    plan, kept = _settled(program, random, joined, heads, _plan.matcher(RULES, own_rules))
    gaps.update(plan.gaps)
    if not plan.rules:
        return prepared, moments, ()
    apart = {v for layer in plan.rules for v in layer.outputs}
    pooled = {v for v in apart if _layouts.positions(v.aval.shape, plan.layouts[v]) == 1}
    kept += [_behind(v, pooled) for v in joined if v not in kept and v.outputs[0] not in apart]
    # A sum of two branches still lacks what they share at a single position.
    resolved = [layer for layer, rule in plan.rules.items() if rule.resolves]
    return _with(program, kept), _rule(moments, plan, gaps), resolved


def _behind(joined: Layer, pooled: set[Value]) -> Layer:
    """Cuts off what a joined layer has before a pooling, which is another layer's with a rule."""
    results = {v for node in joined.nodes for v in node.outputs}
    if pooled.isdisjoint(results):
        return joined
    nodes, read = list[Any](), set(joined.outputs)
    for node in reversed(joined.nodes):
        outputs = set(node.outputs)
        if not read.isdisjoint(outputs) and pooled.isdisjoint(outputs):
            nodes.insert(0, node)
            read.update(node.values)
    inside = {v for node in nodes for v in node.outputs}
    inputs = dict.fromkeys(v for node in nodes for v in node.values if v not in inside)
    return replace(joined, nodes=tuple(nodes), inputs=tuple(inputs))


def _settled(
    program: Program,
    random: Collection[Value],
    joined: Sequence[Layer],
    heads: Sequence[Layer],
    match: _plan.Matcher,
) -> tuple[_plan.SharingPlan, list[Layer]]:
    """Plans until every layer that was joined of others has a rule for which it stays one.

    A statistic of positions is one function; other poolings are followed layer by layer. Between
    two reshapes of the channels no axis is theirs: what stands there is one layer, where that
    gives it a rule. Which of those there are shows when the poolings are settled.
    """

    def planned(kept: Sequence[Layer]) -> _plan.SharingPlan:
        return _plan.plan_of(_with(program, kept), random, match)

    channels, kept = _channels.with_channels_joined(program), [*joined, *heads]
    plan = planned(kept)
    for further, staying in (
        ([], {v: {rules.MIXING} for v in joined if _pools(v)}),
        ([], {v: {rules.ATTENDED} for v in heads}),
        (channels, {v: {rules.CHOSEN, GROUP_NORMALIZATION} for v in channels}),
    ):
        if further:
            kept += further
            plan = planned(kept)
        while dropped := [v for v in kept if v in staying and plan.rules.get(v) not in staying[v]]:
            kept = [v for v in kept if v not in dropped]
            plan = planned(kept)
    return plan, kept


def _pools(layer: Layer) -> bool:
    """Returns whether a joined layer holds more than functions of entries."""
    if isinstance(layer, WholeLayer):
        return False
    primitives = {node.primitive for node in layer.nodes}
    return not primitives.isdisjoint(
        {*prim.REDUCTION, *prim.WINDOW, *prim.LINEAR, p.cumsum_p, p.scatter_add_p}
    )


def _with(program: Program, joined: Iterable[Layer]) -> Program:
    """Puts joined layers in the places of the last that each was joined of."""
    instead = {layer.outputs[0]: layer for layer in joined}
    layers = [instead.get(layer.outputs[0], layer) for layer in program.layers]
    return with_layers(program, layers)


def _rule(
    moments: Callable[..., Sequence[Any]], plan: _plan.SharingPlan, gaps: Gaps
) -> Callable[..., Sequence[Any]]:
    noise = _terms.SharedNoise()

    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        if layer not in plan.rules:
            return moments(layer, key, *values)

        def diagonal(part: Layer, *inputs: Any) -> Sequence[Any]:
            return moments(part, key, *inputs)

        number = plan.numbers[layer]
        sources, shared = plan.sources[layer], plan.read_by_several
        pooled = not plan.pooled.isdisjoint(layer.outputs)
        here = rules.RuleContext(noise, diagonal, sources, plan.layouts, shared, gaps, pooled)
        outputs = plan.rules[layer].apply(here, layer, values)
        done = [v for v in noise.values if plan.last_read.get(v, -1) <= number]
        noise.forget(v for v in done if v not in layer.outputs)
        return [_of_one_dtype(x) for x in outputs]

    return rule


def _of_one_dtype(x: Any) -> Any:
    """Gives a variance its mean's dtype: of bfloat16, some of what is shared is in float32."""
    return Gaussian(x.mean, x.var.astype(x.mean.dtype)) if type(x) is Gaussian else x


_SUMS = {p.add_p, p.add_jaxvals_p}


@dataclass(frozen=True)
class _Steps:
    """A scan whose steps can be taken at once.

    Attributes:
        added: Whether steps only add to a carry, for each; the others are certain.
    """

    added: tuple[bool, ...]


def steps_apart(program: Program, random: Collection[Value]) -> Callable[..., Any] | None:
    """Makes a program's function with the steps of loops taken at once where that is possible.

    Args:
        program: A program.
        random: Inputs of it that are random.

    Returns:
        A function of the same arguments; None if there is no such loop.
    """
    steps_of = _parallel_scans(program, set(random))
    if not steps_of:
        return None

    def outputs_of(layer: Layer, inputs: Sequence[Any]) -> Sequence[Any]:
        if layer not in steps_of:
            return plain_rule(layer, None, *inputs)
        (node,) = layer.nodes
        env = dict(zip(layer.inputs, inputs, strict=True))
        values = [a.val if isinstance(a, Literal) else env[a] for a in node.inputs]
        results = dict(zip(node.outputs, _at_once(layer, steps_of[layer], values), strict=True))
        return [results[v] for v in layer.outputs]

    def apart(*args: Any, **kwargs: Any) -> Any:
        outputs = run_layers(program, jax.tree.leaves((args, kwargs)), outputs_of)
        return jax.tree.unflatten(program.out_tree, outputs)

    return apart


def _parallel_scans(program: Program, random: set[Value]) -> Mapping[Layer, _Steps]:
    read = set[Value]().union(*(layer.inputs for layer in program.layers))
    steps_of = {}
    for layer in program.layers:
        noisy = random.intersection(layer.inputs)
        if not noisy:
            continue
        random.update(layer.outputs)
        steps = _steps(layer, noisy)
        # Rows that nobody adds up stay in a loop, which holds one of them at a time.
        if steps is not None and (any(steps.added) or read.intersection(layer.outputs)):
            steps_of[layer] = steps
    return steps_of


def _steps(layer: Layer, random: Collection[Value]) -> _Steps | None:
    """Reads a layer; None for another one than a scan of steps that don't wait."""
    if layer.kind != "control flow" or layer.nodes[0].primitive is not p.scan_p:
        return None
    loop, (body,) = Scan.of(layer.nodes[0], layer.nodes[0].inputs), layer.programs
    # Rows of their own share nothing.
    if not loop.length or not any(_is_in(v, random) for v in loop.consts):
        return None
    first, last = len(loop.consts), len(loop.consts) + len(loop.carry)
    before, after = body.inputs[first:last], body.outputs[: len(loop.carry)]
    added = tuple(_only_adds(body, v, end) for v, end in zip(before, after, strict=True))
    outer = [*loop.consts, *loop.carry, *loop.xs]
    noisy = {
        inner
        for i, (inner, argument) in enumerate(zip(body.inputs, outer, strict=True))
        if _is_in(argument, random) and not (first <= i < last and added[i - first])
    }
    for part in body.layers:
        if not noisy.isdisjoint(part.inputs):
            noisy.update(part.outputs)
    waits = any(
        not adds and (v in noisy or end in noisy)
        for adds, v, end in zip(added, before, after, strict=True)
    )
    return None if waits else _Steps(added)


def _is_in(argument: Any, values: Collection[Value]) -> bool:
    return isinstance(argument, Value) and argument in values


def _only_adds(body: Program, start: Value, end: Any) -> bool:
    """Returns whether a carry is read by one chain of additions alone, which ends in itself."""
    nodes = [node for layer in body.layers for node in layer.nodes]
    value = start
    while value is not end:
        readers = [node for node in nodes if value in node.values]
        if value in body.outputs or len(readers) != 1:
            return False
        (node,) = readers
        if node.primitive not in _SUMS or sum(a is value for a in node.inputs) != 1:
            return False
        if node.outputs[0].aval.shape != start.aval.shape:
            return False
        value = node.outputs[0]
    return value is not start and list(body.outputs).count(value) == 1


def _at_once(layer: Layer, steps: _Steps, values: Sequence[Any]) -> list[Any]:
    """Evaluates a scan as a function of all of its rows."""
    loop, (body,) = Scan.of(layer.nodes[0], values), layer.programs

    def of_row(certain: Sequence[Any], row: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        left = iter(certain)
        # What a step adds to zero is what it adds.
        carry = [
            jnp.zeros_like(v) if adds else next(left)
            for adds, v in zip(steps.added, loop.carry, strict=True)
        ]
        outputs = run_layers(
            body, loop.inputs(carry, row), lambda one, v: plain_rule(one, None, *v)
        )
        return loop.split(outputs)

    def chosen(carry: Sequence[Any], adds: bool) -> list[Any]:
        return [v for v, is_sum in zip(carry, steps.added, strict=True) if is_sum is adds]

    def step(certain: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        return chosen(of_row(certain, row)[0], adds=False), certain

    first = chosen(loop.carry, adds=False)
    end, states = jax.lax.scan(step, first, loop.xs, loop.length, loop.reverse)
    results, rows = jax.vmap(of_row, axis_size=loop.length)(states, loop.xs)
    sums = iter(chosen(results, adds=True))
    ends = iter(end)
    carry = [
        v + next(sums).sum(0) if adds else next(ends)
        for adds, v in zip(steps.added, loop.carry, strict=True)
    ]
    return [*carry, *rows]
