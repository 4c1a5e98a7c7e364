"""The protocol of optical elements, the settings of `jaxeff.photonic`."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, PRNGKeyArray

from jaxeff.program import Layer


@runtime_checkable
class PhotonicElement(Protocol):
    """An optical element that takes a layer's place; any object with these methods will do."""

    def refuses(self, layer: Layer) -> str:
        """Returns why it can't carry a layer, as the end of an error message; empty if it can."""
        ...

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        """Returns the layer's outputs as read out, given its inputs."""
        ...


@runtime_checkable
class ReadElement(PhotonicElement, Protocol):
    """An element with the mean and variance of its reading, as `jaxeff.moments` needs them."""

    def read(self, layer: Layer, values: Sequence[Any]) -> tuple[Array, Array]:
        """Computes the mean and variance of the layer's reading, given its inputs."""
        ...
