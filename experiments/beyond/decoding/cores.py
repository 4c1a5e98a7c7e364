"""Products of few rows on a core that isn't here, by the static model of their machine code."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jaxeff_export
from jaxeff_export.bundle import LoopModel
from jaxeff_export.targets import ToolchainError

from experiments.beyond.decoding.products import FORMATS, SETTINGS, product
from experiments.harness import Refused, Row
from jaxeff.compression import integer

CORE = "cortex-a72"


def modelled(rows: int, shape: tuple[int, int]) -> Iterator[Row]:
    """Models the kernel that multiplies, in each format.

    The bound is what takes longer: one multiplication of a vector a cycle (this core has one pipe
    for them), or the kernel's bytes from where they lie, at the model's nominal speed.

    Args:
        rows: Rows of the product.
        shape: Inputs and outputs.
    """
    keys = jax.random.split(jax.random.key(rows), 2)
    params = {"w": jax.random.normal(keys[0], shape) / shape[0] ** 0.5}
    x = jax.random.normal(keys[1], (rows, shape[0]))
    for form in FORMATS:
        if form not in SETTINGS:
            continue
        g = integer(product, {"*": SETTINGS[form]}, dynamic=True)
        try:
            loops = jaxeff_export.deploy(g, (g.convert(params, x), x), target=CORE).model()
        except ToolchainError as error:
            raise Refused(str(error)) from error
        # The other kernels make the input's codes, with a product of each entry at most.
        loop = max((m for m in loops if isinstance(m, LoopModel)), key=_all_products)
        # A bundle knows its kernels' work; modelled without it, turns and cycles are unknown.
        assert loop.turns is not None
        assert loop.total is not None
        multiplying = loop.turns * loop.multiplies
        yield {
            "core": CORE, "rows": rows, "shape": "{}x{}".format(*shape), "format": form,
            "cycles": loop.total, "multiplying": multiplying, "transfer": loop.transfer,
            "over_bound": loop.total / max(multiplying, loop.transfer), "spills": loop.spills,
        }  # fmt: skip


def _all_products(loop: LoopModel) -> float:
    return loop.products * (loop.turns or 0)


__all__ = ["CORE", "modelled"]
