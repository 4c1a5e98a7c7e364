"""`LayerQuantization`: weights and activations of a layer quantized by methods of their own.

A quantizer alone, `{"conv*": LSQ(4)}`, stands for both; `Int` is written for both at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from jaxeff.compression.numerics._quantizer import Quantizer
from jaxeff.core import Choice, Setting, register_setting, static


@register_setting
@dataclass(frozen=True)
class LayerQuantization(Setting):
    """Quantizers for the weights and the activations of a layer.

    Attributes:
        weights: The method for weights of a dot product or convolution; None leaves them alone.
        activations: The method for activations, or a tuple with one for each that the layer reads
            (or returns); None leaves them alone.
        at: Activations that are quantized: those that a multiply-accumulate reads ("input"), or the
            result of any layer ("output").

    Raises:
        TypeError: A method isn't a quantizer.
        ValueError: There is none, or `at` is neither of the two.
    """

    weights: Quantizer | None = None
    activations: Quantizer | tuple[Quantizer | None, ...] | None = None
    at: Annotated[str, Choice("input", "output")] = static("input")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        several = self.activations if isinstance(self.activations, tuple) else (self.activations,)
        given = [q for q in (self.weights, *several) if q is not None]
        if not given:
            raise ValueError(
                "LayerQuantization quantizes neither weights nor activations; use None instead."
            )
        for quantizer in given:
            if not isinstance(quantizer, Quantizer) or isinstance(quantizer, type):
                raise TypeError(
                    f"LayerQuantization takes quantizers, such as LSQ(4), not {quantizer!r}."
                )

    def of_activation(self, site: str, operand: int, count: int) -> Quantizer | None:
        """Returns the method for one of the activations.

        Raises:
            ValueError: There are methods for another number of them.
        """
        if not isinstance(self.activations, tuple):
            return self.activations
        if len(self.activations) != count:
            raise ValueError(
                f"{site!r} has {count} activation(s) to quantize, but its setting has methods for "
                f"{len(self.activations)}."
            )
        return self.activations[operand]


@runtime_checkable
class HasParts(Protocol):
    """A setting with separate methods for weights and activations, such as `Int`."""

    def parts(self) -> LayerQuantization:
        """Separates the methods of weights and of activations."""
        ...


def parts(setting: Any) -> LayerQuantization:
    """Separates a setting into the methods of weights and of activations."""
    if isinstance(setting, LayerQuantization):
        return setting
    if isinstance(setting, HasParts):
        return setting.parts()
    return LayerQuantization(setting, setting)


Method = LayerQuantization | Quantizer | HasParts
"""Values that a spec may map a pattern to."""
