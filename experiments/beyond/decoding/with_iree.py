"""Products on IREE, in float32 on the calling thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.beyond import iree_programs


def calls(params: Any, x: Any) -> dict[str, Callable[[], Any]]:
    """Returns a call for the only format: StableHLO of weights in int8 is dequantized in memory."""
    w, data = np.asarray(params["w"]), np.asarray(x)
    text = jax.jit(lambda w, x: x @ w).lower(w, data).as_text()
    main, on_device = iree_programs.compiled(text)
    taken = [on_device(each) for each in (w, data)]
    # The result is read, as a caller would.
    return {"float32": lambda: main(*taken).to_host()}
