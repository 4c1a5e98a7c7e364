"""Guides, the families of variational posteriors: mean field, low rank, full rank and a flow.

`MeanField` is an independent Gaussian per parameter, the family of NumPyro's ``AutoNormal``. Its
numbers are ``{"mean": params, "raw": {path: array}}`` with standard deviation
``softplus(raw)``. A parameter without a prior has a mean only, which is then its trained value.

Guides with correlations are one distribution over all random parameters as one vector. Their
numbers are ``{"mean": params, "raw": [size], ...}``: where the distribution is centred, its
scales ``softplus(raw)``, and what else the family has. The vector holds the random parameters in
the order of their paths.

`LowRank` and `FullRank` are Gaussians, the families of NumPyro's ``AutoLowRankMultivariateNormal``
and ``AutoMultivariateNormal``.

`Flow` is a normalizing flow, inverse autoregressive, as NumPyro's ``AutoIAFNormal``. Independent
Gaussian noise goes through autoregressive networks, each of which shifts and scales every entry
depending on the entries before it (Kingma et al. 2016, arXiv 1606.04934), and last through the
scales and means that every guide has. It starts as a mean field: the networks' last layers are
zero.

Sharp edge: the networks of a flow have four matrices of parameters squared for each flow, so this
is for small networks, or for a few random parameters of a large one.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.example_libraries import stax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions.flows import InverseAutoregressiveTransform
from numpyro.distributions.transforms import AffineTransform, PermuteTransform, Transform
from numpyro.nn import AutoregressiveNN

from jaxeff.bayes import posteriors
from jaxeff.core import Count, Setting, Table, shown_as_table
from jaxeff.moment_propagation import Gaussian


def inverse_softplus(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Solves ``softplus(y) = x`` for y, exact for small x, too."""
    # log(e^x - 1) = x + log(1 - e^-x), which neither overflows nor cancels.
    return x + jnp.log(-jnp.expm1(-x))


def own_arrays(params: Any) -> Any:
    """Copies parameters without weak types, so that training compiles once."""
    return jax.tree.map(lambda p: jnp.array(p, jnp.result_type(p)), params)


@dataclass(frozen=True)
class MeanField:
    """Independent Gaussians; the posterior is a pytree of `jaxeff.Gaussian`."""

    def start(self, key: PRNGKeyArray, params: Any, stds: posteriors.Random) -> dict[str, Any]:
        """Implements `Guide.start`; nothing about it is random."""
        raw = {path: inverse_softplus(std) for path, std in stds.items()}
        return {"mean": own_arrays(params), "raw": raw}

    def draw(
        self, key: PRNGKeyArray, numbers: dict[str, Any], scales: posteriors.Scales
    ) -> tuple[Any, Float[Array, ""]]:
        """Implements `Guide.draw`; the divergence is in closed form.

        The noise of all parameters is one vector: a random draw for each would make the training
        step several times slower to compile.
        """
        means, raws = posteriors.named_leaves(numbers["mean"]), numbers["raw"]
        sizes = [raw.size for raw in raws.values()]
        noise = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
        random, divergence = {}, jnp.zeros(())
        for (path, raw), part in zip(raws.items(), noise, strict=True):
            mean, std = means[path], jax.nn.softplus(raw)
            # Reparameterization (Kingma and Welling, arXiv:1312.6114): the draw is differentiable.
            random[path] = mean + std * part.reshape(mean.shape).astype(mean.dtype)
            prior = dist.Normal(0.0, scales[path])
            divergence += dist.kl_divergence(dist.Normal(mean, std), prior).sum()
        return posteriors.with_random(numbers["mean"], random), divergence

    def posterior(self, numbers: dict[str, Any], scales: posteriors.Scales) -> Any:
        return _gaussians(numbers)


@jax.jit
def _gaussians(numbers: dict[str, Any]) -> Any:
    means, raws = posteriors.named_leaves(numbers["mean"]), numbers["raw"]
    gaussians = {
        path: Gaussian(means[path], jax.nn.softplus(raw) ** 2) for path, raw in raws.items()
    }
    return posteriors.with_random(numbers["mean"], gaussians)


Vector = Float[Array, "size"]

MOMENT_DRAWS = 2000
"""Draws to estimate moments with where there is no closed form: standard deviations to 1.6 %."""


class Family(Protocol):
    """A family of distributions over a vector."""

    def shape(self, key: PRNGKeyArray, size: int, dtype: Any) -> dict[str, Any]:
        """Makes the family's own numbers to start with: about those of independent entries."""

    def distribution(self, mean: Vector, std: Vector, shape: dict[str, Any]) -> dist.Distribution:
        """Makes the distribution of the vector; at a start, of about the given moments."""


@dataclass(frozen=True)
class CorrelatedGuide(Setting):
    """Base of guides over a vector; a subclass is a `Family`."""

    def start(self: Any, key: PRNGKeyArray, params: Any, stds: posteriors.Random) -> dict[str, Any]:
        std, _ = ravel_pytree(stds)
        shape = self.shape(key, std.size, std.dtype)
        return {"mean": own_arrays(params), "raw": inverse_softplus(std), **shape}

    def draw(
        self: Any, key: PRNGKeyArray, numbers: dict[str, Any], scales: posteriors.Scales
    ) -> tuple[Any, Float[Array, ""]]:
        """Implements `Guide.draw`; in closed form where the family has an entropy."""
        posterior = self.posterior(numbers, scales)
        random = posterior.random_of_mean()
        scale = {
            path: np.full(leaf.shape, scales[path], leaf.dtype) for path, leaf in random.items()
        }
        # Flattened like the vector, so that every entry meets its own scale.
        prior = dist.Normal(0.0, ravel_pytree(scale)[0])
        of_vector = posterior.distribution()
        vector, intermediates = of_vector.sample_with_intermediates(key)
        # Without a closed form it is estimated at this draw, without bias.
        divergence = _divergence(of_vector, prior, vector, intermediates)
        return posterior.params_at(vector), divergence

    def posterior(
        self: Any, numbers: dict[str, Any], scales: posteriors.Scales
    ) -> "CorrelatedPosterior":
        paths = tuple(path for path, scale in scales.items() if scale is not None)
        return CorrelatedPosterior(numbers, self, paths)


def _divergence(
    of_vector: dist.Distribution, prior: dist.Normal, vector: Vector, intermediates: list[Any]
) -> Float[Array, ""]:
    if isinstance(of_vector, dist.TransformedDistribution):
        # A flow has no closed entropy: one-sample estimate, with the intermediates of the
        # same draw so that nothing is inverted.
        log_ratio: Any = of_vector.log_prob(vector, intermediates) - prior.log_prob(vector).sum()
        return log_ratio
    # The prior's log-density is quadratic: its mean at the mean, and the variances' share.
    spread = of_vector.variance / (2 * prior.scale**2)
    return (spread - prior.log_prob(of_vector.mean)).sum() - of_vector.entropy()


@shown_as_table
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class CorrelatedPosterior:
    """A posterior over all random parameters together.

    Attributes:
        numbers: The guide's, trained.
        guide: The guide.
        paths: Paths of the random parameters.
        likelihood: Meaning of the outputs of the function, as given to `svi`; None if unknown.
    """

    numbers: dict[str, Any]
    guide: Any = field(metadata={"static": True})
    paths: tuple[str, ...] = field(metadata={"static": True})
    likelihood: posteriors.Likelihood | None = field(default=None, metadata={"static": True})

    def _table(self) -> Table:
        shapes = {path: np.shape(leaf) for path, leaf in self.random_of_mean().items()}
        return posteriors.parameter_table(f"{self.guide!r}", self.numbers["mean"], shapes)

    def draws(self, key: PRNGKeyArray, n: int) -> tuple[Any, Any]:
        of_vector = self.distribution()
        return jax.random.split(key, n), lambda k: self.params_at(of_vector.sample(k))

    def to_gaussians(self, *, diagonal: bool = False) -> Any:
        """Computes the mean and variance of every parameter; correlations are lost.

        They are exact for Gaussians. A flow's are those of 2,000 draws, always the same ones.
        """
        of_vector = self.distribution()
        if isinstance(of_vector, dist.TransformedDistribution):
            # Always the same key: moments belong to the posterior, not to a call.
            keys = jax.random.split(jax.random.key(0), MOMENT_DRAWS)
            # In batches: 2,000 vectors of all parameters at once may not fit.
            drawn = jax.lax.map(of_vector.sample, keys, batch_size=100)
            mean, var = drawn.mean(0), drawn.var(0)
        else:
            mean, var = of_vector.mean, of_vector.variance
        _, unravel = ravel_pytree(self.random_of_mean())
        means, variances = unravel(mean), unravel(var)
        gaussians = {path: Gaussian(means[path], variances[path]) for path in self.paths}
        return posteriors.with_random(self.numbers["mean"], gaussians)

    def distribution(self) -> dist.Distribution:
        """Makes the distribution of the random parameters as one vector, ordered by path."""
        rest = dict(self.numbers)
        rest.pop("mean")
        mean, _ = ravel_pytree(self.random_of_mean())
        return self.guide.distribution(mean, jax.nn.softplus(rest.pop("raw")), rest)

    def random_of_mean(self) -> posteriors.Random:
        """Returns the centres of the random parameters, by path."""
        leaves = posteriors.named_leaves(self.numbers["mean"])
        return {path: leaves[path] for path in self.paths}

    def params_at(self, vector: Vector) -> Any:
        """Makes all parameters, the random ones from a vector."""
        _, unravel = ravel_pytree(self.random_of_mean())
        return posteriors.with_random(self.numbers["mean"], unravel(vector))


LARGEST = 2**30
"""Bytes of the largest matrix that a guide makes: 16,384 float32 parameters, full rank."""


@dataclass(frozen=True)
class LowRank(CorrelatedGuide):
    """A Gaussian with covariance ``S (F F' + I) S``: ``S`` diagonal, ``F`` of a few columns.

    Attributes:
        rank: Columns of ``F``; as many as there are parameters if those are fewer. A step costs
            about ``rank**2`` operations per parameter.
    """

    rank: Annotated[int, Count()] = 10

    def shape(self, key: PRNGKeyArray, size: int, dtype: Any) -> dict[str, Any]:
        rank = min(self.rank, size)
        # Small, so that the variances are those asked for up to 1 %; at zero itself the gradient
        # to `factor` would be noise.
        return {"factor": 0.1 / rank**0.5 * jax.random.normal(key, (size, rank), dtype)}

    def distribution(self, mean: Vector, std: Vector, shape: dict[str, Any]) -> dist.Distribution:
        # Rows of F and the identity scale together: S (F F' + I) S.
        factor = shape["factor"] * std[:, None]
        return dist.LowRankMultivariateNormal(mean, factor, std**2)


def low_rank_posterior(
    mean: Any, std: Vector, factor: Float[Array, "size rank"]
) -> CorrelatedPosterior:
    """Makes a Gaussian of all parameters of covariance ``factor factor' + diag(std**2)``.

    Args:
        mean: The mean, a pytree of parameters.
        std: Standard deviations of the independent part, in the order of the sorted paths.
        factor: The dependent part.
    """
    numbers = {"mean": mean, "raw": inverse_softplus(std), "factor": factor / std[:, None]}
    return CorrelatedPosterior(
        numbers, LowRank(factor.shape[1]), tuple(posteriors.named_leaves(mean))
    )


@dataclass(frozen=True)
class FullRank(CorrelatedGuide):
    """A Gaussian with any covariance, by its Cholesky factor.

    Memory and time grow with the square of the number of random parameters.
    """

    def shape(self, key: PRNGKeyArray, size: int, dtype: Any) -> dict[str, Any]:
        check_size("a full-rank guide", size, 1, size**2 * dtype.itemsize)
        return {"lower": jnp.zeros((size, size), dtype)}

    def distribution(self, mean: Vector, std: Vector, shape: dict[str, Any]) -> dist.Distribution:
        # Row by row `std` times a unit triangle: whatever is learnt, it is a Cholesky factor.
        correlated = jnp.tril(shape["lower"], -1) + jnp.eye(len(std), dtype=std.dtype)
        return dist.MultivariateNormal(mean, scale_tril=std[:, None] * correlated)


def check_size(name: str, size: int, matrices: int, number_of_bytes: int) -> None:
    """Refuses a guide that wouldn't fit into memory."""
    if number_of_bytes > LARGEST:
        what = "a matrix" if matrices == 1 else f"{matrices} matrices"
        raise ValueError(
            f"{name} of {size:,} random parameters is {what} of {number_of_bytes / 1e9:.1f} GB, "
            "and training holds about four times that: use guide='low_rank', or make fewer "
            'parameters random by a prior of None, such as prior={"*/kernel": None}'
        )


MATRICES = 4  # of size x size in one network: two hidden layers, and a last one of double width


@dataclass(frozen=True)
class Flow(CorrelatedGuide):
    """An inverse autoregressive flow.

    Attributes:
        flows: Number of autoregressive networks; every second one sees the entries in reverse.
    """

    flows: Annotated[int, Count()] = 2

    def shape(self, key: PRNGKeyArray, size: int, dtype: Any) -> dict[str, Any]:
        if size < 2:
            raise ValueError("a flow needs at least two random parameters: use 'mean_field'")
        matrices = MATRICES * self.flows
        check_size("a flow", size, matrices, matrices * size**2 * dtype.itemsize)
        init, _ = _network(size)
        networks = []
        for k in jax.random.split(key, self.flows):
            _, layers = init(k, (size,))
            # Last layers of zeros make the flow the identity, so the guide starts as a mean field.
            networks.append([*layers[:-1], jax.tree.map(jnp.zeros_like, layers[-1])])
        return {"networks": networks}

    def distribution(self, mean: Vector, std: Vector, shape: dict[str, Any]) -> dist.Distribution:
        _, apply = _network(len(mean))
        transforms: list[Transform] = []
        for layers in shape["networks"]:
            if transforms:
                transforms.append(PermuteTransform(jnp.arange(len(mean))[::-1]))
            # A draw and its density take one pass; other points would take one per entry.
            transforms.append(InverseAutoregressiveTransform(lambda x, n=layers: apply(n, x)))
        # Reversed an odd number of times so far: once more puts entries back under their means.
        if self.flows % 2 == 0:
            transforms.append(PermuteTransform(jnp.arange(len(mean))[::-1]))
        # As in every guide: starts and optimizers see the parameters' own units.
        transforms.append(AffineTransform(mean, std))
        noise = dist.Normal(jnp.zeros_like(mean), jnp.ones_like(mean)).to_event(1)
        return dist.TransformedDistribution(noise, transforms)


def _network(size: int) -> Any:
    return AutoregressiveNN(size, [size, size], nonlinearity=stax.Elu)


@runtime_checkable
class Guide(Protocol):
    """A family of distributions over the random parameters.

    Its members are identified by *numbers*: a plain pytree of arrays that any optax optimizer takes
    and a checkpoint holds by path. The parameters that are not random are among them, as numbers
    that are trained like the others.
    """

    def start(self, key: PRNGKeyArray, params: Any, stds: posteriors.Random) -> Any:
        """Makes the numbers that training starts from.

        Args:
            key: Random key.
            params: Pytree of parameters, where the means start.
            stds: Standard deviations to start with, by path: those of the random parameters.

        Raises:
            ValueError: The family is too large for that many random parameters.
        """

    def draw(
        self, key: PRNGKeyArray, numbers: Any, scales: posteriors.Scales
    ) -> tuple[Any, Float[Array, ""]]:
        """Draws parameters, differentiably.

        Args:
            key: Random key.
            numbers: Member of the family.
            scales: Prior standard deviations by path, None for a parameter that is not random.

        Returns:
            A pytree of parameters, and the Kullback-Leibler divergence from the prior in nats:
            in closed form, or estimated without bias at this draw.
        """

    def posterior(self, numbers: Any, scales: posteriors.Scales) -> Any:
        """Returns the member of the family as a posterior (see `jaxeff.bayes.posteriors`)."""


NAMED: dict[str, Guide] = {
    "mean_field": MeanField(),
    "low_rank": LowRank(),
    "full_rank": FullRank(),
    "flow": Flow(),
}


def resolve_guide(guide: str | Guide) -> Guide:
    """Looks up a guide.

    Args:
        guide: ``"mean_field"``, ``"low_rank"``, ``"full_rank"``, ``"flow"``, or a guide with its
            settings, such as ``LowRank(rank=20)``.

    Raises:
        ValueError: The name is unknown.
    """
    if isinstance(guide, str) and guide in NAMED:
        return NAMED[guide]
    if isinstance(guide, Guide) and not isinstance(guide, type):
        return guide
    raise ValueError(
        f"unknown guide {guide!r}: use one of {', '.join(map(repr, NAMED))}, or one of "
        "jaxeff.bayes.variational with its settings, such as LowRank(rank=20)"
    )
