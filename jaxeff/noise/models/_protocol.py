"""Protocols of noise models, as `jaxeff.noisy` and `jaxeff.moments` use them."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.program import check_settings

PLACES = ("output", "weights", "input")


@runtime_checkable
class Noise(Protocol):
    """Noise model of `jaxeff.noisy`; any object with this method is one.

    A model may also have an attribute `at`, one of "output" (the default), "weights" and "input",
    and, if not all its numbers are levels of noise, the names of those that are, `levels`.
    """

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns a perturbed copy of `x`, of the same shape and dtype."""
        ...


@runtime_checkable
class SiteNoise(Noise, Protocol):
    """Noise model whose effect depends on the site, as that of a device does.

    `jaxeff.noisy` calls this method in the place of `perturb`, with a new key in every call but the
    same number for the same value of the same layer.
    """

    def perturb_site(
        self, key: PRNGKeyArray, site: int, x: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Returns a perturbed copy of `x`, the value that `site` numbers."""
        ...


Part: TypeAlias = tuple[Array, Array]
"""The mean and the variance of a random array, of independent entries."""


@runtime_checkable
class MomentNoise(Noise, Protocol):
    """A noise model that `jaxeff.moments` can integrate: a value and independent random arrays.

    A perturbed value is `combine(x, *draws)`, linear in each of the draws.
    """

    def terms(self, x: Any) -> Sequence[Part]:
        """Returns mean and variance of each random array, whose shape broadcasts against `x`."""
        ...

    def combine(self, x: Any, *parts: Any) -> Any:
        """Returns the perturbed value, given draws of the random arrays."""
        ...


def check_noise(spec: Any) -> None:
    """Checks that a spec maps patterns to noise models or None.

    Raises:
        TypeError: It doesn't.
    """
    check_settings(
        spec, Noise, "a noise model with a method perturb(key, x), such as Additive(0.3)"
    )


def perturb_at(model: Noise, key: PRNGKeyArray, site: int, x: Any) -> Any:
    """Perturbs the value of a site; models of a device get the site's number too."""
    if isinstance(model, SiteNoise):
        return model.perturb_site(key, site, x)
    return model.perturb(key, x)


def place(model: Noise) -> str:
    """Returns the place of a layer that a model perturbs: "input", "output" or "weights".

    Raises:
        ValueError: Its `at` is none of the three.
    """
    at = getattr(model, "at", "output")
    if at not in PLACES:
        raise ValueError(f"A noise model's `at` must be one of {PLACES}, not {at!r}.")
    return at
