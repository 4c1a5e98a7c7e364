"""Repetition: a noisy layer is executed several times, and the results are averaged."""

from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Count, Setting, register_setting, static
from jaxeff.noise.models._device import NOWHERE
from jaxeff.noise.models._protocol import Noise, perturb_at, place


@register_setting
@dataclass(frozen=True)
class Repeated(Setting):
    """The mean of several executions under a noise model.

    Additive noise falls by the square root of `times`. What belongs to a device doesn't change from
    one execution to the next and stays. The source spends a budget of executions where a network is
    fragile ("guided repetition"): `{site: Repeated(Additive(0.35), n)}` with its own n per site.

    Attributes:
        model: Any noise model, a user's own too.
        times: Number of executions, at least 1; static.

    Raises:
        TypeError: `model` isn't a noise model, or `times` no integer.
        ValueError: `times` is below 1.

    References:
        Borras et al., "Walking Noise", arXiv:2212.10430: executions per layer.
    """

    model: Noise
    times: Annotated[int, Count()] = static()

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        # A class has the methods of its instances, so the protocol takes it for a model.
        if not isinstance(self.model, Noise) or isinstance(self.model, type):
            raise TypeError(
                f"Repeated.model must have a method perturb(key, x), as Additive(0.3) has, not be "
                f"{self.model!r}."
            )

    @property
    def at(self) -> str:
        """The place at which the repeated model perturbs a layer."""
        return place(self.model)

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Averages independently perturbed copies of `x`."""
        return self.perturb_site(key, NOWHERE, x)

    def perturb_site(
        self, key: PRNGKeyArray, site: int, x: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Averages copies of `x` that were perturbed independently at one site."""
        # Keys differ from one execution to the next, the site doesn't: errors of the device are the
        # same in each, and averaging leaves them as they are.
        keys = jax.random.split(key, self.times)
        return jnp.mean(jax.vmap(lambda k: perturb_at(self.model, k, site, x))(keys), axis=0)
