"""What executions on hardware make of a layer: the mean of several, or a read-out as it was seen.

`Repeated` executes a noisy layer several times and averages the results. `ReadOut` is what a piece
of hardware does to a layer's result, measured or modelled elsewhere:
`jaxeff.analog_hardware.read_out` and `jaxeff.photonics.read_out` make specs of it, which have the
noise of crossbars and of light in the variances of `jaxeff.moments`.

Sharp edge:
    A `ReadOut` belongs to the batch that it was made of.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Count, NonNegative, Setting, register_setting, static
from jaxeff.noise.models._device import NOWHERE
from jaxeff.noise.models._protocol import Noise, perturb_at, place


@register_setting
class Repeated(Setting):
    """The mean of several executions under a noise model.

    Additive noise falls by the square root of `times`. What belongs to a device doesn't change from
    one execution to the next and stays. Klein's thesis spends a budget of executions where a
    network is fragile ("guided repetition"): `{site: Repeated(Additive(0.35), n)}`, n per site.

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
        return jnp.mean(jax.vmap(lambda k: perturb_at(k, self.model, x, site))(keys), axis=0)


@register_setting
class ReadOut(Setting):
    """Effect of hardware on one result on one batch, as noise that `jaxeff.moments` integrates.

    Attributes:
        shift: What it changes on average; of the shape of the result.
        var: The variance of its read-out, in squared units of the result.
    """

    shift: Float[Array, "*shape"]
    var: NonNegative

    def perturb(self, key: Any, x: Any) -> Any:
        """Draws a perturbed copy of `x`."""
        return x + self.shift + jnp.sqrt(self.var) * jax.random.normal(key, x.shape, x.dtype)

    def terms(self, x: Any) -> Sequence[Any]:
        """Returns the mean and the variance of the single random array."""
        zero = jnp.zeros_like(x)
        return [(zero + self.shift, zero + self.var)]

    def combine(self, x: Any, *parts: Any) -> Any:
        """Adds the random array."""
        return x + parts[0]
