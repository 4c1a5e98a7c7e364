"""Base of the models of a device's imperfections, whose draws are the same in every call.

A device is an integer, its seed. Its imperfections are the same in every call, at every time and
for every sample of a batch; they don't depend on the call's key. Another device, another site and
another model have other ones. Outputs have no draws per sample: `per` is "element" or "channel".
The device is a leaf, so ten devices are one vmapped program.

Sharp edges:
    `jaxeff.noisy` gives a model its site; `perturb` called directly is one more site.
    A layer inside a loop is one piece of hardware, the same in every iteration.
    An integer has no gradient: differentiate with respect to a level, not to the whole setting.
    An array with a single axis holds the channels of one sample.
"""

import zlib
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff.core import Choice, Number
from jaxeff.noise.models._model import NoiseModel

# The site of a call that doesn't name one.
NOWHERE = 0

Device = Annotated[Int[Array, ""] | int, Number(0, integer=True)]
DeviceSharing = Annotated[str, Choice("element", "channel")]


class DeviceModel(NoiseModel):
    """Base of the models of a device, beside what all noise models have in common.

    Attributes:
        device: The device, an integer.
    """

    device: Device = 0

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Distorts `x` as the device does at a site of its own; the key isn't used."""
        return self.perturb_site(key, NOWHERE, x)

    def perturb_site(
        self, key: PRNGKeyArray, site: int, x: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Distorts `x` as the device does at one site; the key isn't used."""
        del key
        return self._at_site(site, x)

    def _at_site(self, site: int, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Distorts `x` by the imperfections that the device has at one site."""
        raise NotImplementedError

    def _device_key(self, site: int) -> PRNGKeyArray:
        """Derives the key of the device's imperfections of one kind at one site."""
        # Two models at one site, or one at outputs and weights, have imperfections of their own.
        kind = zlib.crc32(f"{type(self).__name__} {self.at}".encode())
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(self.device), kind), site)

    def _device_shape(self, x: Any) -> tuple[int, ...]:
        """Computes the shape of the device's draws for an array, which broadcasts against it."""
        shape = jnp.shape(x)
        if self.per == "channel":
            return (1,) * (len(shape) - 1) + shape[-1:]
        # Samples, the first axis of outputs, pass through the same device and share its draws.
        return shape if self.at == "weights" or len(shape) < 2 else (1, *shape[1:])
