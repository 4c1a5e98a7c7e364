"""The rules of layers that carry what positions share.

With S the variances of z (`SharedNoise`), V the variance of an entry and residual = V - a^2 S:

- A contraction adds its kernel's noise to what it makes of its operand's (`_terms`).
- A function of entries multiplies what its operands are made of by expected slopes, position by
  position. Variances are the diagonal pass's, plus what two operands share.
- A function that combines positions channel by channel maps their noise linearly (`_channels`).
- Normalizations are in `_pass`.
- Attention, with probabilities p, o = p v, and noise a z of its operands, adds to first order

      values    Σ_j p_ij a_je z_e,
      queries   Σ_d z_d mean_i a_id τ (Σ_j p_ij k_jd v_je - (p k)_id o_ie),
      keys      Σ_d z_d mean_i τ Σ_j p_ij q_id a_jd (v_je - o_ie).

  Slopes by queries and keys differ between tokens: their mean is what reaches a mean over tokens,
  and the rest is taken as noise of each entry.
- A pooling: residuals are pooled as if they were independent, shared parts by expected slopes.

Expected slopes are derivatives of propagated means by means (`_covariance` says why).
"""

import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import Literal, jax_internals
from jaxeff.core import primitives as p
from jaxeff.moment_propagation import _attention
from jaxeff.moment_propagation._propagation import Environment, propagate
from jaxeff.moment_propagation._values import Activated, Gaps, Gaussian, is_random, to_variance
from jaxeff.moment_propagation.shared_kernels import _channels as channels
from jaxeff.moment_propagation.shared_kernels import _layouts, _plan, _terms
from jaxeff.program import Layer
from jaxeff.program.ir import Axes, Value
from jaxeff.program.ir import primitives as prim

_LINEAR = {"linear", "matmul", "shape"}
_KINKED = {p.max_p, p.custom_jvp_call_p}  # what a ReLU is written by
_SUMS = {p.add_p, p.add_jaxvals_p, p.sub_p}
_LINEAR_OF_ONE = prim.MOVES | {p.neg_p, p.convert_element_type_p, p.copy_p, p.name_p}

Moments = Callable[..., Sequence[Any]]
"""The diagonal pass: `moments(layer, *values)`."""


class RuleContext(NamedTuple):
    """What a rule needs beside a layer and its values.

    Attributes:
        noise: What positions share so far; a rule adds its result's.
        moments: The diagonal pass.
        sources: The layer's inputs whose noise is followed.
        layouts: The layouts of values that are followed.
        shared: Values that several layers read.
        gaps: Gets what a rule leaves out.
        is_pooled: Whether the layer's result reaches a pooling without another kernel.
    """

    noise: _terms.SharedNoise
    moments: Moments
    sources: Sequence[Value]
    layouts: Mapping[Value, Axes]
    shared: Collection[Value]
    gaps: Gaps
    is_pooled: bool

    def source(self) -> Value | None:
        """Returns the first input whose noise is known."""
        return next((v for v in self.sources if self.noise.knows(v)), None)

    def keep(self, result: Value, terms: Sequence[_terms.NoiseTerm]) -> None:
        """Keeps what the noise of a layer's result is made of."""
        self.noise.terms[result] = terms
        if result in self.shared:
            # Each of its readers would take another part of a kernel's noise, and forget that it
            # is the same noise.
            _terms.marginalise(self.noise, result)


def contraction(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a convolution or dense layer, and adds its result to the noise."""
    noise, layouts = here.noise, here.layouts
    before, op, after = _layouts.split_at_contraction(layer)
    read = _layouts.PositionContraction.of(op) if op is not None else None
    # The plan holds no other layers.
    assert op is not None
    assert read is not None
    env = Environment.of(layer, values, {}, lambda _: None)
    propagate(before, env)
    source, result = here.source(), layer.outputs[0]
    image, kernel = (env.read(a) for a in read.operands)
    places = tuple(a for a in layouts[result] if a != _layouts.CHANNEL)
    of_image, layout = read.layouts or ((*places, _layouts.CHANNEL), read.of_product(places))
    terms, outputs = _contracted(noise, read, source, (image, kernel), of_image)
    product = op.outputs[0]
    while after and after[0].primitive is p.transpose_p:  # of the same entries, in canonical order
        move, *after = after
        layout = (_layouts.follow([move], {product: layout}) or {})[move.outputs[0]]
        product = move.outputs[0]
    env.write([product], [Gaussian(*(_layouts.restored(part, layout) for part in outputs))])
    if not after:
        here.keep(result, terms)
        return [env.read(result)]
    inner = {v for n in after for v in n.outputs}
    inputs = tuple(dict.fromkeys(v for n in after for v in n.values if v not in inner))
    epilogue = Layer("elementwise", tuple(after), inputs, layer.outputs, layer.site, layer.base)
    noise.terms[product] = terms
    known = {product: layout, result: layouts[result]}
    inside = here._replace(sources=[product], layouts=known)
    results = pointwise(inside, epilogue, [env.read(v) for v in inputs])
    noise.forget([product])
    return results


def _contracted(
    noise: _terms.SharedNoise,
    read: _layouts.PositionContraction,
    source: Value | None,
    operands: tuple[Any, Any],
    of_image: Axes,
) -> tuple[list[_terms.NoiseTerm], tuple[Array, Array]]:
    """Computes what a contraction's noise is made of, and its canonical mean and variance."""
    image, kernel = operands
    w, v = (read.kernel(part) for part in _parts(kernel))
    m, spreads = (_layouts.canonical(part, of_image) for part in _parts(image))
    mean = read.apply(m, w)
    none = jnp.zeros((len(m), mean.shape[-1]), mean.dtype)
    term = _terms.ContractionTerm(jnp.ones_like(mean), none, read, m, (w, v))
    residual, share = spreads, 0.0
    if source is not None:
        _terms.marginalise(noise, source)
        a, s = noise.amplitudes[source].reshape(m.shape), noise.variances[source]
        common = a * a * _terms.spread(s, m)
        slopes = read.slopes(w, read.by_tap(w, a.shape[1:-1]))
        slopes = jnp.broadcast_to(slopes, (len(a), *slopes.shape[1:]))
        term = replace(
            term,
            variance=_variance_through(slopes, noise.covariances[source, source], s),
            source=source,
            through=(a, s),
            slopes=slopes,
        )
        residual, share = jnp.maximum(spreads - common, 0), _size(mean) / _size(m)
    terms, var = list[_terms.NoiseTerm]([term]), jnp.zeros_like(mean)
    if is_random(image):
        var = read.apply(residual, w * w)
        terms.append(_terms.ResidualTerm(term.gate, var, share))
        var = var + _terms.spread(term.variance, mean)
    if is_random(kernel):
        var = var + read.apply(m * m + spreads, v)
    return terms, (mean, var)


def _size(x: Array) -> int:
    """Returns the number of positions."""
    return math.prod(x.shape[1:-1])


def _variance_through(slopes: Array, covariance: Array, variances: Array) -> Array:
    if slopes.ndim == 2:
        return slopes**2 * variances
    return jnp.maximum((slopes * (covariance @ slopes)).sum(1), 0)


def _parts(value: Any) -> tuple[Array, Array]:
    if not is_random(value):
        return value, jnp.zeros_like(value)
    moments = to_variance(value)
    return moments.mean, moments.var


def pointwise(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a function of entries, and adds its result to the noise."""
    noise, layouts = here.noise, here.layouts
    operands, layout = dict(zip(layer.inputs, values, strict=True)), layouts[layer.outputs[0]]
    sources = [v for v in here.sources if noise.knows(v)]
    if len(sources) == 1 and _is_move(layer, sources[0], layouts):
        var = _layouts.canonical(to_variance(operands[sources[0]]).var, layouts[sources[0]])
        here.keep(layer.outputs[0], terms_of(noise, sources[0], var))
        return here.moments(layer, *values)
    for v in sources:
        if not _layouts.keeps_entries(layer, v):
            _terms.marginalise(noise, v)
    others = [v for v in operands if is_random(operands[v]) and v not in sources]
    shared = channels.shared_parameters(layer, others, layout)
    along, outputs = _slopes(here.moments, layer, operands, [*sources, *shared])
    if along is None:
        return outputs
    parts: list[list[_terms.NoiseTerm]] = []
    for v in sources:
        if not _layouts.keeps_entries(layer, v):
            step = along(v, _layouts.restored(noise.amplitudes[v], layouts[v]))
            step = _layouts.canonical(step, layout)
            parts.append([_terms.EntryTerm(step, noise.variances[v], v)])
            continue
        # Each entry is made of the same one, so the slope there is all that a step needs.
        slope = along(v, None)
        slope = None if slope is None else _layouts.canonical(slope, layout)
        var = _layouts.canonical(to_variance(operands[v]).var, layout)
        parts.append(_terms.gated(terms_of(noise, v, var), slope))
    for v, is_number in shared.items():
        step = _layouts.canonical(along(v, _terms.root(to_variance(operands[v]).var)), layout)
        one = jnp.ones((len(step), step.shape[-1]), step.dtype)
        parts.append([_terms.EntryTerm(step, one, is_number=is_number)])
    here.keep(layer.outputs[0], [term for part in parts for term in part])
    if len(sources) < 2:
        return outputs
    extra = _shared_by_operands(noise, parts)
    terms = [term for part in parts for term in part]
    alone = sum(
        term.gate**2 * _terms.spread(term.variance, term.gate)
        for term in terms
        if isinstance(term, _terms.AlikeTerm | _terms.EntryTerm | _terms.ContractionTerm)
    )
    result = to_variance(outputs[0])
    var = _layouts.canonical(result.var, layout) + extra
    var = jnp.maximum(var, jnp.maximum(alone + extra, 0))
    return [Gaussian(result.mean, _layouts.restored(var, layout))]


def _is_move(layer: Layer, value: Value, layouts: Mapping[Value, Axes]) -> bool:
    """Returns whether a layer moves axes of a value, but not in the canonical layout."""
    result = layer.outputs[0]
    if not _layouts.only_moves(layer.nodes, {value: layouts[value]}):
        return False
    ends = [(v.aval.shape, layouts[v]) for v in (value, result)]
    one, other = (
        [a for a in layout if a not in (_layouts.BATCH, _layouts.CHANNEL)] for _, layout in ends
    )
    shapes = (_layouts.canonical(jnp.empty(shape), layout).shape for shape, layout in ends)
    return one == other and len(set(shapes)) == 1


def _shared_by_operands(
    noise: _terms.SharedNoise, parts: Sequence[Sequence[_terms.NoiseTerm]]
) -> Array:
    """Computes twice the covariance of what different operands do to entries."""
    extra = jnp.zeros_like(parts[0][0].gate)
    for i, ours in enumerate(parts):
        for one, other in itertools.product(ours, itertools.chain(*parts[i + 1 :])):
            both = _terms.covary(noise, one, other)
            if both is not None:
                extra = extra + 2 * both
    return extra


def join(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Puts channels or positions side by side, and what these positions share."""
    noise, outputs = here.noise, here.moments(layer, *values)
    result = layer.outputs[0]
    layout = here.layouts[result]
    for value in layer.inputs:
        if noise.knows(value):
            _terms.marginalise(noise, value)
    if layout[layer.nodes[0].params["dimension"]] != _layouts.CHANNEL:
        here.keep(result, _beside(here, layer, values))
        return outputs
    size, start = result.aval.shape[layout.index(_layouts.CHANNEL)], 0
    amplitudes, sources = [], []
    for value in layer.nodes[0].inputs:
        shape = _layouts.canonical(jnp.empty(value.aval.shape, value.aval.dtype), layout).shape
        known = isinstance(value, Value) and value in noise.amplitudes
        if known:
            sources.append((value, _terms.Columns(start, size)))
        amplitudes.append(noise.amplitudes[value] if known else jnp.ones(shape, result.aval.dtype))
        start += shape[-1]
    amplitude = jnp.concatenate(amplitudes, -1)
    nothing = jnp.zeros((len(amplitude), size), amplitude.dtype)
    noise.record(result, amplitude, *noise.combined(sources, nothing))
    return outputs


def _beside(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[_terms.NoiseTerm]:
    """Returns what the noise of positions is made of that stand beside others."""
    noise, (node,), layout = here.noise, layer.nodes, here.layouts[layer.outputs[0]]

    def in_place(part_of: Mapping[Value, Array]) -> Array:
        parts = [
            _layouts.restored(part_of[v], layout) if v in part_of else jnp.zeros_like(v.aval)
            for v in node.values
        ]
        return _layouts.canonical(jnp.concatenate(parts, node.params["dimension"]), layout)

    terms, rest, others = list[_terms.NoiseTerm](), dict[Value, Array](), dict[Value, Array]()
    for v, x in zip(layer.inputs, values, strict=True):
        var = _layouts.canonical(_parts(x)[1], layout)
        if v in noise.amplitudes:
            a, s = noise.amplitudes[v], noise.variances[v]
            terms.append(_terms.EntryTerm(in_place({v: a}), s, v))
            rest[v] = jnp.maximum(var - a * a * _terms.spread(s, a), 0)
        elif is_random(x):
            others[v] = var
    for part_of, share in ((rest, 1.0), (others, 0.0)):
        if part_of:
            variance = in_place(part_of)
            terms.append(_terms.ResidualTerm(jnp.ones_like(variance), variance, share))
    return terms


def pooling(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a pooling of positions, and adds its result to the noise."""
    noise, layouts = here.noise, here.layouts
    operands, layout = dict(zip(layer.inputs, values, strict=True)), layouts[layer.outputs[0]]
    source = here.source()
    if source is None:
        return here.moments(layer, *values)
    _terms.marginalise(noise, source)
    before = layouts[source]
    m, var = _parts(operands[source])
    a, s = noise.amplitudes[source], noise.variances[source]
    residual = jnp.maximum(_layouts.canonical(var, before) - a * a * _terms.spread(s, a), 0)
    share = min(
        _layouts.pooled(layer.nodes, {source: before}) / _layouts.positions(m.shape, before), 1
    )
    if share == 1 and _layouts.is_sum(layer.nodes, source):
        # Of all positions only their mean is left: how they differ isn't computed.
        a, residual = jnp.ones_like(a), jnp.zeros_like(residual)
    operands[source] = Gaussian(m, _layouts.restored(residual, before))
    along, outputs = _slopes(here.moments, layer, operands, [source])
    if along is None:
        return outputs
    step = _layouts.canonical(along(source, _layouts.restored(a, before)), layout)
    amplitude, mean = _terms.normalized(step)
    of_source = noise.combined([(source, mean)], jnp.zeros_like(mean))
    noise.record(layer.outputs[0], amplitude, *of_source)
    result = to_variance(outputs[0])
    of_residual = _layouts.canonical(result.var, layout)
    if not _layouts.takes_extremum(layer.nodes):
        # The rest has no mean over positions: what a sum over all of them would leave is nothing.
        of_residual = of_residual * (1 - share)
    new_variance = of_residual + step**2 * _terms.spread(s, step)
    return [Gaussian(result.mean, _layouts.restored(new_variance, layout))]


def mixing(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes a function that combines positions channel by channel."""
    noise, target = here.noise, layer.outputs[0]
    operands, source = dict(zip(layer.inputs, values, strict=True)), here.source()
    if source is None:
        return here.moments(layer, *values)
    outputs = here.moments(layer, *values)
    if not is_random(outputs[0]):
        return outputs
    before, after = here.layouts[source], here.layouts[target]
    m, var = _parts(operands[source])
    if sum(term.source is not None for term in noise.terms.get(source, ())) > 1:
        # Parts that share a source add up before they are squared.
        _terms.marginalise(noise, source)

    def at(x: Any) -> list[Any]:
        return [x if v is source else operands[v] for v in layer.inputs]

    # Slopes at the means: a rule's mean of a softmax or a logarithm is dear to differentiate.
    of_means = jax.linearize(lambda x: layer.fn(*at(x))[0], m)[1]
    transposed = jax.linear_transpose(of_means, m)

    def of_variances(x: Array) -> Array:
        return to_variance(here.moments(layer, *at(Gaussian(m, x)))[0]).var

    by = _terms.LinearMap(
        lambda x: _finite(_layouts.canonical(of_means(_layouts.restored(x, before)), after)),
        lambda x: _finite(_layouts.canonical(transposed(_layouts.restored(x, after))[0], before)),
        lambda x: _layouts.canonical(of_variances(_layouts.restored(x, before)), after),
    )
    of_entries = _layouts.canonical(var, before)
    terms = terms_of(noise, source, of_entries)
    # A single entry has its own variance, bends of the functions before it included.
    bends = of_entries - channels.variance_of(terms)
    if layer.kind not in _LINEAR and not _layouts.is_sum(layer.nodes, source):
        bends = jnp.maximum(bends, 0)
    of_bends = by.squared(bends)
    ones = jnp.ones_like(of_bends)
    mixed = [_terms.MixedTerm(ones, term, by) for term in terms]
    here.keep(target, mixed)
    if ones.size == len(ones) * ones.shape[-1]:
        # One result of a channel: no more than its own mean.
        _terms.marginalise(noise, target)
        var = noise.variances[target].reshape(ones.shape)
    else:
        var = channels.variance_of(mixed)
    result = to_variance(outputs[0])
    return [Gaussian(result.mean, _layouts.restored(jnp.maximum(var + of_bends, 0), after))]


def _finite(x: Array) -> Array:
    """Puts zero where a function has no slope: the root of a dead channel's variance."""
    return jnp.where(jnp.isfinite(x), x, 0)


def chosen(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Takes some of the channels of a value, in an order of their own: a shuffle, a slice."""
    noise, outputs, result = here.noise, here.moments(layer, *values), layer.outputs[0]
    source = here.source()
    if source is None:
        return outputs
    _terms.marginalise(noise, source)
    numbers = channels.chosen_channels(layer, source, here.layouts[source])
    # The plan holds no other layers.
    assert numbers is not None
    index = np.asarray(numbers)
    # A channel keeps its noise: rows and columns of covariances are put in the new order.
    amplitude = noise.amplitudes[source][..., index]
    nothing = jnp.zeros((len(amplitude), len(index)), amplitude.dtype)
    noise.record(
        result, amplitude, *noise.combined([(source, _terms.ChosenChannels(index))], nothing)
    )
    return outputs


def gathered(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Takes rows of positions, and of what their noise is made of."""
    noise, outputs, result = here.noise, here.moments(layer, *values), layer.outputs[0]
    source = here.source()
    if source is None:
        return outputs
    operands, layout = dict(zip(layer.inputs, values, strict=True)), here.layouts[source]
    var = _layouts.canonical(to_variance(operands[source]).var, layout)

    def rows_of(x: Array) -> Array:
        return layer.fn(*(x if v is source else operands[v] for v in layer.inputs))[0]

    terms = noise.terms.get(source, ())
    if any(
        isinstance(x, _terms.MixedTerm)
        or (isinstance(x, _terms.ContractionTerm) and x.read.layouts)
        for x in terms
    ):
        # Of a convolution's result, what its taps read isn't the same rows of its image.
        _terms.marginalise(noise, source)
    rows = channels.rows_by(rows_of, (layout, here.layouts[result]), var.shape)
    here.keep(result, channels.rearranged(terms_of(noise, source, var), rows))
    return outputs


def attended(here: RuleContext, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
    """Computes attention, and adds its result to the noise."""
    assert isinstance(layer, channels.HeadsLayer)
    noise, inner, axes = here.noise, layer.inner, layer.inner.axes
    known = dict(zip(layer.inputs, values, strict=True))
    layout = here.layouts[layer.outputs[0]]
    # Of a kernel's noise each result of a head weighs tokens in its own way: what reaches a mean
    # over tokens isn't what reaches that of the values.
    before = noise.terms.get(layer.operands[2], ())
    for v in layer.operands:
        _terms.marginalise(noise, v)
    split = [layer.score.queries, layer.score.keys, inner.values]
    moments = [to_variance(known[v]) for v in layer.operands]
    inside = {v: known[v] for v in inner.inputs if v not in split}
    arrays = {
        v: Gaussian(layer.moved(i, m.mean), layer.moved(i, m.var))
        for i, (v, m) in enumerate(zip(split, moments, strict=True))
    }
    certain = {**inside, **arrays, inner.values: arrays[inner.values].mean}
    (result,) = here.moments(inner, *(certain[v] for v in inner.inputs))
    means = inside | {v: x.mean for v, x in arrays.items()}
    scores = _attention.scores_of(inner, means, arrays)
    p = jax.nn.softmax(scores["scores"], axes.scores.index(axes.softmax))

    def weighted(p: Array, x: Array) -> Array:
        x = layer.moved(2, _layouts.restored(x, layout))
        y = _attention.sum_of(axes.result, (axes.scores, p), (axes.v, x))
        return _layouts.canonical(layer.moved(3, y.reshape(inner.outputs[0].aval.shape)), layout)

    value = moments[2]
    m, var = (_layouts.canonical(x, layout) for x in (value.mean, value.var))
    forward = functools.partial(weighted, p)
    adjoint = jax.linear_transpose(forward, m)
    by = _terms.LinearMap(forward, lambda x: adjoint(x)[0], functools.partial(weighted, p * p))
    ones = jnp.ones_like(m)
    entries = terms_of(noise, layer.operands[2], var)
    total = channels.variance_of([_terms.MixedTerm(ones, term, by) for term in entries])
    terms: list[Any] = [_terms.MixedTerm(ones, term, by) for term in before or entries]
    mean, of_scores = (
        _layouts.canonical(layer.moved(3, x), layout) for x in (result.mean, result.var)
    )
    of_operands = scores | {k: means[v] for k, v in zip("qkv", split, strict=True)}
    terms += _of_scores(noise, layer, of_operands, of_scores, layout)
    here.keep(layer.outputs[0], terms)
    return [Gaussian(_layouts.restored(mean, layout), _layouts.restored(total + of_scores, layout))]


def _of_scores(
    noise: _terms.SharedNoise,
    layer: channels.HeadsLayer,
    arrays: Mapping[str, Array],
    variance: Array,
    layout: Axes,
) -> list[_terms.NoiseTerm]:
    """Returns what queries and keys move results by.

    Args:
        noise: What positions share.
        layer: The attention.
        arrays: Scores, their slope, and the means of queries, keys and values.
        variance: What the noise of scores adds to each result's variance, canonical.
        layout: The layout of the result.
    """
    ones, terms = jnp.ones_like(variance), list[_terms.NoiseTerm]()
    amplitudes = [
        layer.moved(i, _layouts.restored(noise.amplitudes[v], layout))
        for i, v in enumerate(layer.operands[:2])
    ]
    slopes = _attention.mean_slopes(layer.inner.axes, arrays, *amplitudes)
    for v, of in zip(layer.operands, slopes, strict=False):
        blocks = _blocks(layer, of, len(variance))
        s = _variance_through(blocks, noise.covariances[v, v], noise.variances[v])
        terms.append(_terms.AlikeTerm(ones, s, v, blocks))
        variance = variance - _terms.spread(s, ones)
    return [*terms, _terms.ResidualTerm(ones, jnp.maximum(variance, 0), 0.0)]


def _blocks(layer: channels.HeadsLayer, slopes: tuple[str, Array], batch: int) -> Array:
    """Puts the slopes of heads into one matrix, `[batch, channels, channels]`."""
    letters, x = slopes
    others, heads = letters[:-2], layer.heads
    order = [*(a for a in others if a != heads), *heads, *letters[-2:]]
    x = jnp.transpose(x, [letters.index(a) for a in order])
    x = x.reshape(batch, -1, *x.shape[-2:])
    count, size, to = x.shape[1:]
    full = jnp.einsum("bhde,hg->bhdge", x, jnp.eye(count, dtype=x.dtype))
    return full.reshape(batch, count * size, count * to)


def terms_of(noise: _terms.SharedNoise, value: Value, var: Array) -> Sequence[_terms.NoiseTerm]:
    """Returns what a value's noise is made of: after it was read out, itself and the rest."""
    if value in noise.terms:
        terms: Sequence[_terms.NoiseTerm] = noise.terms[value]
        return terms
    a, s = noise.amplitudes[value], noise.variances[value]
    residual = jnp.maximum(var - a * a * _terms.spread(s, a), 0)
    return [_terms.EntryTerm(a, s, value), _terms.ResidualTerm(jnp.ones_like(a), residual, 1.0)]


Along = Callable[[Value, Array | None], Any]
"""`along(operand, step)`: by how much a step of an operand's mean moves the result's.

None is a step of one everywhere, and the same as an answer to it."""


def _slopes(
    moments: Moments, layer: Layer, operand_of: dict[Value, Any], chosen: Sequence[Value]
) -> tuple[Along | None, Sequence[Any]]:
    """Returns a function of an operand and a step of its mean, and the layer's moments.

    There is no function where nothing is followed, or the result is certain.
    """
    operands = [operand_of[v] for v in layer.inputs]
    if not chosen:
        return None, moments(layer, *operands)
    if _is_multilinear(layer, [v for v in layer.inputs if is_random(operand_of[v])]):
        outputs = moments(layer, *operands)
        return (_along_means(layer, operand_of) if is_random(outputs[0]) else None), outputs
    spreads = {v: to_variance(operand_of[v]) for v in chosen}
    if len(chosen) == len(layer.nodes) == 1 and layer.nodes[0].primitive in _KINKED:
        outputs = moments(layer, *operands)
        known = _known_slope(outputs[0], spreads[chosen[0]])
        if known is not None:
            slope = known
            return (lambda _, step: slope if step is None else slope * step), outputs

    def mean_of(at: Sequence[Array]) -> tuple[Array, Sequence[Any]]:
        moved = dict(zip(chosen, at, strict=True))
        operands = [
            Gaussian(moved[v], spreads[v].var) if v in moved else operand_of[v]
            for v in layer.inputs
        ]
        outputs = moments(layer, *operands)
        first = outputs[0]
        return (first.mean if is_random(first) else first), outputs

    start = [spreads[v].mean for v in chosen]
    _, pushed, outputs = jax.linearize(mean_of, start, has_aux=True)
    if not is_random(outputs[0]):
        return None, outputs

    def along(value: Value, step: Array | None) -> Array:
        steps = [
            jnp.zeros_like(m) if v is not value else jnp.ones_like(m) if step is None else step
            for v, m in zip(chosen, start, strict=True)
        ]
        return pushed(steps)

    return along, outputs


def _known_slope(result: Any, of: Gaussian) -> Array | None:
    """Returns the slope of a function of the same entries that has one in closed form."""
    if not isinstance(result, Activated) or result.slope is None:
        return None
    return result.slope(of) if result.before.mean is of.mean else None


def _is_multilinear(layer: Layer, random: Collection[Value]) -> bool:
    """Returns whether a result's mean is the layer's function of its operands', linear in each."""
    made_of = {v: {v} for v in random}
    for node in layer.nodes:
        parts = [made_of.get(v, set()) for v in node.values]
        every = set[Value]().union(*parts)
        if not every:
            continue
        # Factors that are made of different operands are independent.
        is_product = node.primitive is p.mul_p and sum(map(len, parts)) == len(every)
        if not is_product and node.primitive not in _SUMS | _LINEAR_OF_ONE:
            return False
        made_of.update((v, every) for v in node.outputs)
    return True


def _along_means(layer: Layer, operand_of: Mapping[Value, Any]) -> Along:
    """Makes the slopes of a multilinear function, by its equations that a step passes."""
    means = {v: to_variance(x).mean if is_random(x) else x for v, x in operand_of.items()}
    maker = {v: node for node in layer.nodes for v in node.outputs}
    result = layer.outputs[0]

    def mean(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        if atom not in means:
            node = maker[atom]
            values = jax_internals.bind(node.eqn, *map(mean, node.inputs))
            means.update(zip(node.outputs, values, strict=True))
        return means[atom]

    def full(step: Array | None, value: Value) -> Array:
        aval = value.aval
        return jnp.broadcast_to(jnp.ones((), aval.dtype) if step is None else step, aval.shape)

    def along(value: Value, step: Array | None) -> Array | None:
        steps = {value: step}
        for node in layer.nodes:
            reached = [i for i, a in enumerate(node.inputs) if isinstance(a, Value) and a in steps]
            if not reached:
                continue
            after, *rest = (steps[node.inputs[i]] for i in reached)
            if node.primitive is p.mul_p:
                factor = mean(node.inputs[1 - reached[0]])
                after = factor if after is None else after * factor
            elif rest or node.primitive not in _SUMS or (node.primitive is p.sub_p and reached[0]):
                # Other than a step of one term alone, which a sum leaves as it is.
                operands = [
                    full(steps[a], a) if i in reached else jnp.zeros(a.aval.shape, a.aval.dtype)
                    for i, a in enumerate(node.inputs)
                ]
                (after,) = jax_internals.bind(node.eqn, *operands)
            steps[node.outputs[0]] = after
        after = steps[result]
        ones = after is None and value.aval.shape == result.aval.shape
        return after if ones else full(after, result)

    return along


CONTRACTION = _plan.SharingRule(_plan.match_contraction, contraction, resolves=True, is_dense=True)
JOIN = _plan.SharingRule(_plan.match_join, join)
POINTWISE = _plan.SharingRule(_plan.match_pointwise, pointwise, is_pointwise=True)
POOLING = _plan.SharingRule(_plan.match_pooling, pooling, resolves=True)
GATHERED = _plan.SharingRule(_plan.match_gathered, gathered)
MIXING = _plan.SharingRule(_plan.match_mixing, mixing, resolves=True)
CHOSEN = _plan.SharingRule(_plan.match_chosen, chosen)
ATTENDED = _plan.SharingRule(_plan.match_attended, attended, resolves=True)
