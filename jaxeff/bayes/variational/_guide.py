"""The protocol of guides, and their names."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes.posteriors import Random, Scales
from jaxeff.bayes.variational._flow import Flow
from jaxeff.bayes.variational._mean_field import MeanField
from jaxeff.bayes.variational._multivariate import FullRank, LowRank


@runtime_checkable
class Guide(Protocol):
    """A family of distributions over the random parameters.

    Its members are identified by *numbers*: a plain pytree of arrays that any optax optimizer takes
    and a checkpoint holds by path. The parameters that are not random are among them, as numbers
    that are trained like the others.
    """

    def start(self, key: PRNGKeyArray, params: Any, stds: Random) -> Any:
        """Makes the numbers that training starts from.

        Args:
            key: Random key.
            params: Pytree of parameters, where the means start.
            stds: Standard deviations to start with, by path: those of the random parameters.

        Raises:
            ValueError: The family is too large for that many random parameters.
        """

    def draw(self, key: PRNGKeyArray, numbers: Any, scales: Scales) -> tuple[Any, Float[Array, ""]]:
        """Draws parameters, differentiably.

        Args:
            key: Random key.
            numbers: Member of the family.
            scales: Prior standard deviations by path, None for a parameter that is not random.

        Returns:
            A pytree of parameters, and the Kullback-Leibler divergence from the prior in nats:
            in closed form, or estimated without bias at this draw.
        """

    def posterior(self, numbers: Any, scales: Scales) -> Any:
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
