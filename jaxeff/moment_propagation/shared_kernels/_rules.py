"""The rules of layers that carry what positions share.

With S the variances of z (`SharedNoise`), V the variance of an entry and rest = V - a^2 S:

- A contraction with kernel w of variance v, tap by tap: z' = L^T z + e, where L is the kernel
  summed over taps, each weighted by the amplitude it reads on average, and e the kernel's own
  noise, independent by channel, of variance sum v (x_t^2 + a_t^2 S), x_t the mean a tap reads.
- A function of entries: z' = sum_i g_i z_i over its operands, with the expected slopes g times a,
  averaged over positions. Variances are the diagonal pass's, plus what two operands share.
- A pooling: the rest is pooled as if it were independent, the shared part by its expected slope.

Expected slopes are derivatives of propagated means by means (`_covariance` says why).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.moment_propagation.dependence import SHARED, identity, walk
from jaxeff.moment_propagation.regions import Environment, propagate
from jaxeff.moment_propagation.shared_kernels._contraction import PositionContraction
from jaxeff.moment_propagation.shared_kernels._layout import (
    CHANNEL,
    canonical,
    pooled,
    positions,
    restored,
    takes_extremum,
)
from jaxeff.moment_propagation.shared_kernels._noise import (
    Columns,
    SharedNoise,
    divided,
    normalized,
    root,
    spread,
)
from jaxeff.moment_propagation.shared_kernels._plan import split
from jaxeff.moment_propagation.values import Gaussian, is_random, to_variance
from jaxeff.program import Layer
from jaxeff.program.ir import Axes, Value

Moments = Callable[..., Sequence[Any]]
"""The diagonal pass: `moments(layer, *values)`."""


class RuleContext(NamedTuple):
    """What a rule needs beside a layer and its values.

    Attributes:
        noise: What positions share so far; a rule adds its result's.
        moments: The diagonal pass.
        sources: The layer's inputs whose noise is followed.
        layouts: The layouts of values that are followed.
        read_later: Values that later layers read.
    """

    noise: SharedNoise
    moments: Moments
    sources: Sequence[Value]
    layouts: Mapping[Value, Axes]
    read_later: Collection[Value]


def contraction(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a convolution or dense layer, and adds its result to the noise."""
    noise, layouts = here.noise, here.layouts
    before, op, after = split(layer)
    read = PositionContraction.of(op) if op is not None else None
    # The plan holds no other layers.
    assert op is not None
    assert read is not None
    env = Environment.of(layer, values, {}, lambda _: None)
    propagate(before, env)
    given, kernel = (env.read(a) for a in op.inputs)
    source, made = next((v for v in here.sources if v in noise.amplitudes), None), layer.outputs[0]
    made_in = layouts[made] if read.layouts is None else read.layouts[1]
    mean, var = _contracted(here, read, source, (given, kernel), (op.outputs[0], layouts[made]))
    env.write(op.outputs, [Gaussian(restored(mean, made_in), restored(var, made_in))])
    if not after:
        return [env.read(made)]
    inner = {v for n in after for v in n.outputs}
    inputs = tuple(dict.fromkeys(v for n in after for v in n.values if v not in inner))
    rest = Layer("elementwise", tuple(after), inputs, layer.outputs, layer.site, layer.base)
    inside = here._replace(
        sources=op.outputs, layouts={op.outputs[0]: made_in, made: layouts[made]}
    )
    outputs = pointwise(inside, rest, [env.read(v) for v in inputs])
    noise.forget([op.outputs[0]])
    return outputs


def _contracted(
    here: RuleContext,
    read: PositionContraction,
    source: Value | None,
    operands: tuple[Any, Any],
    result: tuple[Value, Axes],
) -> tuple[Array, Array]:
    """Computes the canonical mean and variance of a contraction, and records its result."""
    noise, (given, kernel), (made, layout) = here.noise, operands, result
    w, v = (read.kernel(part) for part in _parts(kernel))
    m, spreads = (canonical(part, _of_operand(read, layout)) for part in _parts(given))
    mean = read.apply(m, w)
    local = m * spread(m.mean(tuple(range(1, m.ndim - 1))), m)
    var = shared = jnp.zeros_like(mean)
    sources, through_kernel = {}, jnp.zeros((m.shape[0], w.shape[-1]), w.dtype)
    if source is not None:
        a = noise.amplitudes[source].reshape(m.shape)
        s = noise.variances[source]
        common = a * a * spread(s, m)
        # Both at once: half as many operations to compile.
        a_taps, taps = jnp.split(read.by_tap(jnp.concatenate([a, m])), 2)
        squares = taps**2 + a_taps**2 * s.reshape(*a_taps.shape[:-1], 1)
        local = local + a * spread(s, m)
        slopes = read.slopes(w, a_taps)
        sources[source] = slopes
        through_kernel = _own_variance(slopes, noise, source)
        shared = _amplitude(read, w, a, common)
        var = read.apply(jnp.maximum(spreads - common, 0), w * w)
        var = var + shared**2 * spread(through_kernel, mean)
    else:
        squares = read.by_tap(m) ** 2
        var = read.apply(spreads, w * w) if is_random(given) else shared
    own = read.own(v, squares)
    if is_random(kernel):
        var = var + read.apply(m * m + spreads, v)
        profile, _ = normalized(read.apply(local, v))
    else:
        profile = jnp.ones_like(mean)
    total = own + through_kernel
    numerator = profile * spread(own, mean) + shared * spread(through_kernel, mean)
    # Its mean over positions is one, for those of both profiles are.
    amplitude = divided(numerator, spread(total, mean))
    noise.record(made, amplitude, total, own, sources, here.read_later)
    return mean, var


def _amplitude(read: PositionContraction, w: Array, a: Array, common: Array) -> Array:
    """Computes where a result's share of its operand's noise acts, with a mean of one."""
    if read.is_depthwise:
        return normalized(read.apply(a, w))[0]
    # A result adds what its taps read: their sum is taken as the kernel's sum over taps, which
    # differs by how much the amplitude differs within a window.
    taps = w.reshape(-1, *w.shape[-2:]).sum(0)
    return normalized(root(jnp.maximum(read.apply(common, w * taps), 0)))[0]


def _own_variance(slopes: Array, noise: SharedNoise, source: Value) -> Array:
    covariance = noise.covariances[source, source]
    if slopes.ndim == 2:
        return slopes**2 * noise.variances[source]
    return jnp.maximum((slopes * (covariance @ slopes)).sum(1), 0)


def _of_operand(read: PositionContraction, layout: Axes) -> Axes:
    return layout if read.layouts is None else read.layouts[0]


def _parts(value: Any) -> tuple[Array, Array]:
    if not is_random(value):
        return value, jnp.zeros_like(value)
    moments = to_variance(value)
    return moments.mean, moments.var


def pointwise(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a function of entries, and adds its result to the noise."""
    noise, layouts = here.noise, here.layouts
    given, layout = dict(zip(layer.inputs, values, strict=True)), layouts[layer.outputs[0]]
    sources = [v for v in here.sources if v in noise.amplitudes]
    shared = _shared(layer, [v for v in given if is_random(given[v]) and v not in sources], layout)
    along, outputs = _slopes(here.moments, layer, given, [*sources, *shared])
    if along is None:
        return outputs
    made = layer.outputs[0]
    # What one unit of each source's noise moves the result by.
    steps = {
        v: canonical(along(v, restored(noise.amplitudes[v], layouts[v])), layout) for v in sources
    }
    fresh = {v: canonical(along(v, root(to_variance(given[v]).var)), layout) for v in shared}
    means = {v: normalized(t)[1] for v, t in {**steps, **fresh}.items()}
    like = next(iter({**steps, **fresh}.values()))
    own = jnp.zeros((*like.shape[:1], like.shape[-1]), like.dtype)
    total, numerator, extra = own, jnp.zeros_like(like), jnp.zeros_like(like)
    for v, t in steps.items():
        with_all = jnp.zeros_like(total)
        for u in sources:
            with_all = with_all + noise.shared_variance(v, u) * means[u]
        total = total + means[v] * with_all
        numerator = numerator + t * spread(with_all, t)
    for v, t in fresh.items():
        own = own + means[v] ** 2
        numerator = numerator + t * spread(means[v], t)
    total = total + own
    for i, v in enumerate(sources):
        for u in sources[i + 1 :]:
            both = jnp.broadcast_to(noise.shared_variance(v, u), total.shape)
            extra = extra + 2 * steps[v] * steps[u] * spread(both, like)
    amplitude = divided(numerator, spread(total, like))
    matrix = _fresh_covariance(own, means, shared)
    noise.record(made, amplitude, total, matrix, {v: means[v] for v in sources}, here.read_later)
    if len(sources) < 2:
        return outputs
    result = to_variance(outputs[0])
    least = amplitude**2 * spread(jnp.maximum(total, 0), like)
    var = jnp.maximum(canonical(result.var, layout) + extra, least)
    return [Gaussian(result.mean, restored(var, layout))]


def join(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Puts channels side by side, and what their positions share."""
    noise, outputs = here.noise, here.moments(layer, *values)
    made = layer.outputs[0]
    layout = here.layouts[made]
    size, start = made.aval.shape[layout.index(CHANNEL)], 0
    amplitudes, variances, sources = [], [], {}
    for value in layer.nodes[0].inputs:
        shape = canonical(jnp.empty(value.aval.shape, value.aval.dtype), layout).shape
        known = isinstance(value, Value) and value in noise.amplitudes
        if known:
            sources[value] = Columns(start, size)
        amplitudes.append(noise.amplitudes[value] if known else jnp.ones(shape, made.aval.dtype))
        variances.append(noise.variances[value] if known else jnp.zeros((shape[0], shape[-1])))
        start += shape[-1]
    total = jnp.concatenate(variances, -1)
    own = jnp.zeros_like(total)
    amplitude = jnp.concatenate(amplitudes, -1)
    noise.record(made, amplitude, total, own, sources, here.read_later)
    return outputs


def _fresh_covariance(own: Array, means: dict[Value, Array], shared: dict[Value, bool]) -> Array:
    """Returns the covariance that parameters add: diagonal, but for a number for all channels."""
    if not any(shared.values()):
        return own
    matrix = jnp.zeros((*own.shape, own.shape[-1]), own.dtype)
    for v, is_number in shared.items():
        product = means[v][:, :, None] * means[v][:, None, :]
        unit = jnp.eye(own.shape[-1], dtype=own.dtype)
        matrix = matrix + (product if is_number else product * unit)
    return matrix


def _shared(layer: Layer, random: Sequence[Value], layout: Axes) -> dict[Value, bool]:
    """Finds parameters that all positions share, and whether all channels share them, too."""
    made = layer.outputs[0]
    found = {}
    for value in random:
        lineages, _ = walk(layer.nodes, {value: {value: identity(value.aval.shape)}})
        labels = lineages.get(made, {}).get(value)
        if labels is None:
            continue
        places = [
            x
            for x, a, n in zip(labels, layout, made.aval.shape, strict=True)
            if a not in (0, CHANNEL) and n != 1
        ]
        if all(x == SHARED for x in places):
            found[value] = any(
                x == SHARED for x, a in zip(labels, layout, strict=True) if a == CHANNEL
            )
    return found


def pooling(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a pooling of positions, and adds its result to the noise."""
    noise, layouts = here.noise, here.layouts
    given, layout = dict(zip(layer.inputs, values, strict=True)), layouts[layer.outputs[0]]
    source = next((v for v in here.sources if v in noise.amplitudes), None)
    if source is None:
        return here.moments(layer, *values)
    before = layouts[source]
    m, var = _parts(given[source])
    a, s = noise.amplitudes[source], noise.variances[source]
    rest = jnp.maximum(canonical(var, before) - a * a * spread(s, a), 0)
    given[source] = Gaussian(m, restored(rest, before))
    along, outputs = _slopes(here.moments, layer, given, [source])
    if along is None:
        return outputs
    step = canonical(along(source, restored(a, before)), layout)
    amplitude, mean = normalized(step)
    noise.record(
        layer.outputs[0],
        amplitude,
        mean**2 * s,
        jnp.zeros_like(mean),
        {source: mean},
        here.read_later,
    )
    result = to_variance(outputs[0])
    of_rest = canonical(result.var, layout)
    if not takes_extremum(layer.nodes):
        # The rest has no mean over positions: what a sum over all of them would leave is nothing.
        every = positions(m.shape, before)
        of_rest = of_rest * (1 - min(pooled(layer.nodes, {source: before}) / every, 1))
    made = of_rest + step**2 * spread(s, step)
    return [Gaussian(result.mean, restored(made, layout))]


def _slopes(
    moments: Moments, layer: Layer, given: dict[Value, Any], chosen: Sequence[Value]
) -> tuple[Callable[[Value, Array], Array] | None, Sequence[Any]]:
    """Returns a function of an operand and a step of its mean, and the layer's moments.

    There is no function where nothing is followed, or the result is certain.
    """
    if not chosen:
        return None, moments(layer, *(given[v] for v in layer.inputs))
    spreads = {v: to_variance(given[v]) for v in chosen}

    def mean_of(at: Sequence[Array]) -> tuple[Array, Sequence[Any]]:
        moved = dict(zip(chosen, at, strict=True))
        operands = [
            Gaussian(moved[v], spreads[v].var) if v in moved else given[v] for v in layer.inputs
        ]
        outputs = moments(layer, *operands)
        first = outputs[0]
        return (first.mean if is_random(first) else first), outputs

    start = [spreads[v].mean for v in chosen]
    _, pushed, outputs = jax.linearize(mean_of, start, has_aux=True)
    if not is_random(outputs[0]):
        return None, outputs

    def along(value: Value, step: Array) -> Array:
        steps = [
            step if v is value else jnp.zeros_like(m) for v, m in zip(chosen, start, strict=True)
        ]
        return pushed(steps)

    return along, outputs
