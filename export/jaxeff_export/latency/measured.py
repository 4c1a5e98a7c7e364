"""`measured_latency`: what a search is told of a candidate, from a library on a board.

```python
import jax
import jax.numpy as jnp
from flax import nnx
import jaxeff
from jaxeff.nn import ResNet8
from jaxeff.search import Candidates, Candidate, Space
from jaxeff_export import measured_latency

model = ResNet8(widths=(8, 8, 8), rngs=nnx.Rngs(0))
model.eval()
f, params = jaxeff.functional(model)
x, y = jnp.zeros((2, 16, 16, 3)), jnp.zeros(2, int)
space = Space.read(f, params, x[:1])
candidates = Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=2)
seconds = measured_latency(x[:1])(Candidate(space.whole, space, candidates.smaller))
```

In a search it is `search(..., latency=measured_latency(x[:1]))`.

A candidate is made smaller, converted to integer codes and compiled, and timed on the board in
turns with the whole model: the median ratio counts, times what the whole model took at first.
Nothing is trained for it.

Sharp edges:
    Compiling takes seconds, far longer than measuring.
    Every candidate is compared with the whole model in float32, as this compiler makes it: a better
    baseline makes the same share harder to reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxeff.search import Candidate, LatencyError
from jaxeff_export.boards import Board
from jaxeff_export.boards.board import BoardError
from jaxeff_export.bundle.bundle import BundleError
from jaxeff_export.latency.turns import Turns, compiled


def measured_latency(
    *inputs: Any,
    target: str | Mapping[str, Any] = "host",
    boards: str | Board | Sequence[str | Board] = "local",
    number: int = 5,
    repeat: int = 11,
    database: str | Path | None = None,
) -> Callable[[Candidate], float]:
    """A latency for `jaxeff.search.search`: the median time of a call on a board, in seconds.

    Args:
        *inputs: An example of what the model reads; its batch is the one that is timed.
        target: Whom to compile for, as for `deploy`.
        boards: Where to measure; of several, the next one takes over where one is lost.
        number: Calls per measurement.
        repeat: Measurements.
        database: Tuned schedules, as for `deploy`.

    Returns:
        The latency. It raises `LatencyError` where a candidate can't be compiled, or no board is
        left to measure it.
    """
    places = [boards] if isinstance(boards, str | Board) else list(boards)
    turns = {board: Turns(board, number, repeat) for board in places}

    def latency(candidate: Candidate) -> float:
        bundle = compiled(candidate, candidate.policy, inputs, target, database)
        lost = []
        for board in places:
            try:
                if turns[board].whole is None:
                    whole = candidate.space.whole
                    turns[board].start(compiled(candidate, whole, inputs, target, database))
                return turns[board].seconds(bundle)
            except (BoardError, BundleError) as error:
                lost.append(f"{board}: {error}")
        raise LatencyError("; ".join(lost))

    return latency
