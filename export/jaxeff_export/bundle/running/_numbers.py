"""Refuses NaN where data are rounded to codes, none of which could stand for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxeff_export.artifact import SignatureError, TensorSpec


def require_numbers(arrays: Sequence[np.ndarray], specs: Sequence[TensorSpec]) -> None:
    """Refuses arrays that hold NaN; infinities are taken.

    Args:
      arrays: the data of a call, flattened.
      specs: what they are.

    Raises:
      SignatureError: naming the first array that holds NaN.
    """
    for array, spec in zip(arrays, specs, strict=True):
        # Whole numbers have no NaN; ml_dtypes' floats are of no kind that NumPy knows.
        if array.dtype.kind not in "biu" and not spec.dtype.startswith(("int", "uint")):
            found = np.isnan(array)
            if found.any():
                raise SignatureError(
                    f"input {spec.name} holds NaN ({np.count_nonzero(found)} of {array.size} "
                    "values), and the function rounds its data to codes, which have none; replace "
                    "NaN by numbers before the call"
                )
