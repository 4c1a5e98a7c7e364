"""The program as a table for people."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxeff.program.cost import Cost, program_cost
from jaxeff.program.spec import resolve
from jaxeff.program.trace import trace
from jaxeff.settings import brief
from jaxeff.tables import Table


@dataclass(frozen=True)
class Summary:
    """A function's layers and what they cost; prints as a table, also in a notebook.

    Attributes:
        cost: The same as numbers.
        settings: What a spec says of each site, if one was given.
    """

    cost: Cost
    settings: Mapping[str, Any] | None = field(default=None)

    def _table(self) -> Table:
        rows = [
            (
                row.site,
                row.kind,
                "x".join(map(str, row.shape)),
                *(f"{n:,}" if n else "" for n in (row.params, row.macs, row.bops)),
                *self._setting(row.site),
            )
            for row in self.cost.layers
        ]
        more = [] if self.settings is None else ["setting"]
        total = self.cost
        counts = (f"{n:,}" for n in (total.params, total.macs, total.bops))
        return Table(
            ("site", "kind", "output", "params>", "MACs>", "BOPs>", *more),
            rows,
            ("total", "", "", *counts, *("" for _ in more)),
            f"{len(rows)} layers",
        )

    def _setting(self, site: str) -> list[str]:
        if self.settings is None:
            return []
        return [brief(self.settings[site]) if site in self.settings else ""]

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
    spec: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Summary:
    """The layers of `f`: site, kind, output shape, parameters, MACs and BOPs.

    Args:
        f: A pure function `f(params, *args)`.
        params: Arrays or `jax.ShapeDtypeStruct`s.
        *args: Further arguments; a batch of one gives per-sample figures.
        bits: `(weight bits, activation bits)` by site, for BOPs of a quantized network.
        spec: Settings by pattern, of any transform; a column says what each site gets.
        **kwargs: As for `trace`.

    Raises:
        SpecError: As for the transform: a pattern of `spec` matches or decides no site, or two are
            equally specific at one.
    """
    program = trace(f, params, *args, **kwargs)
    settings = None if spec is None else resolve(spec, program)
    return Summary(program_cost(program, bits or {}), settings)


class Sites(tuple[str, ...]):
    """Names of layers; a notebook shows their kinds beside them."""

    kinds: tuple[str, ...]

    def _repr_html_(self) -> str:
        """The names and kinds, for a notebook."""
        return Table(("site", "kind"), list(zip(self, self.kinds, strict=True)))._repr_html_()


def sites(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> Sites:
    """The names of every layer of `f`, in order of execution."""
    layers = trace(f, params, *args, **kwargs).sites
    found = Sites(layer.site for layer in layers)
    found.kinds = tuple(layer.kind for layer in layers)
    return found
