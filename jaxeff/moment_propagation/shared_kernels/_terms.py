"""What positions share: the covariances of channels' means, and what the noise is made of.

A kernel's noise moves an entry by what its taps read there, and a ReLU that follows lets some
positions through and others not. So z, the noise of the mean over positions, is computed where the
functions after a layer are known: at the next layer that mixes positions or channels. With gate g,
the product of their expected slopes, an image x and a source of amplitude a and noise z_i,

    y[p, c] = g[p, c] sum_(t, i) (x[p + t, i] dw_(t, i, c) + w_(t, i, c) a[p + t, i] z_i),
    z'_c    = mean_p y[p, c] = sum_i L_(i, c) z_i + e_c.

Where it acts is a'[p, c] = Cov[y[p, c], z'_c] / Var[z'_c], the best guess of an entry's noise from
its channel's; its mean over positions is one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxeff.moment_propagation.shared_kernels import _layouts as layouts
from jaxeff.program.ir import Value


class Columns(NamedTuple):
    """Slopes of channels that are put beside others, in place of a matrix.

    Attributes:
        start: The place of the first one.
        size: The number of all.
    """

    start: int
    size: int


class ChosenChannels(NamedTuple):
    """Slopes of channels that are taken from others unchanged, in place of a matrix.

    Attributes:
        index: The numbers of those that they are.
    """

    index: Any


Slopes = Array | Columns | ChosenChannels


@dataclass
class SharedNoise:
    """The noise that is shared by the positions of the arrays of one pass.

    A random array is `y[p, c] = E y[p, c] + a[p, c] z_c + r`, where z is the noise of the means
    over positions and a, whose mean over positions is one, says how much of it acts where.

    Attributes:
        amplitudes: a by value, `[batch, *positions, channels]`.
        variances: The variance of z by value, `[batch, channels]`.
        covariances: The covariance of z of two values, `[batch, channels, channels]`; the later
            value first.
        terms: What other values are made of (`NoiseTerm`), whose z isn't computed yet: it is the
            mean of what the functions that follow let through.
    """

    amplitudes: dict[Value, Array] = field(default_factory=dict)
    variances: dict[Value, Array] = field(default_factory=dict)
    covariances: dict[tuple[Value, Value], Array] = field(default_factory=dict)
    terms: dict[Value, Sequence[Any]] = field(default_factory=dict)

    def covariance(self, one: Value, other: Value) -> Array | None:
        """Returns the covariance of two values' means; None where they share nothing."""
        if (one, other) in self.covariances:
            return self.covariances[one, other]
        stored = self.covariances.get((other, one))
        return None if stored is None else jnp.swapaxes(stored, 1, 2)

    @property
    def values(self) -> list[Value]:
        """The values whose noise is followed."""
        return [*self.amplitudes, *self.terms]

    def knows(self, value: Value) -> bool:
        """Returns whether the noise of a value is followed."""
        return value in self.amplitudes or value in self.terms

    def combined(
        self, parts: Sequence[tuple[Value, Slopes]], unshared: Array
    ) -> tuple[Array, dict[Value, Array]]:
        """Computes the covariances of noise that is made linearly of others.

        `parts` are as `through` takes them; `unshared` is the covariance that it has beside its
        sources', `[batch, channels]` for a diagonal one. Returns its covariance, and its
        covariances with all other values, itself first.
        """
        total = unshared if unshared.ndim == 3 else matrix(unshared)
        with_others = {}
        for other in self.amplitudes:
            halves = [
                through(slopes, known)
                for v, slopes in parts
                if (known := self.covariance(v, other)) is not None
            ]
            if halves:
                with_others[other] = sum(halves[1:], start=halves[0])
        for v, slopes in parts:
            total = total + jnp.swapaxes(through(slopes, jnp.swapaxes(with_others[v], 1, 2)), 1, 2)
        return total, with_others

    def record(
        self, result: Value, amplitude: Array, total: Array, with_others: Mapping[Value, Array]
    ) -> None:
        """Adds a value.

        `amplitude` is `[batch, *positions, channels]`; `total` is the covariance of its channels'
        means, `with_others` that with those of other values, `result` first.
        """
        self.amplitudes[result] = amplitude
        self.variances[result] = jnp.maximum(diagonal(total), 0)
        self.covariances[result, result] = total
        self.covariances.update({(result, other): x for other, x in with_others.items()})

    def forget(self, dead: Iterable[Value]) -> None:
        """Drops values that nobody reads any more."""
        dead = set(dead)
        for value in dead:
            self.terms.pop(value, None)
        # What other values are made of is still needed.
        dead -= {term.source for terms in self.terms.values() for term in terms}
        for value in dead:
            self.amplitudes.pop(value, None)
            self.variances.pop(value, None)
        gone = [pair for pair in self.covariances if not set(pair).isdisjoint(dead)]
        for pair in gone:
            del self.covariances[pair]


def through(slopes: Slopes, covariance: Array) -> Array:
    """Multiplies a covariance's first axis by slopes, `[batch, in, out]` or `[batch, channels]`."""
    if isinstance(slopes, Columns):
        after = slopes.size - slopes.start - covariance.shape[1]
        return jnp.pad(covariance, ((0, 0), (slopes.start, after), (0, 0)))
    if isinstance(slopes, ChosenChannels):
        return covariance[:, slopes.index]
    if slopes.ndim == 2:
        return slopes[:, :, None] * covariance
    return jnp.einsum("bio,bij->boj", slopes, covariance)


def normalized(amplitude: Array) -> tuple[Array, Array]:
    """Divides an amplitude by its mean over positions, and returns that mean; one where it is 0."""
    mean = mean_over_positions(amplitude)
    return divided(amplitude, spread(mean, amplitude)), mean


def mean_over_positions(x: Array) -> Array:
    """Computes means over positions, `[batch, channels]`."""
    return x.mean(tuple(range(1, x.ndim - 1)))


def diagonal(matrices: Array) -> Array:
    """Takes the diagonals of matrices, `[batch, ..., channels]`."""
    *outer, count, _ = matrices.shape
    return matrices.reshape(*outer, count * count)[..., :: count + 1]


def matrix(diagonals: Array) -> Array:
    """Makes diagonal matrices, `[batch, channels, channels]`."""
    batch, count = diagonals.shape
    # Row by row, there are as many zeros between two entries of a diagonal as channels.
    flat = lax.pad(diagonals, jnp.zeros((), diagonals.dtype), [(0, 0, 0), (0, 0, count)])
    return flat.reshape(batch, count, count)


def spread(x: Array, like: Array) -> Array:
    """Brings `[batch, channels]` to all positions of an array."""
    return x.reshape(x.shape[0], *(1,) * (like.ndim - 2), x.shape[-1])


@jax.jit
def divided(x: Array, y: Array) -> Array:
    """Divides; one where the divisor is next to zero, with finite derivatives."""
    # The noise of a dead channel underflows: quotients of what is left of it may overflow.
    zero = jnp.abs(y) < 1e-30
    return jnp.where(zero, 1, x / jnp.where(zero, 1, y))


@jax.jit
def root(x: Array) -> Array:
    """Computes the square root, whose derivative at zero is zero."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


class Reached(NamedTuple):
    """A term's part of the mean over positions.

    Attributes:
        slopes: The slopes of the mean by the source's channels, as `through` takes them; None
            without a source.
        unshared: The covariance of the term's own noise.
        covariance: Computes the covariance of each entry with the noise of the mean, from the
            source's with it, `[batch, channels, channels of the source]`.
    """

    slopes: Array | None
    unshared: Array
    covariance: Callable[[Array | None], Array]


@dataclass(frozen=True)
class EntryTerm:
    """Noise that moves each entry by what its own channel has: a source's, or a parameter's.

    Attributes:
        gate: What one unit of it moves each entry by, `[batch, *positions, channels]`.
        variance: The variance of a unit of it, `[batch, channels]`.
        source: The value whose noise it is; None for a parameter that all positions share.
        is_number: Whether the parameter is one number for all channels.
    """

    gate: Array
    variance: Array
    source: Value | None = None
    is_number: bool = False

    @property
    def slopes(self) -> None:
        """None: channels keep their noise."""

    def marginalise(self, weight: Array | None = None) -> Reached:
        """Computes what reaches the mean of the entries times a weight."""
        mean = mean_over_positions(_weighed(self.gate, weight))
        unshared = jnp.zeros_like(mean)
        if self.source is not None:
            return Reached(mean, unshared, self._of_source)
        unshared = mean[:, :, None] * mean[:, None, :] if self.is_number else mean**2
        return Reached(None, unshared, lambda _: self.gate * spread(mean, self.gate))

    def _of_source(self, of_source: Array | None) -> Array:
        assert of_source is not None
        return self.gate * spread(diagonal(of_source), self.gate)


@dataclass(frozen=True)
class ContractionTerm:
    """Noise of a kernel, and of the values that it mixes.

    Attributes:
        gate: How much of the result goes on, `[batch, *positions, channels]`.
        variance: The variance of the mean by the source's noise with all gates open,
            `[batch, channels]`.
        read: The contraction.
        image: What it reads, `[batch, *positions, channels]`.
        kernel: The kernel's means and variances, `[*taps, in, out]`.
        source: The value whose noise the image has; None if it has none.
        through: The source's amplitude in the form of the image, and its variances.
        slopes: What makes the source's noise to the mean's with all gates open.
    """

    gate: Array
    variance: Array
    read: layouts.PositionContraction
    image: Array
    kernel: tuple[Array, Array]
    source: Value | None = None
    through: tuple[Array, Array] | None = None
    slopes: Array | None = None

    def marginalise(self, weight: Array | None = None) -> Reached:
        """Computes what reaches the mean of the entries times a weight."""
        read, gate, (w, v) = self.read, self.gate, self.kernel
        taps, by_group = read.taps, read.by_group(v)
        through = _weighed(gate, weight)
        of_kernel = by_group * taps.let_through(self.image, through)
        entries = gate * taps.apply(self.image, of_kernel, gate)
        # The sum of v L^2 over weights, of which L v is in the entries.
        unshared = jnp.maximum(mean_over_positions(_weighed(entries, weight)), 0)
        if self.through is None:
            return Reached(None, unshared, lambda _: entries)
        amplitude, s = self.through
        reached = taps.let_through(amplitude, through)
        varied = reached * by_group * _by_group(read, s)
        more = layouts.over_taps(varied * reached).sum(1).reshape(len(gate), -1)

        def covariance(of_source: Array | None) -> Array:
            assert of_source is not None
            kernels = read.by_group(w) * read.apart(jnp.swapaxes(of_source, 1, 2))[:, None] + varied
            return entries + gate * taps.apply(amplitude, kernels, gate)

        return Reached(read.slopes(w, reached), unshared + more, covariance)


@dataclass(frozen=True)
class ResidualTerm:
    """What positions don't share, of which a gate that differs between them leaves some.

    The rest of N positions has no mean, but what is let through of it has one. Taken as independent
    otherwise, `mean_p g[p] rest[p]` over P positions has the variance
    `(mean g^2 V - P / N mean(g) mean(g V)) / P`.

    Attributes:
        gate: How much of it goes on, `[batch, *positions, channels]`.
        variance: The variance V of the rest at each position, of the same shape.
        share: P / N; 0 where the rest has a mean.
        source: None: it is nobody else's.
    """

    gate: Array
    variance: Array
    share: float
    source: None = None

    def marginalise(self, weight: Array | None = None) -> Reached:
        """Computes what reaches the mean of the entries times a weight."""
        unshared, covariance = _of_rest(self.gate, self.variance, self.share, weight)
        return Reached(None, unshared, lambda _: covariance)


# Traced once for each shape.
@functools.partial(jax.jit, static_argnames="share")
def _of_rest(gate: Array, var: Array, share: float, weight: Array | None) -> tuple[Array, Array]:
    """Computes the variance of `ResidualTerm`'s part of the mean, and each entry's with it."""
    through = _weighed(gate, weight)
    less = spread(share * mean_over_positions(through), gate)
    entries = gate * (through - less) * var * (var.shape[-1] / (var.size // len(var)))
    unshared = mean_over_positions(_weighed(entries, weight))
    positive = jnp.maximum(unshared, 0)
    return positive, entries * spread(divided(positive, unshared), entries)


def _weighed(entries: Array, weight: Array | None) -> Array:
    """Multiplies by a weight, if there is any."""
    return entries if weight is None else entries * weight


class LinearMap(NamedTuple):
    """What a function that combines positions does to small noise, in canonical layouts.

    Attributes:
        forward: Maps noise of the entries to noise of the results.
        adjoint: Maps slopes by the results to slopes by the entries.
        squared: Maps variances of independent entries to those of the results.
    """

    forward: Callable[[Array], Array]
    adjoint: Callable[[Array], Array]
    squared: Callable[[Array], Array]

    @classmethod
    def identity(cls) -> LinearMap:
        """Makes the map that leaves everything as it is."""
        return cls(lambda x: x, lambda x: x, lambda x: x)


@dataclass(frozen=True)
class MixedTerm:
    """Noise of entries whose positions a function has combined.

    Attributes:
        gate: How much of the result goes on, `[batch, *positions, channels]`.
        inner: The noise of the entries.
        map: What the function makes of it.
    """

    gate: Array
    inner: AlikeTerm | EntryTerm | ContractionTerm | ResidualTerm | MixedTerm | CrossedTerm
    map: LinearMap

    @property
    def source(self) -> Value | None:
        """The value whose noise it is."""
        return self.inner.source

    def map_to(self, then: LinearMap) -> LinearMap:
        """Returns the map from the inner entries to what a further one makes of the results."""
        return LinearMap(
            lambda x: then.forward(self.gate * self.map.forward(x)),
            lambda x: self.map.adjoint(self.gate * then.adjoint(x)),
            lambda x: then.squared(self.gate**2 * self.map.squared(x)),
        )

    def marginalise(self, weight: Array | None = None) -> Reached:
        """Computes what reaches the mean of the results times a weight."""
        through = self.map.adjoint(_weighed(self.gate, weight))
        # A mean is a sum over the number of positions, which the function has changed.
        share = (through.size // through.shape[-1]) / (self.gate.size // self.gate.shape[-1])
        reached = self.inner.marginalise(through * share)

        def covariance(of_source: Array | None) -> Array:
            return self.gate * self.map.forward(reached.covariance(of_source))

        return reached._replace(covariance=covariance)


@dataclass(frozen=True)
class CrossedTerm:
    """A source's noise that moves entries of all channels at a position.

    Attributes:
        gate: How much of the result goes on, `[batch, *positions, channels]`.
        steps: What the noise of each of the source's channels moves an entry by, its amplitude
            included, `[batch, *positions, channels of the source, channels]`.
        variance: The variance of the source's noise, `[batch, channels of the source]`.
        source: The value whose noise it is.
    """

    gate: Array
    steps: Array
    variance: Array
    source: Value

    def marginalise(self, weight: Array | None = None) -> Reached:
        """Computes what reaches the mean of the entries times a weight."""
        reached = self.steps * _weighed(self.gate, weight)[..., None, :]
        slopes = reached.mean(tuple(range(1, reached.ndim - 2)))

        def covariance(of_source: Array | None) -> Array:
            assert of_source is not None
            return self.gate * jnp.einsum("b...io,boi->b...o", self.steps, of_source)

        return Reached(slopes, jnp.zeros_like(mean_over_positions(self.gate)), covariance)


@dataclass(frozen=True)
class AlikeTerm:
    """A source's noise that moves all positions alike, and channels by those of the source.

    Attributes:
        gate: How much of the result goes on, `[batch, *positions, channels]`.
        variance: The variance of what it moves each channel by, `[batch, channels]`.
        source: The value whose noise it is.
        slopes: What a unit of each of the source's channels moves channels by,
            `[batch, channels of the source, channels]`.
    """

    gate: Array
    variance: Array
    source: Value
    slopes: Array

    def marginalise(self, weight: Array | None = None) -> Reached:
        """Computes what reaches the mean of the entries times a weight."""
        mean = mean_over_positions(_weighed(self.gate, weight))

        def covariance(of_source: Array | None) -> Array:
            assert of_source is not None
            through_slopes = jnp.einsum("bio,boi->bo", self.slopes, of_source)
            return self.gate * spread(through_slopes, self.gate)

        return Reached(self.slopes * mean[:, None], jnp.zeros_like(mean), covariance)


NoiseTerm = AlikeTerm | EntryTerm | ContractionTerm | ResidualTerm | MixedTerm | CrossedTerm


def gated(terms: Sequence[NoiseTerm], slope: Array | None) -> list[NoiseTerm]:
    """Multiplies what terms do to entries by the slope of a function of these; None is one."""
    if slope is None:
        return list(terms)
    return [replace(term, gate=term.gate * slope) for term in terms]


def covary(noise: SharedNoise, one: NoiseTerm, other: NoiseTerm) -> Array | None:
    """Computes the covariance of entries by two terms' sources; None where they share nothing."""
    ours, theirs = _of_entries(one), _of_entries(other)
    if ours is None or theirs is None or ours.source is None or theirs.source is None:
        return None
    covariance = noise.covariance(ours.source, theirs.source)
    if covariance is None:
        return None
    half = covariance if ours.slopes is None else through(ours.slopes, covariance)
    turned = jnp.swapaxes(half, 1, 2)
    both = turned if theirs.slopes is None else through(theirs.slopes, turned)
    return ours.gate * theirs.gate * spread(diagonal(both), ours.gate)


def _of_entries(term: NoiseTerm) -> AlikeTerm | EntryTerm | ContractionTerm | None:
    """Returns a term with the gate to single entries; None for the rest, which nobody shares."""
    if isinstance(term, MixedTerm):
        inner = _of_entries(term.inner)
        # What a source does to a channel is one number: the map takes it as a factor.
        return inner and replace(inner, gate=term.gate * term.map.forward(inner.gate))
    if isinstance(term, CrossedTerm):
        # Of what other channels do to an entry nothing is kept here: of order 1 / channels.
        return EntryTerm(term.gate * diagonal(term.steps), term.variance, term.source)
    return None if isinstance(term, ResidualTerm) else term


def weighted_covariance(noise: SharedNoise, terms: Sequence[NoiseTerm], weight: Array) -> Array:
    """Computes the covariance of the channels' means over positions, of entries times a weight.

    `noise` is what positions share, `terms` what the noise of the entries is made of; the weight is
    `[batch, *positions, channels]`. Returns `[batch, channels, channels]`.
    """
    return _combined(noise, [(term.source, term.marginalise(weight)) for term in terms])[0]


def _combined(
    noise: SharedNoise, reached_by: Sequence[tuple[Value | None, Reached]]
) -> tuple[Array, dict[Value, Array]]:
    unshared = _sum(_alike([one.unshared for _, one in reached_by]))
    parts = [(v, one.slopes) for v, one in reached_by if v is not None and one.slopes is not None]
    return noise.combined(parts, unshared)


def marginalise(noise: SharedNoise, value: Value) -> None:
    """Computes the noise of a value's mean over positions from its terms, if it isn't known."""
    if value in noise.amplitudes:
        return
    terms = noise.terms.pop(value)
    reached = [(term.source, term.marginalise()) for term in terms]
    total, with_others = _combined(noise, reached)
    covariance = _sum(
        [one.covariance(None if v is None else with_others.get(v)) for v, one in reached]
    )
    noise.record(value, covariance, total, with_others)
    noise.amplitudes[value] = divided(covariance, spread(noise.variances[value], covariance))


def _alike(covariances: Sequence[Array]) -> Sequence[Array]:
    """Makes matrices of diagonals, `[batch, channels]`, where others are matrices."""
    if all(one.ndim == 2 for one in covariances):
        return covariances
    return [one if one.ndim == 3 else matrix(one) for one in covariances]


def _sum(parts: Sequence[Array]) -> Array:
    return functools.reduce(jnp.add, parts)


def _by_group(read: layouts.PositionContraction, x: Array) -> Array:
    """Brings `[batch, channels]` to `[batch, 1, channels of a group, groups, 1]`."""
    return jnp.swapaxes(x.reshape(len(x), read.groups, -1), 1, 2)[:, None, :, :, None]
