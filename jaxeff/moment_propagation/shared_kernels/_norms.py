"""What positions share behind normalizations of channels.

A layer norm takes its statistics at one position, from C channels. What they pass from one channel
to another is of order 1 / C, and left out: the norm is a gate. Of up to 32 channels, each with one
noise for all positions (that of a kernel of one weight a channel, or of a mean), it is followed by
the norm's slopes (`CrossedTerm`). Rectified multiples of one input have a norm that doesn't depend
on it: the noise of one channel is taken back in the others.

A group norm takes them from all positions P of the n channels of a group, N = P n entries. With the
standardised entries h = (x - mean) / deviation and D the scale over the deviation, to first order,

    δy[p, c] = D_c (δx[p, c] - δmean - h[p, c] δs),
    δmean = (1 / N) Σ_(p, c) δx[p, c],    δs = (1 / N) Σ_(p, c) h[p, c] δx[p, c].

Both statistics are the same at all positions, and noise of a kernel moves them: a mean over
positions lacks what they take away. What is a channel's own part of them is a linear map of its
positions (`MixedTerm`); the parts of the n - 1 other channels are noise of its own, of variance

    Var[Σ_(c' != c) z_c'] / n^2,    z_c = mean_p δx[p, c] or mean_p h[p, c] δx[p, c],

which moves entries by D and by D h. An RMS norm of groups has no δmean.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.moment_propagation.shared_kernels._noise import (
    divided,
    mean_over_positions,
    root,
    spread,
)
from jaxeff.moment_propagation.shared_kernels._rules import RuleContext, terms_of
from jaxeff.moment_propagation.shared_kernels._terms import (
    ContractionTerm,
    CrossedTerm,
    EntryTerm,
    LinearMap,
    MixedTerm,
    NoiseTerm,
    RestTerm,
    gated,
    read_out,
    weighted_covariance,
)
from jaxeff.moment_propagation.shared_kernels.layouts import (
    ChannelGroups,
    canonical,
    restored,
    shared_parameters,
)
from jaxeff.moment_propagation.values import Gaussian, MomentsWarning, is_random, to_variance
from jaxeff.program import Layer
from jaxeff.program.ir import Axes, Value

# The price of crossed slopes is that of a dense layer of as many channels. After a ReLU and before
# a mean, a gate alone has variances 1.55 (.54 to 4.4) times the true ones for 4 channels, 1.25 (.89
# to 5.7) for 8, 1.00 (.95 to 1.3) for 32.
_FEW_CHANNELS, _MANY_CHANNELS = 32, 12


class _Normalized(NamedTuple):
    """A normalization with its parameters certain.

    Attributes:
        value: The value that is normalized.
        given: The moments of that value.
        result: The moments of the result, of a certain scale.
        layout: The layout of both.
        parameters: What the noise of its parameters is.
    """

    value: Value
    given: Gaussian
    result: Gaussian
    layout: Axes
    parameters: list[NoiseTerm]


def normalization(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a normalization of channels at each position.

    Of many channels, what its statistics take from one is in the variances before and after, whose
    ratio is the gate.
    """
    outputs = here.moments(layer, *values)
    norm = _normalized(here, layer, values, outputs)
    if norm is None:
        return outputs
    var = canonical(norm.given.var, norm.layout)
    gate = root(divided(canonical(norm.result.var, norm.layout), var))
    terms = terms_of(here.noise, norm.value, var)
    if var.shape[-1] <= _FEW_CHANNELS and all(_is_one_noise(term) for term in terms):
        read_out(here.noise, norm.value)
        terms = _crossed(here, layer, values, norm, gate)
    else:
        if var.shape[-1] < _MANY_CHANNELS:
            _warn_of_few(layer, var.shape[-1])
        terms = gated(terms, gate)
    here.keep(layer.outputs[0], [*terms, *norm.parameters])
    return outputs


def _is_one_noise(term: NoiseTerm) -> bool:
    """Returns whether a channel's noise is one number times an amplitude at each position."""
    if isinstance(term, ContractionTerm):
        return math.prod(term.kernel[0].shape[:-1]) == 1
    return isinstance(term, EntryTerm | RestTerm)


def _warn_of_few(layer: Layer, channels: int) -> None:
    warnings.warn(
        f"moments: {layer.site or layer.kind!r} normalizes {channels} channels, which share their "
        "statistics, and a mean over positions adds up what these have in common; that is left "
        "out, and variances may be several times too small or too large. Take method='linear' or "
        "correlations=True, or moments(f, shared=False) to leave it so.",
        MomentsWarning,
        stacklevel=2,
    )


def _crossed(
    here: RuleContext, layer: Layer, values: Sequence[Any], norm: _Normalized, gate: Array
) -> list[NoiseTerm]:
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
    rest = jnp.maximum(canonical(norm.given.var, norm.layout) - a * a * spread(s, a), 0)
    one = jnp.ones_like(a)
    return [CrossedTerm(one, steps, s, norm.value), RestTerm(gate, rest, 1.0)]


def group_normalization(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a normalization over positions and groups of channels."""
    noise, outputs = here.noise, here.moments(layer, *values)
    norm = _normalized(here, layer, values, outputs)
    if norm is None:
        return outputs
    groups = ChannelGroups.of(layer, norm.value, norm.layout)
    # The plan holds no other layers.
    assert groups is not None
    x, var = (canonical(part, norm.layout) for part in (norm.given.mean, norm.given.var))
    y, after = (canonical(part, norm.layout) for part in (norm.result.mean, norm.result.var))
    # The slope is one number for a channel. Its sign, the scale's, is that of results by inputs.
    centred = x - spread(mean_over_positions(x), x)
    sign = jnp.where(mean_over_positions(centred * y) < 0, -1.0, 1.0).astype(x.dtype)
    slope = sign * root(divided(mean_over_positions(after), mean_over_positions(var)))
    if sum(term.source is not None for term in noise.terms.get(norm.value, ())) > 1:
        # Parts that share a source add up before they are squared.
        read_out(noise, norm.value)
    h = _standardised(x, var, groups)
    before = terms_of(noise, norm.value, var)
    own = _own_part(spread(slope, x), h, groups)
    ones = jnp.ones_like(x)
    terms: list[NoiseTerm] = [MixedTerm(ones, term, own) for term in before]
    for weight in (ones, h) if groups.is_centred else (h,):
        others = _of_others(weighted_covariance(noise, before, weight), groups)
        step = spread(slope * root(others), x) * weight
        terms.append(EntryTerm(-step, jnp.ones_like(others)))
    here.keep(layer.outputs[0], [*terms, *norm.parameters])
    return outputs


def _normalized(
    here: RuleContext, layer: Layer, values: Sequence[Any], outputs: Sequence[Any]
) -> _Normalized | None:
    """Returns the two ends of a normalization; None where nothing is followed."""
    source, layout = here.source(), here.layouts[layer.outputs[0]]
    if source is None or not is_random(outputs[0]):
        return None
    given = dict(zip(layer.inputs, values, strict=True))
    random = [v for v in layer.inputs if is_random(given[v]) and v is not source]
    still = {v: to_variance(x).mean if v in random else x for v, x in given.items()}
    result = here.moments(layer, *still.values())[0] if random else outputs[0]
    means = {**still, source: to_variance(given[source]).mean}
    terms: list[NoiseTerm] = []
    for v, is_number in shared_parameters(layer, random, layout).items():
        # A parameter moves all positions of a channel by its slope there.
        step = root(to_variance(given[v]).var)

        def of(w: Array, moved: Value = v) -> Array:
            return layer.fn(*(w if a is moved else means[a] for a in layer.inputs))[0]

        along = canonical(jax.jvp(of, (means[v],), (step,))[1], layout)
        one = jnp.ones((len(along), along.shape[-1]), along.dtype)
        terms.append(EntryTerm(along, one, is_number=is_number))
    return _Normalized(source, to_variance(given[source]), to_variance(result), layout, terms)


def _by_group(x: Array, groups: ChannelGroups) -> Array:
    """Brings `[batch, channels]` to `[batch, groups, channels of a group]`."""
    return x.reshape(len(x), groups.count, -1)


def _standardised(x: Array, var: Array, groups: ChannelGroups) -> Array:
    """Computes h, the entries less their group's mean over its deviation, or over its root."""

    def of_group(per_channel: Array) -> Array:
        mean = _by_group(per_channel, groups).mean(-1, keepdims=True)
        return jnp.broadcast_to(mean, _by_group(per_channel, groups).shape).reshape(x.shape[0], -1)

    if groups.is_centred:
        x = x - spread(of_group(mean_over_positions(x)), x)
    power = of_group(mean_over_positions(x * x + var))
    return jnp.where(spread(power, x) > 0, divided(x, spread(root(power), x)), 0)


def _own_part(slope: Array, h: Array, groups: ChannelGroups) -> LinearMap:
    """Makes the map of a channel's noise to its results, its own part of the statistics included.

    L δ = D (δ - (1 / N) Σ_p δ - (1 / N) h Σ_p h δ), and without the first sum for an RMS norm.
    """
    size = h.shape[-1] // groups.count  # N over the number of positions
    centre = 1.0 if groups.is_centred else 0.0

    def mean(x: Array) -> Array:
        return spread(mean_over_positions(x), h) / size

    def less_statistics(x: Array) -> Array:
        return x - centre * mean(x) - h * mean(h * x)

    def squared(x: Array) -> Array:
        # Σ_q (δ_pq - (c + h_p h_q) / N)^2 V_q, multiplied out.
        entries = size * h[0, ..., 0].size
        both = centre * mean(x) + 2 * centre * h * mean(h * x) + h * h * mean(h * h * x)
        return slope**2 * (x * (1 - 2 * (centre + h * h) / entries) + both / entries)

    return LinearMap(
        lambda x: slope * less_statistics(x), lambda x: less_statistics(slope * x), squared
    )


def _of_others(covariance: Array, groups: ChannelGroups) -> Array:
    """Computes the variances of what all other channels of a group add to its statistic.

    Args:
        covariance: The covariance of the channels' means, `[batch, channels, channels]`.
        groups: The groups.

    Returns:
        `[batch, channels]`.
    """
    batch, channels, _ = covariance.shape
    size = channels // groups.count
    blocks = covariance.reshape(batch, groups.count, size, groups.count, size)
    blocks = jnp.einsum("bgigj->bgij", blocks)
    # Of the sum over both indices, what has c in one of them goes off, once.
    rows, own = blocks.sum(-1), jnp.einsum("bgii->bgi", blocks)
    others = blocks.sum((-2, -1))[..., None] - 2 * rows + own
    return jnp.maximum(others.reshape(batch, channels), 0) / size**2
