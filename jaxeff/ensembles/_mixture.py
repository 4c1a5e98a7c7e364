"""`Mixture`: what an ensemble of probabilistic networks predicts, one moment pass for each member.

```python
import jax

import jaxeff
from jaxeff.ensembles import Members, Mixture
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
g, heads = jaxeff.ensemble(jax.random.key(0), f, params, {"fc2": Members(5)})
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), heads)
mixture = Mixture(jaxeff.moments(g)(posterior, x))
mixture.within, mixture.between                     # their sum is mixture.var, exactly
```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import entr, logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import check_count, input_batch, validate
from jaxeff.moment_propagation import Gaussian, is_gaussian, moments

if TYPE_CHECKING:
    from jaxeff.bayes import MixturePosterior


class MixtureUncertainty(NamedTuple):
    """The uncertainty of a mixture, in three parts that sum to the total.

    Attributes:
        mean: The predictive mean, or the class probabilities.
        aleatoric: Part that no member's weights explain.
        within: Part that the uncertain weights of each member explain.
        between: Part by which members disagree.
    """

    mean: Float[Array, "..."]
    aleatoric: Float[Array, "..."]
    within: Float[Array, "..."]
    between: Float[Array, "..."]

    @property
    def epistemic(self) -> Float[Array, "..."]:
        """Within and between members."""
        return self.within + self.between

    @property
    def total(self) -> Float[Array, "..."]:
        """All three."""
        return self.aleatoric + self.within + self.between


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of Gaussians with equal weights, entry by entry.

    Every member predicts a Gaussian; together they are a mixture of equal weights. By the law of
    total variance its variance is the mean of the members' variances (within) plus the variance of
    their means (between), in closed form. With an aleatoric head there is a third part, the noise
    that the network predicts:

    ```text
    Var y = E[exp(s)]           aleatoric   mean of exp(m_s + v_s / 2), the mean of a lognormal
          + E[Var(mu | member)] within
          + Var(E[mu | member]) between
    ```

    For classes, entropies of a softmax under a Gaussian have no closed form; `decompose` draws
    logits, which costs no further pass, and splits the total entropy into the same three.

    Sharp edges:
        Where members share random parameters, their predictions are correlated; every part here is
        one of marginals, so it is right all the same.
        The mean of exponentials in the aleatoric part grows without bound where log-variances are
        uncertain, as far from the data.

    Attributes:
        members: The members' Gaussians, `[members, ...]`.
    """

    members: Gaussian

    @property
    def mean(self) -> Float[Array, "..."]:
        """The mean of the mixture."""
        return self.members.mean.mean(0)

    @property
    def within(self) -> Float[Array, "..."]:
        """The mean of the members' variances."""
        return self.members.var.mean(0)

    @property
    def between(self) -> Float[Array, "..."]:
        """The variance of the members' means."""
        return self.members.mean.var(0)

    @property
    def var(self) -> Float[Array, "..."]:
        """The variance of the mixture."""
        return self.within + self.between

    def log_prob(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Computes the log-density of each entry, in nats.

        Args:
            x: Values, of the shape of one member's.
        """
        square = (x[None] - self.members.mean) ** 2 / self.members.var
        logs = -0.5 * (square + jnp.log(2 * jnp.pi * self.members.var))
        # The log of the members' mean density, without underflow far from all of them.
        return logsumexp(logs, axis=0) - jnp.log(jnp.asarray(len(logs), logs.dtype))

    def sample(self, key: PRNGKeyArray, samples: int = 100) -> Float[Array, "members samples ..."]:
        """Draws from every member.

        Args:
            key: Random key.
            samples: Number of draws of each.
        """
        check_count("samples", samples)
        return jnp.moveaxis(self.members.sample(key, (samples,)), 0, 1)

    def regression(self) -> MixtureUncertainty:
        """Splits predictions of an aleatoric head: mean, then log-variance, on the last axis.

        Returns:
            Mean and variances, in closed form.

        Raises:
            ValueError: An odd number of outputs.
        """
        if self.members.shape[-1] % 2:
            raise ValueError(
                "means and log-variances need an even number of outputs, not "
                f"{self.members.shape[-1]}"
            )
        mu, log_var = jnp.split(self.members.mean, 2, axis=-1)
        of_mu, of_log = jnp.split(self.members.var, 2, axis=-1)
        # E[exp(s)] of a normal s, the mean of a lognormal.
        aleatoric = jnp.exp(log_var + of_log / 2).mean(0)
        return MixtureUncertainty(mu.mean(0), aleatoric, of_mu.mean(0), mu.var(0))

    def decompose(self, key: PRNGKeyArray, samples: int = 100) -> MixtureUncertainty:
        """Computes entropies of classes, in nats, by drawing logits.

        The total is the entropy of the mean prediction, the aleatoric part the mean entropy of a
        draw; within is the mutual information with the weights of a given member, between that with
        the member.

        Args:
            key: Random key.
            samples: Draws of each member; mutual information is biased low by few.

        Returns:
            Class probabilities `[batch, classes]`, and uncertainties `[batch]`.
        """
        probs = jax.nn.softmax(self.sample(key, samples))
        of_members = probs.mean(1)
        mean = of_members.mean(0)
        # H(mean) = E H(draw) + I(y; weights | member) + I(y; member), the chain rule.
        total, each = entr(mean).sum(-1), entr(of_members).sum(-1).mean(0)
        aleatoric = entr(probs).sum(-1).mean((0, 1))
        return MixtureUncertainty(mean, aleatoric, each - aleatoric, total - each)


@validate(args=input_batch)
def mixture_moments(
    f: Callable[..., Any], posterior: MixturePosterior, *args: Any, **options: Any
) -> Mixture:
    """Predicts by a mixture of posteriors: one moment pass for each, one after the other.

    Of several posteriors of one network, `mixture_moments` is the mixture:

    ```python
    import jax

    import jaxeff
    from jaxeff.bayes import MixturePosterior
    from jaxeff.ensembles import mixture_moments
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    around = lambda p: jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), p)
    modes = MixturePosterior((around(params), around(jax.tree.map(lambda w: 0.9 * w, params))))
    mixture = mixture_moments(f, modes, x[:8])
    assert mixture.mean.shape == (8, 10)
    ```

    Args:
        f: `f(params, *args) -> outputs`, an array.
        posterior: The members' posteriors.
        *args: Inputs of `f`.
        **options: Options of `jaxeff.moments`.

    Returns:
        The mixture of the members' outputs.

    Raises:
        TypeError: It is no `MixturePosterior`, or `f` returns more than an array.
    """
    from jaxeff.bayes import MixturePosterior  # NumPyro and BlackJAX come with it

    if not isinstance(posterior, MixturePosterior):
        raise TypeError(
            f"mixture_moments takes a MixturePosterior, not a {type(posterior).__name__}: of "
            "one posterior jaxeff.moments(f)(posterior, x) has the moments"
        )
    propagated = moments(f, **options)
    # One after the other: memory is that of one moment pass.
    out = jax.lax.map(lambda member: propagated(member, *args), posterior.gaussians())
    if not is_gaussian(out):
        raise TypeError("mixture_moments: f must return one floating-point array")
    return Mixture(out)
