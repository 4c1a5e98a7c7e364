"""The operands of a probabilistic layer: input, weights and bias, each in one of several forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tvm import te, tirx

DETERMINISTIC, VARIANCE, RAW, NONE = "deterministic", "variance", "raw", "none"


def tensors_in(kind: str) -> int:
    """Counts the tensors of an operand in a form."""
    return {NONE: 0, DETERMINISTIC: 1}.get(kind, 2)


@dataclasses.dataclass(frozen=True)
class Moments:
    """A random tensor in TE.

    Attributes:
        mean: E[x].
        spread: Var[x], or E[x^2] in the raw form; None for a deterministic tensor.
    """

    mean: te.Tensor
    spread: te.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Form:
    """The forms a layer's operands come in, as the composite's attributes name them.

    Attributes:
        input: ``deterministic`` (the first layer), ``variance``, or ``raw``: E[x^2], and random
            weights come as E[w^2] too.
        weight: ``deterministic`` or ``variance``.
        bias: ``none``, ``deterministic`` or ``variance``.
    """

    input: str = VARIANCE
    weight: str = VARIANCE
    bias: str = NONE

    def __post_init__(self) -> None:
        known = {
            "input": (DETERMINISTIC, VARIANCE, RAW),
            "weight": (DETERMINISTIC, VARIANCE),
            "bias": (NONE, DETERMINISTIC, VARIANCE),
        }
        for name, forms in known.items():
            if getattr(self, name) not in forms:
                raise ValueError(f"{name} {getattr(self, name)!r} is unknown; it is one of {forms}")
        if self.input == self.weight == DETERMINISTIC:
            raise ValueError("nothing is random: input and weight are both deterministic")

    @property
    def inputs(self) -> int:
        """Counts the operands that belong to the input."""
        return tensors_in(self.input)

    def operands(self, tensors: Sequence[te.Tensor]) -> tuple[Moments, Moments, Moments | None]:
        """Sorts a composite's operands into input, weight and bias.

        Raises:
            ValueError: another number of operands than these forms have.
        """
        rest = list(tensors)
        counts = [n for kind in (self.input, self.weight, self.bias) if (n := tensors_in(kind))]
        if len(rest) != sum(counts):
            raise ValueError(f"{len(rest)} operands do not make {self}")
        found = [Moments(rest.pop(0), rest.pop(0) if n == 2 else None) for n in counts]
        return found[0], found[1], found[2] if len(found) > 2 else None


def moments_of_product(
    form: Form, x: Sequence[tirx.Expr], w: Sequence[tirx.Expr]
) -> tuple[tirx.Expr, tirx.Expr]:
    """Computes what one pair of entries adds to the mean and to the variance of a layer.

    Args:
        form: the layer's.
        x: the scalars that ``input_tensors`` lists for the form.
        w: the mean of the weight, and its variance (E[w^2] in the raw form) if it has one.

    The variance form adds products of non-negative numbers only. In the raw form E[xw]^2 is
    subtracted, and the product of the means is computed once for both.
    """
    product = x[0] * w[0]
    # Var[x w] = w^2 Var[x]; with E[x^2] given, (E[x] w)^2 is subtracted.
    if form.weight == DETERMINISTIC:
        if form.input == RAW:
            return product, x[1] * (w[0] * w[0]) - product * product
        return product, x[1] * (w[0] * w[0])
    if form.input == DETERMINISTIC:
        return product, x[1] * w[1]
    if form.input == RAW:
        return product, x[1] * w[1] - product * product
    # For independent x and w: Var[x w] = E[x^2] Var[w] + Var[x] E[w]^2.
    return product, x[1] * w[1] + x[2] * (w[0] * w[0])
