"""What `jaxeff.photonic` asks of a setting."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import PRNGKeyArray

from jaxeff.program import Layer


@runtime_checkable
class PhotonicElement(Protocol):
    """An optical element that takes a layer's place; any object with these methods will do."""

    def refuses(self, layer: Layer) -> str:
        """Why it can't carry a layer, as the end of an error message; empty if it can."""
        ...

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        """The layer's outputs as read out, given its inputs."""
        ...
