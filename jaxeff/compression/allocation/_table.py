"""`BitSensitivity`: damage by site and width, in whatever unit it was measured."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Table = Float[np.ndarray, "sites widths"]


class BitSensitivity(NamedTuple):
    """The damage of quantizing one array of one site, the others left alone.

    Attributes:
        sites: The layers.
        widths: The bit widths.
        weights: Damage of so many bits in the weights of a site; None where it wasn't measured, 0
            for a layer without weights.
        activations: Damage in the same form, of the layers' inputs.
        weights_error: Standard error of `weights`; None where there is none.
        activations_error: Standard error of `activations`.
    """

    sites: tuple[str, ...]
    widths: tuple[int, ...]
    weights: Table | None = None
    activations: Table | None = None
    weights_error: Table | None = None
    activations_error: Table | None = None


def check_widths(widths: Iterable[int]) -> tuple[int, ...]:
    """Checks that bit widths are whole numbers from 1 to 16 in rising order.

    Raises:
        ValueError: They aren't.
    """
    found = tuple(widths)
    whole = all(isinstance(w, int | np.integer) and 1 <= w <= 16 for w in found)
    if not found or not whole or list(found) != sorted(set(found)):
        raise ValueError(f"widths must be rising whole numbers from 1 to 16, not {found}.")
    return tuple(int(w) for w in found)
