"""Bundles loaded on a board, with their parameters resident there, for many calls.

A call whose connection to the board is lost is repeated on a new one, with the library and the
arrays uploaded again, as often as the board allows (``board.attempts``).

Any number of threads may call a runner. A virtual machine holds the inputs and results of one call,
so each call takes one that no other has, and results are copied before another call can have it.
Here calls of libraries for one core run side by side; elsewhere, and on several cores, they take
turns (`boards.run_on_threads`).

Sharp edge: objects on a remote board live as long as the connection. A runner must not be used
after its board was left.

On a processor that runs whole programs a bundle is exported to C, built, and run under an emulator
(`ProgramRunner`).
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from jaxeff import core
from jaxeff_export import artifact
from jaxeff_export.boards import Board, BoardError, BoardLost, ProgramBoard
from jaxeff_export.bundle import files
from jaxeff_export.bundle.running import _session
from jaxeff_export.bundle.running import _timing as timing
from jaxeff_export.clib import CLibrary, CLibraryError, ExampleProgram
from jaxeff_export.targets import OPERATOR_BY_OPERATOR, ToolchainError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Runner:
    """Calls a loaded bundle; made by ``bundle.on(board)``.

    Args:
      manifest: the bundle's.
      library: the compiled library's file.
      operands: the arrays the library takes before the data.
      recorded: pairs that the self-check replays, the example first.
      board: an open board.
      treedef: the exact structure of results, where this process knows it.

    Raises:
      BoardError: if the board cannot load the library.
    """

    def __init__(
        self,
        manifest: files.Manifest,
        library: Path,
        operands: Sequence[np.ndarray],
        recorded: Sequence[files.RecordedPair],
        board: Board,
        treedef: Any = None,
    ) -> None:
        self._keep(manifest, recorded, board, treedef)
        self._library = library
        self._bound = operands
        self._threads = int(manifest.target.get("num-cores", 1))
        self._closed = False
        self._loaded: Any = None
        self._idle: list[_session.LoadedMachine] = []  # those that no call uses now
        self._operands: list[Any] = []
        self._on_board(
            f"load the library, which is for {manifest.machine} ({manifest.target_name})",
            lambda: None,
        )

    def _keep(
        self,
        manifest: files.Manifest,
        recorded: Sequence[files.RecordedPair],
        board: Any,
        treedef: Any,
    ) -> None:
        """Keeps what `run`, `check` and the timings need on any board."""
        self._manifest = manifest
        self._recorded = recorded
        self._board = board
        self._treedef = treedef

    def close(self) -> None:
        """Releases everything on the board; a remote session ends only when nobody holds it."""
        self._closed = True
        self._let_go()

    def run(self, *inputs: Any) -> Any:
        """Calls the function on data inputs.

        Args:
          *inputs: the data arguments (not the parameters), as numpy or JAX arrays or pytrees.

        Returns:
          What the function returned under JAX, with numpy arrays as leaves.

        Raises:
          SignatureError: naming an input of another shape or dtype than it was compiled for, or
            one that holds NaN and is rounded to codes.
          BoardError: if the board fails.
        """
        manifest = self._manifest
        arrays = artifact.check_leaves(inputs, manifest.arguments, manifest.inputs)
        if manifest.rounds_inputs:
            _session.require_numbers(arrays, manifest.inputs)
        results = self._call(arrays)
        if self._treedef is not None:
            return self._treedef.unflatten(results)
        return artifact.rebuild(manifest.structure, results)

    def run_leaves(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Calls the function on flattened inputs and returns flattened results.

        Args:
          leaves: one array per ``manifest.inputs``, in that order.

        Raises:
          SignatureError: naming an input of another shape or dtype than it was compiled for, or
            one that holds NaN and is rounded to codes.
          BoardError: if the board fails.
        """
        specs = self._manifest.inputs
        if len(leaves) != len(specs):
            raise artifact.SignatureError(
                f"{len(leaves)} arrays were given, {len(specs)} are expected"
            )
        arrays = [artifact.check_array(*pair) for pair in zip(leaves, specs, strict=True)]
        artifact.batch_of(arrays, specs)
        if self._manifest.rounds_inputs:
            _session.require_numbers(arrays, specs)
        return self._call(arrays)

    def session(self, shared: _session.Session | None = None) -> _session.Session:
        """Begins a session: calls of a function whose state stays on the board.

        Args:
          shared: a session of another bundle on this machine, with the same state, which both then
            update.

        Returns:
          The session, whose state is that of the example, or the shared one as it is.

        Raises:
          BundleError: if the bundle has no state, or the shared session another, or elsewhere.
          BoardError: if the board fails.
          TypeError: if what is shared is no session.
        """
        if not isinstance(shared, _session.Session | None):
            raise TypeError(
                f"shared must be a session of another bundle, not a {type(shared).__name__}."
            )
        if not self._manifest.state:
            raise files.BundleError(
                "the bundle keeps no state; name its arguments that are in deploy(..., state=...)"
            )
        inputs = self._recorded[0].inputs
        initial = [inputs[old] for old, _ in self._manifest.places]
        return _session.Session(self._manifest, self._memory(shared), initial, self._treedef)

    def check(self) -> files.SelfCheck:
        """Replays the recorded inputs and compares the results with JAX's recorded ones."""
        results = list(self._call_all([pair.inputs for pair in self._recorded]))
        return files.compare(self._board.name, self._manifest.outputs, results, self._recorded)

    def check_data(
        self,
        data: tuple[Any, Any],
        reference: Callable[[Sequence[np.ndarray]], Sequence[Any]],
        progress: bool | None = None,
    ) -> files.DataCheck:
        """Compares results over a data set with JAX's, and both with labels.

        Args:
          data: same as for `Bundle.check`.
          reference: what JAX computes from the flattened inputs of a call, flattened.
          progress: same as for `Bundle.check`.

        Raises:
          SignatureError: if the data aren't what the bundle takes.
          BoardError: if the board fails.
        """
        specs, outputs = self._manifest.inputs, self._manifest.outputs
        calls, count, batch = _calls_of(data, self._manifest, self._recorded[0].inputs)
        for call in calls:
            for pair in zip(call, specs, strict=True):
                artifact.check_array(*pair)
            if self._manifest.rounds_inputs:
                _session.require_numbers(call, specs)
        ours, theirs = [], []
        with core.progress_bar(progress, "example", count) as advance:
            for call, results in zip(calls, self._call_all(calls), strict=True):
                ours.append(_by_example(results, batch))
                theirs.append(_by_example(reference(call), batch))
                advance(min(batch or 1, count - (len(ours) - 1) * (batch or 1)), "")
        mine, its = (
            [np.concatenate(column)[:count] for column in zip(*rows, strict=True)]
            for rows in (ours, theirs)
        )
        labels = None if data[1] is None else np.asarray(data[1])
        return files.compare_data(self._board.name, mine, its, labels, outputs)

    def _call_all(self, calls: Sequence[Sequence[np.ndarray]]) -> Iterator[Sequence[np.ndarray]]:
        """Calls the function many times, in few programs on a board that runs programs."""
        return map(self._call, calls)

    def benchmark(
        self, number: int = 10, repeat: int = 10, batch: int | None = None
    ) -> timing.Timing:
        """Times the function on the recorded inputs, parameters resident, results not copied back.

        Args:
          number: calls per measurement.
          repeat: measurements.
          batch: number of examples, where that may vary; the recorded ones are repeated.

        Raises:
          BoardError: if timings on this board mean nothing, or it fails.
          SignatureError: if there is a `batch`, and the bundle's is fixed.
        """
        timing.require_timed(self._board)
        _require_positive(number, repeat)
        inputs = self._examples(batch)

        def measure() -> tuple[float, ...]:
            with self._machine(inputs) as machine:
                evaluate = machine.machine.time_evaluator(
                    "invoke_stateful", self._board.device, number=number, repeat=repeat
                )
                return tuple(1000.0 * float(seconds) for seconds in evaluate("main").results)

        return timing.Timing(self._board.name, number, self._on_board("time the library", measure))

    def profile(
        self, number: int = 10, repeat: int = 5, batch: int | None = None
    ) -> tuple[timing.OperatorTime, ...]:
        """Times each compiled operator on the recorded inputs, slowest first.

        Args:
          number: calls of the function per measurement, of which the mean is taken.
          repeat: measurements, of which the median is taken.
          batch: same as for `benchmark`.

        Raises:
          BoardError, SignatureError: same as for `benchmark`.
        """
        timing.require_timed(self._board)
        _require_positive(number, repeat)
        inputs = self._examples(batch)

        def measure() -> list[list[tuple[str, int, int]]]:
            with self._board.profiling:
                return record()

        def record() -> list[list[tuple[str, int, int]]]:
            # A virtual machine of its own: the one that serves stays without an instrument.
            machine, instrument = self._new_machine(), timing.Instrument(self._loaded)
            arrays = [*self._operands, *self._put(inputs)]
            machine.set_input(OPERATOR_BY_OPERATOR, *arrays)
            machine.invoke_stateful(OPERATOR_BY_OPERATOR)  # warm-up
            measurements = []
            for _ in range(repeat):
                instrument.attach(machine)
                for _ in range(number):
                    machine.invoke_stateful(OPERATOR_BY_OPERATOR)
                measurements.append(instrument.read())
            return measurements

        return timing.operator_times(self._on_board("profile the library", measure), number)

    def _examples(self, batch: int | None) -> list[np.ndarray]:
        """Repeats the recorded inputs to as many examples as are asked for."""
        return artifact.with_batch(self._recorded[0].inputs, self._manifest.inputs, batch)

    def _call(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        def call() -> list[np.ndarray]:
            # Not by `_machine`: a context made of a generator takes microseconds in every call.
            idle = self._idle
            machine = self._taken(idle, leaves)
            machine.invoke()
            results = [machine.read(i, spec) for i, spec in enumerate(self._manifest.outputs)]
            idle.append(machine)
            return results

        return self._on_board("run the library", call)

    def _memory(self, shared: _session.Session | None) -> _session.StateMemory:
        """Makes the arrays of a session on the board."""

        def memory() -> _session.MachineMemory:
            tensors, turn = self._put(self._recorded[0].inputs), threading.RLock()
            if shared is not None:
                theirs, turn = shared.tensors(self._manifest)
                for (old, _), tensor in zip(self._manifest.places, theirs, strict=True):
                    # The virtual machine would copy an array of elsewhere, and share nothing.
                    if tensor.device != tensors[old].device:
                        raise files.BundleError(
                            f"the shared session is not on {self._board.name}: begin both on "
                            "one connection, or pass on its state() by restore()"
                        )
                    tensors[old] = tensor
            # A machine of its own holds the arrays, so sessions run beside each other.
            machine, copies = self._with_tensors(tensors), self._board.takes_copies
            return _session.MachineMemory(machine, self._manifest, self._once, turn, copies)

        return self._on_board("begin a session", memory)

    def _once(self, what: str, action: Callable[[], _T]) -> _T:
        """Runs an action on the board that a lost connection ends: its state is lost with it."""
        if self._closed:
            raise BoardError(
                f"{self._board.name} was left; use its sessions inside its with statement"
            )
        with self._board.turn:
            return self._attempt(what, action)

    @contextlib.contextmanager
    def _machine(self, leaves: Sequence[np.ndarray]) -> Iterator[_session.LoadedMachine]:
        """Yields a virtual machine for one call, with its inputs set."""
        idle = self._idle  # of this session: another one has machines of its own
        machine = self._taken(idle, leaves)
        yield machine
        idle.append(machine)  # not if the call failed: its session may be gone

    def _taken(
        self, idle: list[_session.LoadedMachine], leaves: Sequence[np.ndarray]
    ) -> _session.LoadedMachine:
        """Takes a virtual machine that no call uses, or makes one, and sets its inputs."""
        try:
            # `pop` and `append` of a list are atomic: no two threads get one machine, without a
            # lock.
            machine = idle.pop()
        except IndexError:
            return self._with_tensors(self._put(leaves))
        machine.give(leaves)
        return machine

    def _with_tensors(self, tensors: Sequence[Any]) -> _session.LoadedMachine:
        """Makes a virtual machine that has its arguments."""
        specs, remote = self._manifest.inputs, self._board.takes_copies
        return _session.LoadedMachine(
            self._new_machine(), self._operands, tensors, specs, self._put, remote
        )

    def _put(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        import tvm

        device = self._board.device
        return [tvm.runtime.tensor(np.asarray(array), device=device) for array in arrays]

    def _load(self) -> None:
        self._loaded = self._board.load(self._library)
        self._idle = []
        self._operands = self._put(self._bound)

    def _new_machine(self) -> Any:
        from tvm.runtime.vm import VirtualMachine

        return VirtualMachine(self._loaded, self._board.device)

    def _on_board(self, what: str, action: Callable[[], _T]) -> _T:
        """Runs an action on the board, again if the connection is lost meanwhile."""
        board = self._board
        if self._closed:
            raise BoardError(_left(board))
        lost: list[str] = []
        with board.turn:
            while True:
                try:
                    if lost:
                        board.reconnect()
                    return self._attempt(what, action)
                except BoardLost as error:
                    # Objects of a lost session must be gone before there is a new one.
                    self._let_go()
                    lost.append(str(error))
                    if len(lost) == board.attempts:
                        raise BoardError(_given_up(lost)) from error
                    _log.warning(
                        "%s; attempt %d of %d follows", error, len(lost) + 1, board.attempts
                    )

    def _attempt(self, what: str, action: Callable[[], _T]) -> _T:
        def loaded() -> _T:
            # After a lost connection the library is uploaded again, by whichever action comes
            # first.
            if self._loaded is None:
                self._load()
            return action()

        started = time.monotonic()
        try:
            return self._board.call(self._threads, loaded)
        except (BoardError, files.BundleError):
            raise
        except Exception as error:
            # Of the same kind as before: `BoardLost` is tried again, every other one is final.
            failure = self._board.failure(error, started)
            message = f"{self._board.name} could not {what}: {failure}"
            raise type(failure)(message) from error

    def _let_go(self) -> None:
        self._idle = []
        self._loaded = None
        self._operands = []


def _require_positive(number: int, repeat: int) -> None:
    if number < 1 or repeat < 1:
        raise ValueError(f"number and repeat must be positive, got {number} and {repeat}")


def _left(board: Board) -> str:
    """Says that a runner has outlived its connection."""
    return f"{board.name} was left; use the runner inside its with statement"


def _given_up(lost: Sequence[str]) -> str:
    """Describes why a call failed whose every attempt lost the connection."""
    if len(lost) == 1:
        return lost[0]
    return f"{lost[0]} (given up after {len(lost)} attempts; the last: {lost[-1]})"


def _calls_of(
    data: tuple[Any, Any], manifest: files.Manifest, recorded: Sequence[np.ndarray]
) -> tuple[list[list[np.ndarray]], int, int | None]:
    """Cuts a data set into calls, whose state is that of the example.

    Returns flattened inputs of each call, the number of examples, and how many of them a call takes
    on a first axis; None if it takes one, without such an axis.
    """
    x, y = data
    kept = {old for old, _ in manifest.places}
    fresh = [i for i in range(len(manifest.inputs)) if i not in kept]
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    names = ", ".join(manifest.inputs[i].name for i in fresh)
    if len(leaves) != len(fresh):
        raise artifact.SignatureError(
            f"data[0] holds {len(leaves)} arrays, the bundle takes {len(fresh)}: {names}"
        )
    lengths = {leaf.shape[:1] for leaf in (*leaves, *([] if y is None else [np.asarray(y)]))}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        raise artifact.SignatureError(
            "data must have the same number of examples, at least one, on the first axis of "
            f"{names}{'' if y is None else ' and the labels'}, not shapes "
            f"{', '.join(str(np.shape(leaf)) for leaf in (*leaves, *([] if y is None else [y])))}"
        )
    ((count,),) = lengths
    if y is not None:
        core.check_labels("check: data[1]", np.asarray(y), None, (count,))
    core.warn_of_scale(
        "check: data[0]", leaves, core.extents([recorded[i] for i in fresh]), "the example"
    )
    single = leaves[0].ndim == len(manifest.inputs[fresh[0]].shape) + 1
    size = 1 if single else len(recorded[fresh[0]])
    calls = []
    for begin in range(0, count, size):
        # The last batch is filled up by its last example, whose results are left out.
        rows = np.minimum(np.arange(begin, begin + size), count - 1)
        call = list(recorded)
        for place, leaf in zip(fresh, leaves, strict=True):
            call[place] = leaf[begin] if single else leaf[rows]
        calls.append(call)
    return calls, count, None if single else size


def _by_example(results: Sequence[Any], batch: int | None) -> list[np.ndarray]:
    """Gives results of a call an axis of examples; what has none belongs to each of them."""
    arrays = [np.asarray(leaf) for leaf in results]
    return [
        leaf if batch and leaf.shape[:1] == (batch,) else np.stack([leaf] * (batch or 1))
        for leaf in arrays
    ]


class ProgramRunner(Runner):
    """Calls a C library, each call in a process of its own.

    Args:
      manifest: the bundle's.
      library: the bundle's C library; its folder is not needed any more afterwards.
      recorded: pairs that the self-check replays.
      board: what it runs on.
      treedef: the exact structure of results, where this process knows it.

    """

    def __init__(
        self,
        manifest: files.Manifest,
        library: CLibrary,
        recorded: Sequence[files.RecordedPair],
        board: ProgramBoard,
        treedef: Any = None,
    ) -> None:
        self._keep(manifest, recorded, board, treedef)
        self._program = ExampleProgram(library, board.core)
        self._turn = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Removes the program."""
        self._closed = True
        self._program.close()

    def _memory(self, shared: _session.Session | None) -> _session.StateMemory:
        if shared is not None:
            raise files.BundleError(f"{self._board.name} shares no state between bundles")
        return _session.HostMemory(self._call, self._recorded[0].inputs, self._manifest)

    def _call(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        return next(self._call_all([leaves]))

    def _call_all(
        self, calls: Sequence[Sequence[np.ndarray]]
    ) -> Generator[list[np.ndarray], None, None]:
        if self._closed:
            raise BoardError(_left(self._board))
        try:
            with self._turn:  # arguments are written into the program's one folder
                yield from self._program.run_all(calls)
        except (CLibraryError, ToolchainError) as error:
            raise BoardError(f"{self._board.name} could not run the library: {error}") from error
