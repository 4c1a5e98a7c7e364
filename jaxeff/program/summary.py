"""The program as a table for people."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxeff.program.cost import Cost, program_cost
from jaxeff.program.trace import trace


@dataclass(frozen=True)
class Summary:
    """A function's layers and what they cost; prints as a table, also in a notebook.

    Attributes:
        cost: The same as numbers.
    """

    cost: Cost

    def __rich__(self) -> Table:
        """The table, for `rich`."""
        table = Table(caption=f"{len(self.cost.layers)} layers")
        table.add_column("site")
        table.add_column("kind")
        table.add_column("output")
        for name in ("params", "MACs", "BOPs"):
            table.add_column(name, justify="right")
        for row in self.cost.layers:
            shape = "x".join(map(str, row.shape))
            counts = (f"{n:,}" if n else "" for n in (row.params, row.macs, row.bops))
            table.add_row(row.site, row.kind, shape, *counts)
        table.add_section()
        total = self.cost
        table.add_row("total", "", "", f"{total.params:,}", f"{total.macs:,}", f"{total.bops:,}")
        return table

    def __str__(self) -> str:
        """The table as plain text, wide enough for every cell."""
        console = Console(width=200, color_system=None, force_jupyter=False, force_terminal=False)
        with console.capture() as capture:
            console.print(self)
        lines = capture.get().splitlines()
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def summary(
    f: Callable[..., Any],
    params: Any,
    *args: Any,
    bits: Mapping[str, tuple[int, int]] | None = None,
    **kwargs: Any,
) -> Summary:
    """The layers of `f`: site, kind, output shape, parameters, MACs and BOPs.

    Args:
        f: A pure function `f(params, *args)`.
        params: Arrays or `jax.ShapeDtypeStruct`s.
        *args: Further arguments; a batch of one gives per-sample figures.
        bits: `(weight bits, activation bits)` by site, for BOPs of a quantized network.
        **kwargs: As for `trace`.
    """
    return Summary(program_cost(trace(f, params, *args, **kwargs), bits or {}))


def sites(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> tuple[str, ...]:
    """The names of every layer of `f`, in order of execution."""
    return tuple(layer.site for layer in trace(f, params, *args, **kwargs).sites)
