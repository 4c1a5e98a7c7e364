"""A bundle on a board: loaded once, its parameters resident there, ready to be called.

Sharp edge: objects on a remote board live as long as the connection. A runner must not be used
after its board was left.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxeff_export.boards import Board, BoardError, LocalBoard
from jaxeff_export.manifest import Manifest
from jaxeff_export.selfcheck import SelfCheck, compare
from jaxeff_export.signature import SignatureError, check_array, check_leaves
from jaxeff_export.structure import rebuild

_T = TypeVar("_T")


@dataclass(frozen=True)
class Timing:
    """How long one call takes on a board.

    Attributes:
      board: where it was measured.
      number: calls per measurement, of which the mean is taken.
      times_ms: one mean per repetition, in milliseconds.
    """

    board: str
    number: int
    times_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """The median over the repetitions, in milliseconds."""
        return statistics.median(self.times_ms)

    @property
    def spread_ms(self) -> float:
        """Slowest minus fastest repetition, in milliseconds."""
        return max(self.times_ms) - min(self.times_ms)


@dataclass(frozen=True)
class OperatorTime:
    """The time spent in one compiled operator, per call of the whole function.

    Attributes:
      name: of the compiled operator.
      calls: how often it runs per call of the function.
      ms: milliseconds, all its calls together.
      share: of the sum over all operators, 0 to 1.
    """

    name: str
    calls: float
    ms: float
    share: float


def require_timed(board: Board) -> None:
    """Raises `BoardError` if timings on `board` mean nothing."""
    if board.untimed_because:
        raise BoardError(f"{board.name} is not timed: {board.untimed_because}")


class Runner:
    """Calls a loaded bundle; made by ``bundle.on(board)``.

    Args:
      manifest: the bundle's.
      library: the compiled library's file.
      parameters: the bound arrays, in the manifest's order.
      recorded: the self-check's flattened inputs and outputs.
      board: an open board.
      treedef: the exact structure of results, where this process knows it.

    Raises:
      BoardError: if the board cannot load the library.
    """

    def __init__(
        self,
        manifest: Manifest,
        library: Path,
        parameters: Sequence[np.ndarray],
        recorded: tuple[list[np.ndarray], list[np.ndarray]],
        board: Board,
        treedef: Any = None,
    ) -> None:
        from tvm import relax

        self._manifest = manifest
        self._recorded = recorded
        self._board = board
        self._treedef = treedef

        def load() -> Any:
            return relax.VirtualMachine(board.load(library), board.device)

        self._closed = False
        self._machine = self._on_board("load the library", load)
        self._parameters = self._on_board("take the parameters", lambda: self._put(parameters))

    def close(self) -> None:
        """Lets go of everything on the board; a remote session ends only when nobody holds it."""
        self._closed = True
        self._machine = None
        self._parameters = []

    def run(self, *inputs: Any) -> Any:
        """Calls the function on data inputs.

        Args:
          *inputs: the data arguments (not the parameters), as numpy or JAX arrays or pytrees.

        Returns:
          What the function returned under JAX, with numpy arrays as leaves.

        Raises:
          SignatureError: naming an input of another shape or dtype than it was compiled for.
          BoardError: if the board fails.
        """
        manifest = self._manifest
        results = self._call(check_leaves(inputs, manifest.arguments, manifest.inputs))
        if self._treedef is not None:
            return self._treedef.unflatten(results)
        return rebuild(manifest.structure, results)

    def run_leaves(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Calls the function on flattened inputs and returns flattened results.

        Args:
          leaves: one array per ``manifest.inputs``, in that order.

        Raises:
          SignatureError: naming an input of another shape or dtype than it was compiled for.
          BoardError: if the board fails.
        """
        specs = self._manifest.inputs
        if len(leaves) != len(specs):
            raise SignatureError(f"{len(leaves)} arrays were given, {len(specs)} are expected")
        return self._call([check_array(*pair) for pair in zip(leaves, specs, strict=True)])

    def check(self) -> SelfCheck:
        """Replays the recorded inputs and compares the results with JAX's recorded ones."""
        inputs, outputs = self._recorded
        results = self._call(inputs)
        return compare(self._board.name, self._manifest.outputs, results, outputs)

    def benchmark(self, number: int = 10, repeat: int = 10) -> Timing:
        """Times the function on the recorded inputs, parameters resident, results not copied back.

        Args:
          number: calls per measurement.
          repeat: measurements.

        Raises:
          BoardError: if timings on this board mean nothing, or it fails.
        """
        require_timed(self._board)
        if number < 1 or repeat < 1:
            raise ValueError(f"number and repeat must be positive, got {number} and {repeat}")

        def measure() -> tuple[float, ...]:
            self._set_inputs(self._recorded[0])
            evaluate = self._machine.time_evaluator(
                "invoke_stateful", self._board.device, number=number, repeat=repeat
            )
            return tuple(1000.0 * float(seconds) for seconds in evaluate("main").results)

        return Timing(self._board.name, number, self._on_board("time the library", measure))

    def profile(self, number: int = 10) -> tuple[OperatorTime, ...]:
        """The time per compiled operator on the recorded inputs, slowest first.

        Args:
          number: calls of the function to average over.

        Raises:
          BoardError: on boards other than ``local``, which TVM cannot instrument.
        """
        if not isinstance(self._board, LocalBoard):
            raise BoardError(f"{self._board.name} cannot be profiled: only local can")
        seconds: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        started = 0.0

        def instrument(function: Any, name: str, before: bool, result: Any, *args: Any) -> int:
            nonlocal started
            if before:
                started = time.perf_counter()
            else:
                seconds[name] += time.perf_counter() - started
                calls[name] += 1
            return 0  # carry on

        self._call(self._recorded[0])  # warm-up
        self._machine.set_instrument(instrument)
        try:
            for _ in range(number):
                self._machine.invoke_stateful("main")
        finally:
            self._machine.set_instrument(lambda *_: 0)
        operators = {name: spent for name, spent in seconds.items() if "builtin" not in name}
        total = sum(operators.values()) or 1.0
        return tuple(
            OperatorTime(name, calls[name] / number, 1000.0 * spent / number, spent / total)
            for name, spent in sorted(operators.items(), key=lambda item: -item[1])
        )

    def _call(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        def call() -> list[np.ndarray]:
            self._set_inputs(leaves)
            self._machine.invoke_stateful("main")
            # The virtual machine's own get_outputs is a recursive closure, a cycle that would keep
            # a remote session alive until some later garbage collection.
            get_output = self._machine.module["get_output"]
            count = int(self._machine.module["get_output_arity"]("main"))
            if count < 0:
                return [get_output("main").numpy()]
            return [get_output("main", index).numpy() for index in range(count)]

        results = self._on_board("run the library", call)
        return [
            result.reshape(spec.shape)
            for result, spec in zip(results, self._manifest.outputs, strict=True)
        ]

    def _set_inputs(self, leaves: Sequence[np.ndarray]) -> None:
        self._machine.set_input("main", *self._parameters, *self._put(leaves))

    def _put(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        import tvm

        device = self._board.device
        return [tvm.runtime.tensor(np.asarray(array), device=device) for array in arrays]

    def _on_board(self, what: str, action: Callable[[], _T]) -> _T:
        if self._closed:
            raise BoardError(
                f"{self._board.name} was left; use the runner inside its with statement"
            )
        try:
            return action()
        except BoardError:
            raise
        except Exception as error:
            reason = self._board.explain(error)
            raise BoardError(f"{self._board.name} could not {what}: {reason}") from error
