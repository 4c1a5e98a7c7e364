"""Moments of attention, softmax(z) v with scores z = z(q k^T), as one function.

A query's noise is shared by its row of scores, and what all scores of a row have in common the
softmax cancels; a key's noise is its own. For independent entries, with p the probabilities,
o = p v and t = dz / d(q k^T), the variance of o_ie is the sum of

    queries   sum_d Var[q_id] M_ide^2,  M_ide = sum_j p_ij t_ij k_jd (v_je - o_ie)
    keys      sum_j p_ij^2 S_ij (v_je - o_ie)^2,
              S_ij = t_ij^2 sum_d E[q_id^2] Var[k_jd] + Var[b_ij]
    values    sum_j E[p_ij^2] Var[v_je]

where b is a random bias of the scores, if there is one. This is exact to first order, and two terms
that go beyond it cost no further product: E[q^2] instead of q^2, and E[p^2] = p^2 (1 + D), where
D_ij is the variance of score j less the row's mean score. The probabilities are softmax(z + D / 2),
which has their mean to second order and rows that sum to one. D is cut off smoothly at `_LARGEST`.
Derived here: no rule is known in print that keeps what a row of scores shares.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its `linalg` is loaded when first used, not at import
from jaxtyping import Array

from jaxeff.core import jax_internals as _compat
from jaxeff.moment_propagation._values import Gaussian, inverse_std, is_random, to_variance
from jaxeff.moment_propagation.dependence import WholeLayer
from jaxeff.moment_propagation.rules import composite, map_linear
from jaxeff.program.ir import Node, Value, making, run_nodes

_MOST_PRODUCTS = 2**16
_PROBES = 8
_LARGEST = 2.0
_PROBE = "Z"  # the axis of probes; those of `AxisLetters` are small letters
_COLUMN = "Y"  # and that of several arrays side by side


@dataclass(frozen=True)
class AxisLetters:
    """The axes of attention's arrays: a small letter for each axis, the same where they meet.

    Attributes:
        q: Axes of queries: those of scores but the keys', and features. Empty without queries.
        k: Axes of keys: the softmax's, the same features, others of the scores.
        v: Axes of values: the softmax's, others of the scores, features of their own.
        scores: Axes of scores.
        result: Axes of the result.
        softmax: Axes the softmax is taken over.
    """

    q: str
    k: str
    v: str
    scores: str
    result: str
    softmax: str

    @property
    def rows(self) -> str:
        """Axes of the scores without the softmax's."""
        return _without(self.scores, self.softmax)

    @property
    def features(self) -> str:
        """Axes that queries and keys are summed over."""
        # An axis of one entry that queries have alone is gone from the scores without being summed.
        return "".join(a for a in _without(self.q, self.scores) if a in self.k)

    @property
    def centre(self) -> str:
        """Axes of a row's mean value: those of the result, the rows' first."""
        return self.rows + _without(self.v, self.scores)


def attention(axes: AxisLetters, arrays: Mapping[str, Array], *, short: bool = False) -> Gaussian:
    """Computes the moments of softmax(scores) v; `short` leaves out what factors make up for.

    `arrays` are `scores`, what the softmax is taken of; `v`, the mean of values; `q` and `k`, those
    of queries and keys, with `slope`, the derivative of the scores by their products; and of what
    is random the variances `q_var`, `k_var`, `v_var`, and `bias_var` of what is added to the
    scores, shaped like these.
    """
    names = tuple(arrays)
    letters = {f"{name}_axes": of for name, of in asdict(axes).items()}
    rule = _rule(axes, names, short)
    name = "pfp_attention_in_short" if short else "pfp_attention"
    return composite(name, rule, *arrays.values(), operands=" ".join(names), **letters)


@functools.lru_cache(64)
def _rule(axes: AxisLetters, names: tuple[str, ...], short: bool) -> Callable[..., Gaussian]:
    """Returns the rule of arrays by name, one and the same for equal layers."""

    def rule(*values: Array) -> Gaussian:
        return _moments(*_batch_first(axes, dict(zip(names, values, strict=True))), short)

    return rule


def _batch_first(
    axes: AxisLetters, arrays: Mapping[str, Array]
) -> tuple[AxisLetters, dict[str, Array]]:
    """Moves the axes that all arrays have to the front, once for all their products."""
    shared = "".join(a for a in axes.rows if a in axes.v and a in (axes.k or axes.v))
    moved: dict[str, Array] = {}
    letters = {name: getattr(axes, name) for name in ("q", "k", "v", "scores")}
    last = {"q": axes.features, "k": axes.softmax + axes.features, "scores": axes.softmax,
            "v": axes.softmax + _without(axes.v, axes.scores)}  # fmt: skip
    ordered = {
        name: "".join(a for a in shared if a in of) + _without(of, shared + last[name]) + last[name]
        for name, of in letters.items() if of
    }  # fmt: skip
    for name, array in arrays.items():
        of = name.removesuffix("_var") if name.endswith("_var") else name
        of = of if of in ("q", "k", "v") else "scores"
        moved[name] = array.transpose([letters[of].index(a) for a in ordered[of]])
    return replace(axes, **ordered), moved


def _moments(axes: AxisLetters, arrays: Mapping[str, Array], short: bool) -> Gaussian:
    along = _softmax_axes(axes)
    unshared = _own_variances(axes, arrays)
    if short:
        unshared, spread = _with_queries(axes, arrays, unshared), None
        p = jax.nn.softmax(arrays["scores"], along)
    else:
        spread = _spread(axes, arrays, unshared)
        p = jax.nn.softmax(arrays["scores"] + 0.5 * spread, along)
    # What all values have in common passes through. It is taken off first: sums of squares less
    # squares of sums would lose their digits to it.
    v, common = _apart(arrays["v"], axes.v, axes.softmax)

    def weighted(weights: Array, *values: Array) -> list[Array]:
        products = _weighted(axes, (axes.scores, weights), *((axes.v, a) for a in values))
        return [sum_of(axes.centre, product) for product in products]

    (o,) = weighted(p, v)
    var = jnp.zeros_like(o)
    if unshared is not None:
        a = p * p * unshared
        row = axes.rows, sum_of(axes.rows, (axes.scores, a))
        total = sum_of(axes.centre, row, (axes.centre, o * o))
        squares, sums = weighted(a, v * v, v)
        var += jnp.maximum(squares - 2 * sums * o + total, 0)
    if "q_var" in arrays and not short:
        var += _of_queries(axes, arrays, p, v, o)
    if "v_var" in arrays:
        square = p * p if spread is None else jnp.minimum(p * p * (1 + spread), p)
        var += weighted(square, arrays["v_var"])[0]
    of_common = _without(axes.v, axes.softmax)
    absent = [i for i, letter in enumerate(axes.centre) if letter not in of_common]
    order = [of_common.index(letter) for letter in axes.centre if letter in of_common]
    moments = o + jnp.expand_dims(common.transpose(order), absent), var
    return Gaussian(*(sum_of(axes.result, (axes.centre, a)) for a in moments))


def _own_variances(axes: AxisLetters, arrays: Mapping[str, Array]) -> Array | None:
    """Computes the variances of scores without what the scores of a row share."""
    unshared = arrays.get("bias_var")
    if "k_var" in arrays:
        power = arrays["q"] * arrays["q"] + arrays.get("q_var", 0)
        product = sum_of(axes.scores, (axes.q, power), (axes.k, arrays["k_var"]))
        product = arrays["slope"] * arrays["slope"] * product
        unshared = product if unshared is None else unshared + product
    return unshared


def _with_queries(
    axes: AxisLetters, arrays: Mapping[str, Array], unshared: Array | None
) -> Array | None:
    """Adds what noise of queries adds to each score, less what all keys have in common.

    As if that were each score's own: keys of different places that go with values of different
    places make the sum of M^2 as large on average.
    """
    if "q_var" not in arrays:
        return unshared
    k, _ = _apart(arrays["k"], axes.k, axes.softmax)
    product = sum_of(axes.scores, (axes.q, arrays["q_var"]), (axes.k, k * k))
    product *= arrays["slope"] * arrays["slope"]
    return product if unshared is None else unshared + product


def _spread(axes: AxisLetters, arrays: Mapping[str, Array], unshared: Array | None) -> Array:
    """Computes the variance of each score less the mean score of its row, cut off smoothly."""
    along = _softmax_axes(axes)
    p = jax.nn.softmax(arrays["scores"], along)
    spread = jnp.zeros_like(p)
    if unshared is not None:
        spread += (1 - 2 * p) * unshared + jnp.sum(p * p * unshared, along, keepdims=True)
    if "q_var" in arrays:
        # (k - mean k)^2 multiplied out, so that no array has scores and features.
        k, _ = _apart(arrays["k"], axes.k, axes.softmax)
        rows, query = axes.rows + axes.features, (axes.q, arrays["q_var"])
        centre = sum_of(rows, (axes.scores, p), (axes.k, k))
        cross = sum_of(rows, query, (rows, centre))
        shared = sum_of(axes.scores, query, (axes.k, k * k))
        shared -= 2 * sum_of(axes.scores, (rows, cross), (axes.k, k))
        shared += jnp.expand_dims(sum_of(axes.rows, (rows, cross), (rows, centre)), along)
        spread += arrays["slope"] * arrays["slope"] * jnp.maximum(shared, 0)
    return _LARGEST * jnp.tanh(spread / _LARGEST)


def _of_queries(
    axes: AxisLetters, arrays: Mapping[str, Array], p: Array, v: Array, o: Array
) -> Array:
    """Computes the part of the variance that comes from queries, with the axes of `centre`."""
    keys, common = _apart(arrays["k"], axes.k, axes.softmax)
    of_keys, of_common, over = axes.k, _without(axes.k, axes.softmax), axes.features
    sizes = {a: n for a, n in zip(axes.k + axes.v, keys.shape + v.shape, strict=True)}
    summed = axes.softmax + axes.features + _without(axes.v, axes.scores)
    cheap = all(isinstance(n, int) for n in sizes.values())
    exact = cheap and math.prod(sizes[a] for a in summed) <= _MOST_PRODUCTS
    if not exact:
        # sum_d Var[q_d] M_d^2 is the mean of (sum_d sign_d std[q_d] M_d)^2 over random signs.
        signs = _signs(tuple(sizes[a] for a in axes.features), o.dtype)
        probe = _PROBE + axes.q
        std = arrays["q_var"] * inverse_std(arrays["q_var"])
        probes = sum_of(probe, (_PROBE + axes.features, signs), (axes.q, std))
        keys = sum_of(_PROBE + axes.scores, (probe, probes), (of_keys, keys))
        common = sum_of(_PROBE + axes.rows, (probe, probes), (of_common, common))
        of_keys, of_common, over = _PROBE + axes.scores, _PROBE + axes.rows, _PROBE
    weights = axes.scores, p * arrays["slope"]
    to, values = over + axes.centre, (axes.v, v)
    if exact:
        # Products of keys and values are made once for all rows.
        pairs = axes.k + _without(axes.v, axes.k)
        both = pairs, sum_of(pairs, (of_keys, keys), values)
        product, centre, value = _weighted(axes, weights, both, (of_keys, keys), values)
        slopes, mean = sum_of(to, product), sum_of(axes.centre, value)
    else:
        centre = over + axes.rows, sum_of(over + axes.rows, weights, (of_keys, keys))
        slopes = sum_of(to, weights, (of_keys, keys), values)
        mean = sum_of(axes.centre, weights, values)
    # Where the slope is one number for a row of scores, what its keys have in common cancels.
    row = axes.rows, sum_of(axes.rows, weights)
    rest = mean - sum_of(axes.centre, row, (axes.centre, o))
    slopes -= sum_of(to, centre, (axes.centre, o))
    slopes += sum_of(to, (of_common, common), (axes.centre, rest))
    if not exact:
        return jnp.mean(slopes * slopes, 0)
    return sum_of(axes.centre, (axes.q, arrays["q_var"]), (to, slopes * slopes))


def _weighted(
    axes: AxisLetters, weights: tuple[str, Array], *arrays: tuple[str, Array]
) -> list[tuple[str, Array]]:
    """Sums arrays over the softmax's axes by weights, as one product where they have like axes."""
    met = ["".join(a for a in of if a in weights[0]) for of, _ in arrays]
    channels = [_without(of, axes.scores) for of, _ in arrays]
    over = _without(weights[0], axes.softmax)
    if len(set(met)) > 1 or any(
        a + b != of for a, b, (of, _) in zip(met, channels, arrays, strict=True)
    ):
        return [
            (over + b, sum_of(over + b, weights, array))
            for b, array in zip(channels, arrays, strict=True)
        ]
    count = len(met[0])
    flat = [a.reshape(*a.shape[:count], -1) for _, a in arrays]
    stop = np.cumsum([a.shape[-1] for a in flat])[:-1]
    total = sum_of(over + _COLUMN, weights, (met[0] + _COLUMN, jnp.concatenate(flat, -1)))
    parts = jnp.split(total, stop, -1)
    return [
        (over + b, part.reshape(*part.shape[:-1], *a.shape[count:]))
        for b, part, (_, a) in zip(channels, parts, arrays, strict=True)
    ]


def _signs(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Returns fixed vectors of signs that are orthogonal where there are as many as entries."""
    size = math.prod(shape)
    # The rows are periodic: mixed by signs of their own, no two entries meet in all of them.
    rows = scipy.linalg.hadamard(max(_PROBES, 1 << (size - 1).bit_length()))[:_PROBES, :size]
    mixed = rows * np.random.default_rng(0).choice([-1, 1], size)
    return jnp.asarray(mixed.reshape(_PROBES, *shape), dtype)


def sum_of(to: str, *operands: tuple[str, Array]) -> Array:
    """Multiplies arrays by their axes' letters, and sums over the axes that the result hasn't."""
    letters = ",".join(of for of, _ in operands)
    # Scores may have an axis of one entry that neither queries nor keys have, by a mask with the
    # axis of sequences where there is one sequence, as transformers of PyTorch write it.
    absent = tuple(i for i, letter in enumerate(to) if letter not in letters)
    known = "".join(letter for letter in to if letter in letters)
    return jnp.expand_dims(jnp.einsum(f"{letters}->{known}", *(a for _, a in operands)), absent)


def _apart(a: Array, of: str, softmax: str) -> tuple[Array, Array]:
    """Returns an array less its mean over the softmax's axes, and that mean without these axes."""
    along = tuple(of.index(letter) for letter in softmax)
    mean = jnp.mean(a, along, keepdims=True)
    return a - mean, jnp.squeeze(mean, along)


def _softmax_axes(axes: AxisLetters) -> tuple[int, ...]:
    return tuple(sorted(axes.scores.index(a) for a in axes.softmax))


def _without(letters: str, others: str) -> str:
    return "".join(a for a in letters if a not in others)


@dataclass(frozen=True, eq=False)
class Score:
    """The product of queries and keys, with a letter for each axis of either.

    `queries` is the operand without the softmax's axes, `keys` the one with them.
    """

    node: Node
    queries: Value
    keys: Value
    of_queries: str
    of_keys: str

    @property
    def value(self) -> Value:
        """The product."""
        return self.node.outputs[0]


@dataclass(eq=False, kw_only=True)
class AttentionLayer(WholeLayer):
    """Attention, from its queries, keys and values to its result; named as the last product.

    Attributes:
        axes: The axes of its arrays.
        scores: What the softmax is taken of.
        score: The product of queries and keys; None where the scores are made in another way.
        values: The values.
        terms: Other random terms of the scores, and a letter for each of their axes.
    """

    axes: AxisLetters
    scores: Value
    score: Score | None
    values: Value
    terms: Mapping[Value, str]


def attention_moments(
    layer: AttentionLayer, values: Sequence[Any], *, short: bool = False
) -> list[Gaussian]:
    """Computes the moments of an attention layer from those of its inputs.

    Queries, keys and values standard normal, 32 tokens, 16 features, against 20,000 samples: with
    noise of .1, .3, .6 and 1 the variances are 1.00, .98, .91 and .81 of the true ones (medians),
    the means off by .01, .01, .01 and .06 standard deviations.

    Sharp edges
    - M costs half as many products as a head has features, in units of p v. Where keys, features
      and values multiply to more than `_MOST_PRODUCTS`, it is estimated by `_PROBES` fixed vectors
      of signs, rows of a Hadamard matrix: the queries' part of one entry is then off by 50 %
      (sqrt(2 / probes)), up and down, which the sum over entries in the next layer evens out.
    - It is an expansion. Where scores don't share noise (one-hot keys) and D is above 1, single
      variances are up to 30 % off, which those of a softmax of independent scores aren't.
    - With sharp attention (scores of deviation 3) and noise of 1 single variances are up to 3.8
      times too large.
    - Results are returned with diagonal covariance: what those of a head share is forgotten.
    """
    known = dict(zip(layer.inputs, values, strict=True))
    random = {v: to_variance(x) for v, x in known.items() if is_random(x)}
    means = {v: random[v].mean if v in random else x for v, x in known.items()}
    operands = {"v": layer.values}
    if layer.score is not None:
        operands |= {"q": layer.score.queries, "k": layer.score.keys}
    for value in operands.values():
        if value not in means:
            nodes = making(layer.nodes, [value])
            (means[value],) = run_nodes(nodes, list(means), list(means.values()), [value])
    arrays = scores_of(layer, means, random)
    for name, value in operands.items():
        arrays[name] = means[value]
        if value in random:
            arrays[f"{name}_var"] = random[value].var
    # Half precision has too few digits for differences of squares.
    dtype = jnp.result_type(jnp.float32, *arrays.values())
    arrays = {name: a.astype(dtype) for name, a in arrays.items()}
    y = attention(layer.axes, arrays, short=short)
    result = layer.outputs[0].aval
    return [map_linear(lambda a: a.reshape(result.shape).astype(result.dtype), y)]


def scores_of(
    layer: AttentionLayer, means: Mapping[Value, Array], random: Mapping[Value, Gaussian]
) -> dict[str, Array]:
    """Evaluates the scores, their slope, and the variance of their biases."""
    at_means = dict(means)
    nodes = making(layer.nodes, [layer.scores])
    if layer.score is not None:
        node = layer.score.node
        nodes = [n for n in nodes if n is not node]
        (at_means[layer.score.value],) = _compat.bind(node.eqn, *(at_means[v] for v in node.inputs))

    def scores(value: Value, array: Array) -> Array:
        at = at_means | {value: array}
        (moved,) = run_nodes(nodes, list(at), list(at.values()), [layer.scores])
        return moved

    def slope(value: Value) -> Array:
        # A score is a function of one entry: the derivative by each is that along all of them.
        along = functools.partial(scores, value)
        return jax.jvp(along, (at_means[value],), (jnp.ones_like(at_means[value]),))[1]

    start = layer.score.value if layer.score is not None else next(iter(layer.terms))
    arrays = {"scores": scores(start, at_means[start])}
    if layer.score is not None:
        arrays["slope"] = slope(layer.score.value)
    to = layer.axes.scores
    # What all scores of a row share cancels.
    varied = {v: of for v, of in layer.terms.items() if set(layer.axes.softmax) <= set(of)}
    parts = [
        jnp.einsum(f"{to},{of}->{to}", slope(v) ** 2, random[v].var)
        for v, of in varied.items()
        if v in random
    ]
    if parts:
        arrays["bias_var"] = functools.reduce(jnp.add, parts)
    return arrays
