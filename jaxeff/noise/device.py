"""What the models of one device's imperfections share: draws that are the same in every call.

A device is an integer, its seed: the same device has the same imperfections in every call, at every
time and for every sample of a batch, whatever the key of the call; another device, another site and
another model have others. Outputs have no draws per sample: `per` is "element" or "channel". The
device is a leaf, so ten devices are one vmapped program.

Sharp edges:
    `jaxeff.noisy` tells a model its site; `perturb` called directly is a site of its own.
    A layer inside a loop is one piece of hardware, the same in every iteration.
    An integer has no gradient: differentiate with respect to a level, not to the whole setting.
    An array with a single axis holds the channels of one sample.
"""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff.settings import check_choice, check_number, is_concrete

# The site of a call that doesn't name one.
NOWHERE = 0


def check_device(model: Any) -> None:
    """Checks a model's `device`, and its `per` where it has one.

    Raises:
        TypeError: The device isn't an integer.
        ValueError: The device is negative, or `per` asks for the samples of a batch.
    """
    name = type(model).__name__
    check_number(f"{name}.device", model.device, low=0)
    if is_concrete(model.device) and np.asarray(model.device).dtype.kind not in "iu":
        raise TypeError(f"{name}.device must be an integer, a seed, not {model.device!r}.")
    if hasattr(model, "per"):
        check_choice(f"{name}.per", model.per, ("element", "channel"))


def device_key(model: Any, site: int) -> PRNGKeyArray:
    """The key of a device's imperfections of one kind at one site."""
    kind = zlib.crc32(f"{type(model).__name__} {model.at}".encode())
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(model.device), kind), site)


def device_shape(model: Any, x: Any) -> tuple[int, ...]:
    """The shape of a device's draws for an array, which broadcasts against it."""
    shape = jnp.shape(x)
    if model.per == "channel":
        return (1,) * (len(shape) - 1) + shape[-1:]
    return shape if model.at == "weights" or len(shape) < 2 else (1, *shape[1:])
