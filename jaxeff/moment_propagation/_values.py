"""Random arrays: `Gaussian`, `JointGaussian` and further ones, their errors, the normal tail.

Every room that speaks about uncertain arrays speaks `Gaussian`: a posterior over parameters is a
pytree of them, a moment-propagating function takes and returns them. The other forms stay inside
the interpreter. A rule names what it consumes by the attribute it reads (`var` or `second_moment`),
so a conversion happens only where producer and consumer disagree.

Every rectifier and every maximum of Gaussians is a function of one quantity, the expected
exceedance h(a) = E[max(z - a, 0)] = phi(a) - a Q(a) of a standard normal z. Writing the rules in
h and the upper tail Q, at a >= 0 only, removes the cancellation of the textbook forms
(E[x^2] - E[x]^2 of a ReLU loses every digit in float32 once the mean is a thousand standard
deviations), so the rules work on variances directly.

Sharp edges
- The constructor of a `Gaussian` validates nothing, because JAX also builds pytrees out of tracers
  and placeholders; `check_gaussian` is the explicit check for concrete input.
- Standardised arguments end at 40, where the density underflows in float64 too (10 in float32).
- A standard deviation below one unit in the last place of 1 counts as zero: `inverse_std` adds its
  square to the variance, so results and gradients stay finite at a variance of exactly zero. A rule
  multiplies by `var * inverse_std**2`, which is 0 there, instead of trusting `std`, whose gradient
  is infinite.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import TypeIs

from jaxeff.core import instance_of, string, validate
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import Node


class RandomArray:
    """What all random arrays have: the shape and the dtype of their mean."""

    mean: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the random array."""
        return tuple(np.shape(self.mean))

    @property
    def ndim(self) -> int:
        """The number of axes of the random array."""
        return np.ndim(self.mean)

    @property
    def dtype(self) -> Any:
        """The floating-point dtype of the random array."""
        return jnp.result_type(self.mean)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Gaussian(RandomArray):
    """Independent normal variables given by their means and variances.

    Entries are independent of one another, and two `Gaussian` leaves are independent of each other.

    ```python
    import jax.numpy as jnp

    from jaxeff.moment_propagation import Gaussian, check_gaussian, is_gaussian

    weights = Gaussian(jnp.zeros(3), jnp.ones(3))
    check_gaussian(weights, "weights")
    assert is_gaussian(weights) and not is_gaussian(jnp.zeros(3))
    ```

    Attributes:
        mean: Means, any shape, a floating-point dtype.
        var: Variances (squared units of `mean`), the same dtype, never negative. Of the same shape,
            or of one that broadcasts to it: a number that all entries have, or one for each entry
            of the last axis, which makes `moments` cheaper.
    """

    mean: Float[Array, "*shape"]
    var: Float[Array, "*#shape"]

    @property
    def std(self) -> Float[Array, "*#shape"]:
        """The standard deviations. Its gradient with respect to a variance of zero is infinite."""
        return jnp.sqrt(self.var)

    @property
    def second_moment(self) -> Float[Array, "*shape"]:
        """The second raw moments, E[x^2] = mean^2 + var."""
        return self.mean * self.mean + self.var

    def __repr__(self) -> str:
        """Returns the shape and the ranges: a posterior of many leaves stays readable."""
        if isinstance(self.mean, jax.core.Tracer) or not np.size(self.mean):
            return f"Gaussian(mean={self.mean!r}, var={self.var!r})"
        try:
            mean, std = np.asarray(self.mean, float), np.sqrt(np.asarray(self.var, float))
            kind = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        except (TypeError, ValueError):  # a placeholder of JAX's in a pytree
            return f"Gaussian(mean={self.mean!r}, var={self.var!r})"
        return f"Gaussian({kind}, mean {_range(mean)}, std {_range(std)})"

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Array:
        """Draws independent samples.

        Args:
            key: A PRNG key.
            shape: Leading sample axes.

        Returns:
            An array of shape `shape + self.shape`. Draws are differentiable with respect to mean
            and variance (reparameterised); where the variance is zero they equal the mean and the
            gradient to the variance is zero.
        """
        return self._drawn(jax.random.normal(key, (*shape, *self.shape), self.dtype))

    def _drawn(self, noise: Array) -> Array:
        """Scales and moves standard normal numbers."""
        # Two selections: the root has an infinite slope at zero, and zero times that is NaN, so the
        # branch that is not taken must be finite as well.
        positive = self.var > 0
        std = jnp.where(positive, jnp.sqrt(jnp.where(positive, self.var, 1)), 0)
        mean, std = (jnp.broadcast_to(a, noise.shape) for a in (self.mean, std))
        return mean + std * noise


def _range(values: np.ndarray) -> str:
    low, high = f"{values.min():.3g}", f"{values.max():.3g}"
    return low if low == high else f"{low} to {high}"


def is_gaussian(x: Any) -> TypeIs[Gaussian]:
    """Returns whether `x` is a `Gaussian`; the `is_leaf` of `jax.tree` calls that keep them.

    ```python
    import jax
    from jaxeff.moment_propagation import Gaussian, is_gaussian

    zeros = jax.numpy.zeros(3)
    assert is_gaussian(Gaussian(zeros, zeros + 1)) and not is_gaussian(zeros)
    ```
    """
    return isinstance(x, Gaussian)


def sample_all(key: PRNGKeyArray, values: Sequence[Any]) -> list[Any]:
    """Draws the Gaussians among values, all from one array of random numbers.

    Numbers per value would take as long to compile as the network: a random function is hundreds of
    operations, which are compiled for every shape anew.
    """
    random = [v for v in values if is_gaussian(v)]
    if not random:
        return list(values)
    dtype = jnp.result_type(*(v.dtype for v in random))
    sizes = [np.size(v.mean) for v in random]
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.int32)

    def numbers(key: PRNGKeyArray) -> tuple[Array, list[Array]]:
        return jax.random.normal(key, (sum(sizes),), dtype), [jnp.asarray(at) for at in starts]

    # A branch that is always taken, which XLA can't know: otherwise it would put a copy of the
    # generator into every function that reads some numbers. From there come the places, too, so
    # that leaves of one shape, which differ in them alone, share a function.
    is_variance = ~jnp.any(min(random, key=lambda v: np.size(v.mean)).var < 0)
    flat, places = jax.lax.cond(
        is_variance,
        numbers,
        lambda key: jax.tree.map(jnp.zeros_like, jax.eval_shape(numbers, key)),
        key,
    )
    parts = iter(
        jax.lax.dynamic_slice(flat, (at,), (n,)) for at, n in zip(places, sizes, strict=True)
    )
    return [
        v._drawn(next(parts).reshape(v.shape).astype(v.dtype)) if is_gaussian(v) else v
        for v in values
    ]


@validate(x=instance_of(Gaussian), name=string)
def check_gaussian(x: Gaussian, name: str = "Gaussian") -> None:
    """Checks shapes and dtypes of `x`, and its values where they are concrete.

    ```python
    import jax
    from jaxeff.moment_propagation import Gaussian, check_gaussian

    check_gaussian(Gaussian(jax.numpy.zeros(3), jax.numpy.ones(3)), "weights")
    ```

    Args:
        x: The value to check. Traced arrays are checked for shape and dtype only.
        name: Name in error messages, such as a parameter path.

    Raises:
        TypeError: The mean or variance isn't a floating-point array.
        ValueError: The variance's shape doesn't broadcast to the mean's, dtypes differ, an entry is
            NaN, or a variance is negative.
    """
    mean, var = x.mean, x.var
    for part, value in (("mean", mean), ("variance", var)):
        if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise TypeError(
                f"{name}: the {part} has dtype {jnp.result_type(value)}; a Gaussian needs a "
                "floating-point dtype, so convert it with .astype(jnp.float32)."
            )
    sizes = zip(np.shape(mean)[::-1], np.shape(var)[::-1], strict=False)
    if np.ndim(var) > np.ndim(mean) or any(of_var not in (1, n) for n, of_var in sizes):
        raise ValueError(
            f"{name}: the mean has shape {np.shape(mean)} but the variance {np.shape(var)}; give "
            "both the same shape, or one that broadcasts to the mean's."
        )
    if jnp.result_type(mean) != jnp.result_type(var):
        raise ValueError(
            f"{name}: the mean has dtype {jnp.result_type(mean)} but the variance "
            f"{jnp.result_type(var)}; give both the same dtype."
        )
    # A tracer has a shape and a dtype but no values: under jit these pass unchecked.
    for part, value in (("mean", mean), ("variance", var)):
        if isinstance(value, jax.core.Tracer):
            continue
        concrete = np.asarray(value)
        if bad := int(np.isnan(concrete).sum()):
            raise ValueError(
                f"{name}: {bad} of {concrete.size} entries of the {part} are NaN; find where they "
                "arise (jax.config jax_debug_nans) before propagating moments."
            )
        if part == "variance" and (bad := int((concrete < 0).sum())):
            raise ValueError(
                f"{name}: {bad} of {concrete.size} variances are negative (smallest "
                f"{concrete.min():.3g}); pass variances, for example jax.nn.softplus(rho) ** 2."
            )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class JointGaussian(RandomArray):
    """Vectors of normal variables: the logits of each example, with what they share.

    Attributes:
        mean: Means, the last axis the vector.
        cov: Covariances (squared units of `mean`), symmetric and positive semidefinite.
    """

    mean: Float[Array, "*batch n"]
    cov: Float[Array, "*batch n n"]

    @property
    def var(self) -> Float[Array, "*batch n"]:
        """The variances."""
        return jnp.diagonal(self.cov, axis1=-2, axis2=-1)

    def independent(self) -> Gaussian:
        """Drops the covariances and keeps means and variances."""
        return Gaussian(self.mean, self.var)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "*all n"]:
        """Draws vectors.

        Args:
            key: Random key.
            shape: Axes of draws, in front of those of the mean.

        Returns:
            Draws of shape `(*shape, *batch, n)`. The covariance may be singular.
        """
        # A Cholesky factor would be cheaper, but needs full rank: with fewer sources of noise than
        # entries the covariance is singular, and rounding makes its smallest eigenvalues negative.
        values, vectors = jnp.linalg.eigh(self.cov)
        roots = vectors * jnp.sqrt(jnp.maximum(values, 0))[..., None, :]
        normal = jax.random.normal(key, (math.prod(shape), *self.shape), self.dtype)
        draws = jax.vmap(lambda z: self.mean + jnp.einsum("...ij,...j->...i", roots, z))(normal)
        return draws.reshape(*shape, *self.shape)


def is_joint_gaussian(value: Any) -> bool:
    """Returns whether a value is a `JointGaussian`.

    ```python
    import jax.numpy as jnp
    from jaxeff.moment_propagation import JointGaussian, is_joint_gaussian

    logits = JointGaussian(jnp.zeros(2), jnp.array([[1.0, 0.9], [0.9, 1.0]]))
    assert is_joint_gaussian(logits) and not is_joint_gaussian(logits.independent())
    ```
    """
    return isinstance(value, JointGaussian)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RawMoments(RandomArray):
    """Independent random variables given by their first two raw moments, of the mean's shape.

    Deriving a variance from E[x^2] cancels: in float32 nothing is left of a variance below about
    1e-7 mean^2. It is clamped at zero, never negative. jaxeff's own rules therefore return
    variances; this form exists for consumers and operator libraries that want E[x^2].
    """

    mean: Float[Array, "*shape"]
    second_moment: Float[Array, "*shape"]

    @property
    def var(self) -> Float[Array, "*shape"]:
        """The variances, E[x^2] - E[x]^2, clamped at zero."""
        return jnp.maximum(self.second_moment - self.mean * self.mean, 0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Activated(Gaussian):
    """The moments of a nondecreasing function of a Gaussian, and where they came from.

    A maximum commutes with such a function, so max pooling is taken before a ReLU instead of after
    it: the operands of Clark's rule are then Gaussian (four rectified values pooled after the fact
    have their standard deviation underestimated by up to 40 %, pooled before by 9 %), and the ReLU
    is evaluated on a quarter of the entries.

    Attributes:
        before: The Gaussian it is a function of, of the same shape.
        apply: The moments of the function, for a Gaussian of any shape.
    """

    before: Gaussian
    apply: Callable[[Gaussian], Gaussian] = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Pooled(Gaussian):
    """Independent variables many of which have the same variance, as noise per array or channel.

    A sum of products with such weights needs no product for their variance: one sum of the inputs'
    second moments does for all that share it.

    Attributes:
        common: The variances, with one entry along the axes that they don't depend on.
    """

    common: Float[Array, "*#shape"]

    @classmethod
    def of(cls, x: Gaussian) -> Gaussian:
        """Broadcasts variances to the shape of the means, and keeps what they were before."""
        if np.shape(x.var) == np.shape(x.mean):
            return x
        common = jnp.reshape(x.var, (1,) * (np.ndim(x.mean) - np.ndim(x.var)) + np.shape(x.var))
        return cls(x.mean, jnp.broadcast_to(common, np.shape(x.mean)), common)


Random = Gaussian | RawMoments


def is_random(x: Any) -> TypeIs[Random]:
    """Returns whether `x` is a random array in either representation."""
    return isinstance(x, Gaussian | RawMoments)


def to_variance(x: Random) -> Gaussian:
    """Converts `x` to mean and variance; what an `Activated` came from is dropped."""
    # Not `isinstance`: an `Activated` is a Gaussian too, but of another pytree structure, which
    # loops and branches would refuse.
    return x if type(x) is Gaussian else Gaussian(x.mean, x.var)


def as_random(x: Any) -> Random:
    """Returns a random array; of a certain one, that of variance zero."""
    return x if is_random(x) else Gaussian(x, jnp.zeros_like(x))


def to_raw(x: Random) -> RawMoments:
    """Converts `x` to mean and second raw moment."""
    return x if isinstance(x, RawMoments) else RawMoments(x.mean, x.second_moment)


_WAY_OUT = (
    "Give this layer deterministic inputs, write it with functions that have rules, pass your own "
    "as moments(f, rules={primitive: rule}), or take method='linear', which needs no rules."
)

OF_DISCRETE = "computes with a discrete function of a random value"
_COMPLEX = "has a complex result, as a Fourier transform has, and moments are those of real numbers"


class MomentsError(NotImplementedError):
    """A random value met a computation that moment propagation has no rule for."""


class MomentsWarning(UserWarning):
    """What `moments` chose by itself may be far off, or dear in a bundle; says what to do.

    `warnings.filterwarnings("error", category=jaxeff.MomentsWarning)` makes it an error.
    """


class DependenceError(MomentsError):
    """Dependent values met where no exact rule is known; independence may be assumed instead."""


def no_rule(
    node: Node,
    site: str,
    reason: str = "has no moment rule",
    error: type[MomentsError] = MomentsError,
    way_out: str = _WAY_OUT,
) -> MomentsError:
    """Returns an error that names the primitive, the site, the source line and the way out."""
    where = f"at site {site!r}" if site else "in a layer without a site"
    return error(
        f"moments: primitive '{node.primitive.name}' {where} ({_compat.source_line(node.eqn)}) "
        f"{reason}. {way_out}"
    )


def check_real(node: Node, site: str) -> None:
    """Refuses complex results of what is random."""
    # The two parts of a complex number have a covariance as well, which no rule passes on. Its mean
    # alone would be taken for a discrete function's result.
    if any(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in node.outputs):
        raise no_rule(node, site, _COMPLEX)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class AtMean:
    """A discrete value (a comparison, an argmax) of random inputs, taken at their means.

    It may leave the function as a result; anything that computes with it further would treat a
    random decision as certain, which is an error.
    """

    value: Array

    @property
    def dtype(self) -> NoReturn:
        """Reading it as an array, as control flow does, is the error."""
        raise MomentsError(
            "moments: control flow or indexing is decided by a random value. Decide it on "
            "deterministic values, write both branches and mix them with a deterministic mask, or "
            "draw samples with jaxeff.bayes.predict."
        )

    shape = dtype


def at_mean(value: Any) -> Any:
    """Unwraps an `AtMean`; returns other values as they are."""
    return value.value if isinstance(value, AtMean) else value


_LIMIT = 40.0
_FLOAT32_LIMIT = 10.0  # products of smaller densities are subnormal: slow, and lost in any sum
_SQRT_HALF = 0.7071067811865476
_INV_SQRT_2PI = 0.3989422804014327


class Tail(NamedTuple):
    """Density, upper tail probability and expected exceedance of a standard normal at `a`."""

    pdf: Float[Array, "*shape"]
    prob: Float[Array, "*shape"]
    exceedance: Float[Array, "*shape"]


def pdf(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes the standard normal density phi(z)."""
    return _INV_SQRT_2PI * jnp.exp(-0.5 * z * z)


def cdf(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes the standard normal distribution function Phi(z), accurate in the lower tail."""
    # erfc of the negated argument: 1 + erf(z) cancels for negative z.
    return 0.5 * jax.lax.erfc(-_SQRT_HALF * z)


# Q(a) = phi(a) N(a) / D(a) and h(a) = phi(a) R(a) / D(a) with D = R + a N, so that h + a Q = phi:
# our least-maximum fit of Mills' ratio for 0 <= a <= 10 (ascending coefficients), relative error of
# both 2.2e-8 (1 + a^2 / 5). All coefficients are positive: nothing cancels, where the difference
# phi - a Q loses a^2 digits. Density and tail take one exponential and one division, a fifth of
# the instructions of an error function.
_PROB = (1.25331416, 1.13715928, 0.488377353, 0.111818991, 0.0118469666)
_EXCEEDANCE = (1.0, 0.451893567, 0.113055271, 0.0117769336, 1.74452723e-06)


def _polynomial(coefficients: tuple[float, ...], a: Array) -> Array:
    value = jnp.full_like(a, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * a + coefficient
    return value


@jax.custom_jvp
def near(a: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Clips distances to where a normal density is above zero: 40, in float32 10."""
    return jnp.minimum(a, _LIMIT if a.dtype == jnp.float64 else _FLOAT32_LIMIT)


@near.defjvp
def _near_jvp(at: tuple[Array], step: tuple[Array]) -> tuple[Array, Array]:
    # A minimum's own derivative multiplies by 0 or 1. The step of what is far away, as of a mask or
    # the padding of a window, may be infinite: it is left out instead.
    (a,), (da,) = at, step
    clipped = near(a)
    return clipped, jnp.where(clipped == a, da, 0)


@jax.custom_jvp
def tail(a: Float[Array, "*shape"]) -> Tail:
    """Computes phi(a), Q(a) and h(a) at `0 <= a`, as `near` clips it; finite, none negative.

    At the limit of `near` and beyond all three are zero: they are below 1e-22.
    """
    limit = _LIMIT if a.dtype == jnp.float64 else _FLOAT32_LIMIT
    density = jnp.where(a < limit, pdf(a), 0)
    if a.dtype == jnp.float64:
        # The fitted quotients are for float32 alone. h(a) is about phi(a) / a^2, so the difference
        # loses a^2 in relative accuracy and can come out below zero.
        prob = 0.5 * jax.lax.erfc(_SQRT_HALF * a)
        return Tail(density, prob, jnp.maximum(density - a * prob, 0))
    above, beyond = _polynomial(_PROB, a), _polynomial(_EXCEEDANCE, a)
    # The division comes last, where XLA keeps its result instead of repeating the polynomials in
    # every consumer.
    share = density / (beyond + a * above)
    return Tail(density, share * above, share * beyond)


@tail.defjvp
def _tail_jvp(at: tuple[Array], step: tuple[Array]) -> tuple[Tail, Tail]:
    # phi' = -a phi, Q' = -phi and h' = -Q: no derivative of the fitted quotients, which would take
    # three times their operations and lose digits.
    (a,), (da,) = at, step
    of_tail = tail(a)
    return of_tail, Tail(-a * of_tail.pdf * da, -of_tail.pdf * da, -of_tail.prob * da)


def inverse_std(var: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes 1 / sqrt(var + floor): finite, with finite gradients, at a variance of zero."""
    # A variance of the squared machine epsilon counts as rounding.
    return jax.lax.rsqrt(var + float(jnp.finfo(var.dtype).eps) ** 2)
