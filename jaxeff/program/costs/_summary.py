"""The program as a table for people.

```python
from jaxeff import sites, summary
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(10)
assert sites(f, params, x)[:3] == ("input", "conv1", "relu")
print(summary(f, params, x))                            # layers, parameters, MACs, bit operations
```
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxeff.core import (
    Table,
    instance_of,
    short_repr,
    shown_as_table,
    spec_of,
    string_mapping,
    validate,
)
from jaxeff.program._spec import resolve
from jaxeff.program.costs._cost import Bits, Cost, LayerCost, program_cost
from jaxeff.program.reading import trace


@shown_as_table
@dataclass(frozen=True)
class Summary:
    """A function's layers and what they cost; prints as a table, also in a notebook.

    Attributes:
        cost: The same as numbers.
        settings: Setting of each site, if a spec was given.
        verdict: What is known of the function's results beside their values; shown below the table.
    """

    cost: Cost
    settings: Mapping[str, Any] | None = field(default=None)
    verdict: str = ""

    def _table(self) -> Table:
        columns = ["site", "kind", "output", "params>", "MACs>", "BOPs>"]
        cells = [
            [
                row.site,
                row.kind,
                "x".join(map(str, row.shape)),
                *(_number(n) for n in (row.params, row.macs, row.bops)),
            ]
            for row in self.cost.layers
        ]
        total = ["total", "", "", *map(_number, (self.cost.params, self.cost.macs, self.cost.bops))]
        if any(
            min(row.weight_bits or 32, row.activation_bits or 32) < 32 for row in self.cost.layers
        ):
            columns += ["bits", "bytes>"]
            for row, of_layer in zip(self.cost.layers, cells, strict=True):
                of_layer += [_bits(row), _number(math.ceil(row.storage / 8))]
            total += ["", _number(self.cost.size)]
        if self.settings is not None:
            columns.append("setting")
            for row, of_layer in zip(self.cost.layers, cells, strict=True):
                known = row.site in self.settings
                of_layer.append(short_repr(self.settings[row.site]) if known else "")
            total.append("")
        caption = (
            f"{len(cells)} layers, {self.cost.size:,} bytes of parameters, "
            f"{self.cost.peak:,} of activations at a time"
        )
        caption = f"{caption}\n{self.verdict}" if self.verdict else caption
        return Table(columns, cells, total, caption)

    def __rich__(self) -> Any:
        """Returns the table, for `rich`."""
        return self._table().__rich__()


def _number(n: float) -> str:
    return (f"{n:,}" if isinstance(n, int) else f"{n:,.1f}") if n else ""


def _bits(row: LayerCost) -> str:
    """Returns the bits of weights and of activations."""
    if row.weight_bits is None or row.activation_bits is None:
        return ""
    return f"{row.weight_bits:.3g} x {row.activation_bits:.3g}"


@validate(bits=string_mapping, spec=spec_of(), verdict=instance_of(str))
def summary(
    f: Callable[..., Any],
    params: Any,
    *args: Any,
    bits: Bits | None = None,
    spec: Mapping[str, Any] | None = None,
    verdict: str = "",
    **kwargs: Any,
) -> Summary:
    """Returns the layers of `f`: site, kind, output shape, parameters, MACs and BOPs.

    A function that was quantized shows its bits, too, and the bytes that parameters take in them.

    Args:
        f: A pure function `f(params, *args)`.
        params: Arrays or `jax.ShapeDtypeStruct`s.
        *args: Further arguments; a batch of one gives per-sample figures.
        bits: Same as for `cost`: widths by site, of a network that will be quantized.
        spec: Settings by pattern, of any transform; a column says what each site gets. Costs are
            those of `f`; of `quantized(f, spec)` they are those in its bits.
        verdict: A text that is shown below the table, as `moments_check(...).verdict`: how far the
            variances of the function's moments can be trusted.
        **kwargs: Same as for `trace`.

    Raises:
        SpecError: As for the transform: a pattern of `spec` matches or decides no site, or two are
            equally specific at one.
    """
    program = trace(f, params, *args, **kwargs)
    settings = None if spec is None else resolve(spec, program)
    return Summary(program_cost(program, bits or {}), settings, verdict)


class Sites(tuple[str, ...]):
    """Names of layers; a notebook shows their kinds beside them."""

    kinds: tuple[str, ...]

    def _repr_html_(self) -> str:
        """Returns the names and kinds, for a notebook."""
        return Table(("site", "kind"), list(zip(self, self.kinds, strict=True)))._repr_html_()


@validate()
def sites(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> Sites:
    """Returns the names of every layer of `f`, in order of execution."""
    layers = trace(f, params, *args, **kwargs).sites
    names = Sites(layer.site for layer in layers)
    names.kinds = tuple(layer.kind for layer in layers)
    return names
