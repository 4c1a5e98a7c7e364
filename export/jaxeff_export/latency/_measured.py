"""`measured_latency`: the latency of a candidate, measured with a library on a board.

```python
import jax
import jax.numpy as jnp
from flax import nnx
import jaxeff
from jaxeff.nn import ResNet8
from jaxeff.search import Candidates, Candidate, SearchSpace
from jaxeff_export import measured_latency

model = ResNet8(widths=(8, 8, 8), rngs=nnx.Rngs(0))
model.eval()
f, params = jaxeff.functional(model)
x, y = jnp.zeros((2, 16, 16, 3)), jnp.zeros(2, int)
space = SearchSpace.read(f, params, x[:1])
candidates = Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=2)
seconds = measured_latency(x[:1])(Candidate(space.uncompressed, space, candidates.smaller))
```

In a search it is `search(..., latency=measured_latency(x[:1]))`.
"""

import functools
import queue
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxeff import core
from jaxeff.search import FLOAT, Candidate, LatencyError, Policy
from jaxeff_export.boards import Board, BoardError
from jaxeff_export.bundle import Bundle, deploy
from jaxeff_export.bundle.files import BundleError
from jaxeff_export.importer import UnsupportedOpError

ROUNDS = 9
"""Turns of the whole model and a candidate."""


class AlternatingTimer:
    """Candidates timed in turns with the whole model, on a board.

    Attributes:
        board: Board to measure on.
        times: Calls per measurement, and measurements.
        uncompressed: The whole model; None before `start`.
        first: Seconds that it took at first.
    """

    def __init__(self, board: str | Board, number: int, repeat: int) -> None:
        self.board, self.first = board, 0.0
        self.uncompressed: Bundle | None = None
        self.times = number, repeat

    def start(self, uncompressed: Bundle, first: float | None = None) -> None:
        """Times the whole model, unless its time is known."""
        if first is None:
            # As often as in turns, so that the unit is no noisier than what is measured in it.
            times = [
                uncompressed.benchmark(self.board, *self.times).median_ms for _ in range(ROUNDS)
            ]
            first = statistics.median(times) / 1000
        self.uncompressed, self.first = uncompressed, first

    def seconds(self, bundle: Bundle, between: Callable[[], Any] = lambda: None) -> float:
        """Times a call, scaled to the moment at which the whole model was timed.

        Args:
            bundle: Library to time.
            between: Called after every turn.
        """
        assert self.uncompressed is not None
        ratios = []
        for _ in range(ROUNDS):
            unit = self.uncompressed.benchmark(self.board, *self.times).median_ms
            # Neighbours in time see the same clock and load, so these cancel in the ratio.
            ratios.append(bundle.benchmark(self.board, *self.times).median_ms / unit)
            between()
        return statistics.median(ratios) * self.first


def compiled(
    candidate: Candidate,
    policy: Policy,
    inputs: tuple[Any, ...],
    target: str | Mapping[str, Any],
    database: str | Path | None = None,
) -> Bundle:
    """Compiles the library of a policy, in integer codes.

    Raises:
        LatencyError: The compiler can't.
        ValueError: There are codes, and the input holds one number alone.
    """
    # Codes of an empty range are all zero, and the compiler leaves out what is multiplied by them.
    if not np.ptp(inputs[0]) and not np.all(np.asarray(policy.weights) == FLOAT):
        raise ValueError(
            f"a latency of few bits needs a real input, whose ranges the codes have; this one of "
            f"shape {np.shape(inputs[0])} holds one number alone, {np.ravel(inputs[0])[0]:g}"
        )
    g, params = candidate.make(policy).integer(inputs[0])
    try:
        return deploy(g, (params, *inputs), target, database=database)
    except UnsupportedOpError as error:
        raise LatencyError(f"the candidate can't be compiled: {error}") from error


def leaves_of(params: Any) -> list[str]:
    """Lists the paths of parameters."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params)]


class MeasuredLatency:
    """A latency that is measured; made by `measured_latency`.

    A candidate is made smaller, converted to integer codes and compiled, and timed on the board in
    turns with the whole model: the median ratio counts, times what the whole model took at first,
    because a core is slower at times. Nothing is trained for it.

    With several boards, candidates that a searcher knows in advance (`ahead`: random ones, those of
    a generation, an agent's before it has learnt) are measured on as many boards at once.

    Sharp edges:
        Compiling takes seconds, one candidate after the other: boards add to each other as far as
        measuring takes longer. Boards that are one machine compete for its cores.
        Every candidate is compared with the whole model in float32, as this compiler makes it: a
        better baseline makes the same share harder to reach.

    Attributes:
        boards: For searches: number of candidates can be measured at once.
    """

    def __init__(
        self,
        inputs: tuple[Any, ...],
        target: str | Mapping[str, Any],
        places: Sequence[str | Board],
        number: int,
        repeat: int,
        database: str | Path | None,
    ) -> None:
        self.boards = len(places)
        self._compile = functools.partial(compiled, inputs=inputs, target=target, database=database)
        self._turns = [AlternatingTimer(board, number, repeat) for board in places]
        self._timing = [threading.Lock() for _ in places]
        self._compiling = threading.Lock()
        self._uncompressed: Bundle | None = None
        self._first: float | None = None

    def __call__(self, candidate: Candidate) -> float:
        """Measures the seconds of a call.

        Raises:
            LatencyError: It can't be compiled, or no board is left to measure it.
        """
        return self._taken(candidate, 0)

    def measure_many(self, candidates: Sequence[Candidate]) -> list[float | LatencyError]:
        """Measures the seconds of several candidates, as many at once as there are boards.

        Args:
            candidates: Candidates of one model.

        Returns:
            Their times, or why one couldn't be measured.
        """
        # Boards differ in speed: each takes the next candidate when it is done.
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for i in range(len(candidates)):
            todo.put(i)
        seconds: dict[int, float | LatencyError] = {}

        def work(board: int) -> None:
            while True:
                try:
                    i = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    seconds[i] = self._taken(candidates[i], board)
                except LatencyError as error:
                    seconds[i] = error

        with ThreadPoolExecutor(self.boards) as pool:
            list(pool.map(work, range(self.boards)))
        return [seconds[i] for i in range(len(candidates))]

    def _taken(self, candidate: Candidate, first: int) -> float:
        """Measures seconds on a board, or on the next where it is lost."""
        with self._compiling:
            # One after the other: boards measure meanwhile.
            bundle = self._compile(candidate, candidate.policy)
            if self._uncompressed is None:
                self._uncompressed = self._compile(candidate, candidate.space.uncompressed)
        lost = []
        # The other boards take over in turn, each counting relative to its own whole model.
        for i in [*range(first, self.boards), *range(first)]:
            turns = self._turns[i]
            try:
                with self._timing[i]:
                    if turns.uncompressed is None:
                        self._start(turns)
                    # Locked: two measurements on one board would disturb each other.
                    return turns.seconds(bundle)
            except (BoardError, BundleError) as error:
                lost.append(f"{turns.board}: {error}")
        raise LatencyError("; ".join(lost))

    def _start(self, turns: AlternatingTimer) -> None:
        """Times the whole model; what it took on the first board is the unit on all of them."""
        assert self._uncompressed is not None
        turns.start(self._uncompressed, self._first)
        with self._compiling:
            self._first = turns.first = self._first or turns.first


@core.validate(
    inputs=core.input_batch,
    number=core.static_integer(),
    repeat=core.static_integer(),
    database=core.path_like,
    boards=core.any_of(
        core.instance_of(str, Board), core.sequence_of(core.instance_of(str, Board))
    ),
)
def measured_latency(
    *inputs: Any,
    target: str | Mapping[str, Any] = "host",
    boards: str | Board | Sequence[str | Board] = "local",
    number: int = 5,
    repeat: int = 11,
    database: str | Path | None = None,
) -> MeasuredLatency:
    """Makes a latency for `jaxeff.search.search`: the median seconds of a call on a board.

    Args:
        *inputs: An example of what the model reads; its batch is the one that is timed.
        target: Target to compile for, as for `deploy`.
        boards: Boards to measure on, several candidates at once on several boards; where one is
            lost, the next one takes over. A tracker's boards may be named several times.
        number: Calls per measurement.
        repeat: Measurements.
        database: Tuned schedules, as for `deploy`.

    Returns:
        The latency. It raises `LatencyError` where a candidate can't be compiled, or no board is
        left to measure it.
    """
    places = [boards] if isinstance(boards, str | Board) else list(boards)
    return MeasuredLatency(inputs, target, places, number, repeat, database)
