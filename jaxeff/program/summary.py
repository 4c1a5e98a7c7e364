"""The program as a table for people."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxeff.program.cost import Cost, program_cost
from jaxeff.program.trace import trace
from jaxeff.tables import Table


@dataclass(frozen=True)
class Summary:
    """A function's layers and what they cost; prints as a table, also in a notebook.

    Attributes:
        cost: The same as numbers.
    """

    cost: Cost

    def _table(self) -> Table:
        rows = [
            (
                row.site,
                row.kind,
                "x".join(map(str, row.shape)),
                *(f"{n:,}" if n else "" for n in (row.params, row.macs, row.bops)),
            )
            for row in self.cost.layers
        ]
        total = self.cost
        counts = (f"{n:,}" for n in (total.params, total.macs, total.bops))
        return Table(
            ("site", "kind", "output", "params>", "MACs>", "BOPs>"),
            rows,
            ("total", "", "", *counts),
            f"{len(rows)} layers",
        )

    def __rich__(self) -> Any:
        """The table, for `rich`."""
        return self._table().__rich__()

    def __str__(self) -> str:
        """The table as plain text, wide enough for every cell."""
        return str(self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table, for a notebook."""
        return self._table()._repr_html_()


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
