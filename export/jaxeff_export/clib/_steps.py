"""What each call of a kernel takes: where weights go, and what keeps the largest memory alive.

```python
import tempfile

import jax.numpy as jnp
import numpy as np

from jaxeff_export import deploy
from jaxeff_export.clib import draw_steps

params = {"w": jnp.eye(8), "v": jnp.ones((8, 4))}
bundle = deploy(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], (params, jnp.ones((2, 8))))
with tempfile.TemporaryDirectory() as folder:
    library = bundle.export_c(f"{folder}/net", name="net")
for step in library.steps:
    print(step)
assert max(step.live for step in library.steps) == library.sizes.live
```
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jaxeff_export.clib.codegen import driver


@dataclasses.dataclass(frozen=True)
class CallCost:
    """A call of a kernel, in bytes.

    Attributes:
        kernel: the kernel's name.
        parameters: bound arrays and constants that it reads.
        reads: other arrays that it reads.
        writes: arrays that it writes.
        scratch: what it needs for itself in the workspace.
        live: the part of the workspace that is in use during the call.
        held: of `live`, arrays that only later calls read: the kernel that wrote each, and its
            bytes.
        operands: indices of the bound arrays that it reads.
        tile: extents of its result that registers hold at once; empty if it is no product.
    """

    kernel: str
    parameters: int
    reads: int
    writes: int
    scratch: int
    live: int
    held: tuple[tuple[str, int], ...] = ()
    operands: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the step as plain data."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        held = ", ".join(f"{size:,} of {name}" for name, size in self.held)
        return (
            f"{self.kernel}: parameters {self.parameters:,}, reads {self.reads:,}, writes "
            f"{self.writes:,}, live {self.live:,}" + (f" (held {held})" if held else "")
        )


def steps_of(library: driver.Library) -> tuple[CallCost, ...]:
    """Reads the steps of a library from its plan."""
    program, memory = library.program, library.memory
    fixed = {*program.operands, *(number for number, _ in program.constants)}
    bound = {number: i for i, number in enumerate(program.operands)}
    makers = {n: call.kernel for call in program.calls for n in call.results}
    costs: list[CallCost] = []
    # The array that lies in each place of the workspace; one written over another takes its place.
    contents: dict[int, int] = {}
    for i, call in enumerate(program.calls):
        kernel = library.kernels[call.kernel]
        # An array that is read twice is read from one place, so it counts once.
        sizes = {n: program.sizes[n] for n in (*call.arguments, *call.results)}
        contents |= {memory.owners[n]: n for n in call.results if n in memory.owners}
        held = [
            (makers[contents[place]], memory.lives[place].size)
            for place in contents
            if memory.lives[place].first <= i <= memory.lives[place].last
            and contents[place] not in sizes
        ]
        costs.append(
            CallCost(
                kernel=call.kernel,
                # Constants of the function lie beside the parameters, in flash.
                parameters=sum(sizes[n] for n in set(call.arguments) & fixed),
                reads=sum(sizes[n] for n in set(call.arguments) - fixed),
                writes=sum(sizes[n] for n in set(call.results)),
                scratch=sum(piece.size for piece in kernel.scratch),
                live=memory.by_call[i],
                held=tuple(held),
                operands=tuple(bound[n] for n in call.arguments if n in bound),
                tile=program.tiles.get(call.kernel, ()),
            )
        )
    return tuple(costs)


def draw_steps(axis: Axes, steps: Sequence[CallCost]) -> None:
    """Draws the workspace that is needed call by call, and the parameters that are read.

    Args:
        axis: gets a bar of bytes for each call, from the first at the top to the last.
        steps: of a `CLibrary`.
    """
    places = range(len(steps))
    axis.barh(places, [s.live for s in steps], label="workspace, live")
    held = [sum(size for _, size in s.held) for s in steps]
    axis.barh(places, held, label="of it, held for later calls")
    # Thinner, so that both are seen where one is longer.
    axis.barh(places, [s.parameters for s in steps], height=0.3, label="parameters read")
    axis.set_yticks(places, [s.kernel for s in steps])
    axis.set_xlabel("bytes")
    axis.invert_yaxis()
