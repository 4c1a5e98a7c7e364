"""Deployed models: a folder with all that running one takes, and recorded results to check it.

    library.so        the compiled function, taking what is bound and the data
    parameters.npz    the bound arrays (a trained posterior), no pickle
    derived.npz       what the function computes of them alone (squares of weights), computed once
    artifact.zip      the StableHLO artifact the library was compiled from
    selfcheck.npz     inputs, and the outputs JAX computed from them
    run.py            runs the bundle on a device that has TVM's runtime and numpy, nothing else
    tokenizer.json    a decoder's tokens, where they were given
    places.npz        where the numbers of parameters are that derived.npz has in another order,
                      for `export_c(source=True)` and `check(data=...)`
    unpacked.npz      other parameters that the library takes in a form of its own, as they were
                      given; both for parameters of up to 16 MiB
    manifest.json     shapes, dtypes, target, versions, and the checksum of every file

Sharp edges: loading a library runs native code, so load bundles only from where you would install
programs from; the checksums guard against damage, not against malice. A bundle runs with the TVM
version that compiled it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

import jax
import numpy as np

from jaxeff.core import function_of_form, instance_of, sequence_of, validate
from jaxeff_export.artifact import SignatureError, dtype_of
from jaxeff_export.boards import (
    Board,
    BoardError,
    LocalBoard,
    ProgramBoard,
    SerialBoard,
    make_board,
)
from jaxeff_export.bundle import files, running
from jaxeff_export.bundle._example import (
    MOST_UNPACKED,
    Example,
    LibraryChoices,
    NamedTarget,
    derivation,
    export_c,
    kernel_calls,
    layers_of,
    lift,
)
from jaxeff_export.bundle._machine_model import (
    ExplainedKernels,
    KernelModels,
    explained,
    model_library,
)
from jaxeff_export.clib import CLibraryError, require_room
from jaxeff_export.targets import ToolchainError, is_microcontroller, processor_of, require_extra

if TYPE_CHECKING:
    from jaxeff_export.clib import CLibrary
    from jaxeff_export.compiler.passes import LiftedModule


class Bundle(files.BundleFolder):
    """A compiled model in a folder; made by `deploy` or `Bundle.load`.

    Attributes:
      folder: path of the folder.
      manifest: what they hold.
      treedef: the exact structure of results, if this process knows it.
    """

    def __init__(
        self,
        folder: Path,
        manifest: files.Manifest,
        treedef: Any = None,
        lifted: LiftedModule | None = None,
    ) -> None:
        super().__init__(folder, manifest, treedef)
        # Runners between calls: this process's, and one for each emulated core.
        self._runners: dict[str, running.Runner] = {}
        self._program_library: CLibrary | None = None
        self._lifted = lifted  # the function as C libraries are made of it, once it was read
        self._opening = threading.RLock()

    def __getstate__(self) -> NoReturn:
        """Refuses to be pickled or copied.

        Raises:
          TypeError: saying what to do instead.
        """
        raise TypeError(
            "a Bundle is a folder, which no pickle holds: save it, and open it elsewhere by "
            f"Bundle.load; this one's is {self.folder}."
        )

    def __repr__(self) -> str:
        return f"Bundle({str(self.folder)!r}, target={self.manifest.target_name!r})"

    @property
    def example(self) -> Example:
        """The example the bundle was built from; zeros for parameters that it doesn't hold."""
        artifact, bound = self.artifact, self.unpacked
        parameters = len(artifact.arguments) - len(self.manifest.arguments)
        if bound is None:
            names = (spec.name for spec in self.manifest.parameters)
            stored = dict(zip(names, self.parameters, strict=True))
            bound = [
                stored[spec.name]
                if spec.name in stored
                else np.zeros(tuple(int(n) for n in spec.shape), dtype_of(spec.dtype))
                for spec in artifact.inputs[: artifact.leaf_count(parameters)]
            ]
        manifest = self.manifest
        known = (
            self.treedef, self.derived, manifest.verdict, manifest.state, self.tokenizer,
            self.placements,
        )  # fmt: skip
        return Example(artifact, parameters, bound, self.recorded, *known)

    @contextlib.contextmanager
    def on(self, board: str | Board = "local") -> Iterator[running.Runner]:
        """Loads the bundle on a board, for many calls.

        Args:
          board: ``"local"``, ``"emulated"``, ``"serial:/dev/ttyACM0"``, ``"rpc://host:port"``,
            ``"rpc://tracker:port/key"``, or an open `Board`, which stays open.

        Raises:
          MissingExtraError: if TVM is not installed.
          BundleError: if the library is for another processor or another TVM.
          BoardError: if the board cannot be reached or set up.
        """
        place = self._named(board)
        # What is known without asking the board is refused before it is connected to.
        self._require_fit(place)
        with contextlib.ExitStack() as stack:
            if not isinstance(board, Board):
                stack.enter_context(place)
                self._require_fit(place)  # now that it can be asked
            runner = self._runner(place)
            try:
                yield runner
            finally:
                runner.close()

    def run(self, *inputs: Any, board: str | Board = "local") -> Any:
        """Calls the function on data inputs; the parameters are in the bundle.

        Any number of threads may call one bundle, and each gets its own results. On this machine
        calls of a library for one core (``num-cores``) run side by side. Those of a library for
        several cores take turns, each on all of its cores, and so do calls on any other board.

        A function that rounds its data to codes (`jaxeff.integer`) takes no NaN, for which there
        is no code. An infinity becomes an end of its range.

        Returns:
          What the function returned under JAX, with numpy arrays as leaves.

        Raises:
          SignatureError: naming an input of another shape or dtype than it was compiled for, or
            one that holds NaN and is rounded to codes.
          BundleError: if the bundle does not fit the board.
          BoardError: if the board fails.
        """
        with self._place(board) as runner:
            return runner.run(*inputs)

    def session(self, shared: running.Session | None = None) -> running.Session:
        """Begins a session on this machine: calls whose state stays where it is.

        Any number of sessions run beside each other, each with a state of its own; on other boards
        they are made by ``bundle.on(board)``, whose runner has the same method.

        Args:
          shared: a session of another bundle with the same state, which both then update: one that
            reads a prompt, and one that takes a token at a time.

        Returns:
          The session: ``session.step(token)``, `reset`, `state`, `restore`, `save` and `load`.

        Raises:
          BundleError: if the bundle has no state, or another than the shared session.
        """
        with self._place("local") as runner:
            return runner.session(shared)

    @overload
    def check(self, board: str | Board = "local") -> files.SelfCheck: ...

    @overload
    def check(
        self, board: str | Board = "local", *, data: tuple[Any, Any], progress: bool | None = None
    ) -> files.DataCheck: ...

    def check(
        self,
        board: str | Board = "local",
        *,
        data: tuple[Any, Any] | None = None,
        progress: bool | None = None,
    ) -> files.SelfCheck:
        """Tells whether a board computes what JAX computes: of the recorded example, or of data.

        Codes of floats may differ by one, and results by what that makes: see `SelfCheck`. An
        emulated microcontroller runs hundreds of examples in one program.

        Args:
          board: same as for `on`.
          data: `(x, labels)`, with an axis of examples first; `x` is a tuple where the bundle takes
            several inputs, without its state, and labels may be None. The first result is the
            decision: scores of classes, or a whole number.
          progress: whether to show a bar; None shows it on a terminal and in a notebook.

        Returns:
          The comparison, true where all results agree and printed as a line; of data with
          ``.accuracy``, ``.agreement`` and the number of examples that have JAX's bits.

        Raises:
          SignatureError: if the data aren't what the bundle takes.
          BundleError: if the bundle doesn't fit the board; of data, if it lacks the parameters as
            they were given, of which it keeps up to 16 MiB.
          BoardError: if the board fails.
          ValueError: if there are labels, and the first result decides nothing.
        """
        with self._place(board) as runner:
            return self.check_by(runner, data, progress)

    def check_by(
        self, runner: running.Runner, data: tuple[Any, Any] | None, progress: bool | None = None
    ) -> files.SelfCheck:
        """Checks by a runner of this bundle, as `check` does."""
        if data is None:
            return runner.check()
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise SignatureError("data must be a pair (x, labels); labels may be None")
        return runner.check_data((data[0], data[1]), self._reference(), progress)

    def _reference(self) -> Callable[[Sequence[np.ndarray]], Sequence[Any]]:
        """Makes what JAX computes from inputs, by the function that the bundle was made of."""
        if self.unpacked is None:
            raise files.BundleError(
                f"the bundle keeps parameters as they were given up to {MOST_UNPACKED >> 20} MiB, "
                "and has more: run(), and compare with the function itself"
            )
        bound, function = [jax.numpy.asarray(b) for b in self.unpacked], jax.jit(self.artifact.call)
        return lambda inputs: function(*bound, *inputs)

    def benchmark(
        self,
        board: str | Board = "local",
        number: int = 10,
        repeat: int = 10,
        batch: int | None = None,
    ) -> running.Timing:
        """Times the function on a board; ``.median_ms`` is the figure to quote.

        Args:
          board: same as for `on`.
          number: calls per measurement.
          repeat: measurements.
          batch: number of examples, where that may vary; the recorded ones are repeated. By default
            as many as the bundle was deployed with.

        Raises:
          BoardError: on the emulated board, whose timings mean nothing.
          SignatureError: if there is a `batch`, and the bundle's is fixed.
        """
        self._require_timed(board)
        with self._place(board) as runner:
            return runner.benchmark(number, repeat, batch)

    def profile(
        self,
        board: str | Board = "local",
        number: int = 10,
        repeat: int = 5,
        batch: int | None = None,
    ) -> tuple[running.OperatorTime, ...]:
        """Times every compiled operator on a board, slowest first.

        Args:
          board: same as for `on`.
          number: calls of the function per measurement.
          repeat: measurements.
          batch: same as for `benchmark`.

        Raises:
          BoardError, SignatureError: same as for `benchmark`.
        """
        self._require_timed(board)
        with self._place(board) as runner:
            return runner.profile(number, repeat, batch)

    # 9 parameters: what a user chooses of a library, as the options of the command `c`.
    def export_c(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        embed: bool = True,
        flash: int | str | None = None,
        ram: int | str | None = None,
        database: str | Path | None = None,
        threads: int = 1,
        style: str = "cmake",
        source: bool = False,
    ) -> CLibrary:
        """Writes the function as a C library: a header, an archive, an example, no runtime.

        With `source` it is one C file and its header, in C99, for compilers and processors that
        this library knows nothing of (AVR, Xtensa, TriCore, a vendor's own compiler). Kernels
        then have no instructions of the target: they are those for any processor.

        Args:
          path: the folder, written whole or not at all.
          name: what its names in C begin with; by default the folder's.
          embed: whether the archive has the parameters, as constants in a section of their own;
            if not, they are a file beside it, which a board loads.
          flash: bytes there are for code and parameters, as 524288 or ``"512k"``; by default those
            of the emulated board for microcontrollers, no matter elsewhere.
          ram: bytes there are for workspace, arguments, results and the arrays on the stack.
          database: same as for `deploy`; a bundle doesn't know what it was tuned by.
          threads: the most threads that may share the loops of a call, where there is an operating
            system; the same bits for any number.
          style: the build system that the folder is a package for: ``"cmake"``, ``"arduino"``,
            ``"platformio"``, ``"zephyr"`` or ``"cmsis-pack"``.
          source: whether kernels are C99 source in place of machine code, all in one file, which a
            package then has in place of the archive.

        Returns:
          The library, with what it takes of memories in ``.sizes``.

        Raises:
          CLibraryError: if the batch may vary, an operation has no static kernel, the memories
            don't hold it, there is no operating system for its threads, or the style has no place
            for it; of `source`, if the bundle holds more than 16 MiB of packed weights, which it
            doesn't have as they were given.
          TargetError: if the target has no floating-point unit.
          ToolchainError: if no C compiler for it is installed.
          FileExistsError: if `path` holds anything but a library's own files.
        """
        example = self.example
        lifted, operands = self._portable(example) if source else self._kept(example)
        chosen = LibraryChoices(
            name=name, embed=embed, flash=flash, ram=ram, database=database, threads=threads,
            style=style, source=source,
        )  # fmt: skip
        return export_c(example, self.manifest, lifted, operands, path, chosen)

    def _kept(self, example: Example) -> tuple[LiftedModule, list[np.ndarray]]:
        """Reads the function once for all libraries of a bundle, whatever names and styles."""
        with self._opening:
            if self._lifted is None:
                self._lifted = lift(example, NamedTarget.of_manifest(self.manifest))
        return self._lifted, self.operands

    def _portable(self, example: Example) -> tuple[LiftedModule, list[np.ndarray]]:
        """Reads the function for kernels that any processor runs, and packs weights for these."""
        if self.unpacked is None:
            raise CLibraryError(
                "the bundle has its weights packed for "
                f"{self.manifest.target_name} alone, since they are more than "
                f"{MOST_UNPACKED >> 20} MiB: deploy a smaller network for source=True"
            )
        lifted = lift(example, NamedTarget.of_any())
        bound = [*example.bound, *derivation(lifted)(example.bound)]
        return lifted, [bound[index] for index in lifted.operands]

    def model(self, core: str | None = None, like: str | None = None) -> KernelModels:
        """Models what a core does with the kernels, by a static model of their machine code.

        Never a measurement: `jaxeff_export.bundle.LoopModel` says what is not in it, and
        `jaxeff_export.clib.model_calls` for microcontrollers, whose memory is ideal in it.

        Args:
          core: LLVM's name of the processor core; by default that of the bundle's target.
          like: the core whose instructions llvm-mca models, where it doesn't know `core`.

        Returns:
          The innermost loop of every kernel that multiplies, in the library's order. Of a
          microcontroller every call of a kernel, in order: the instructions it executes in the
          emulator, and cycles of these. ``.cycles`` is the sum, ``.milliseconds(mhz)`` what it
          takes at a clock.

        Raises:
          ToolchainError: if llvm-mca, objdump or the emulator isn't installed, or the core is
            unknown to it.
        """
        self._read(files.LIBRARY)
        if is_microcontroller(self.manifest.machine):
            # Start-up time: only microcontrollers need it.
            from jaxeff_export.clib import model_calls

            target = str(self.manifest.target["mcpu"])
            processor = processor_of(self.manifest.target)
            # The bundle's file is an archive without the program that executes it.
            name, mhz = (processor.name, processor.mhz) if processor else (target, None)
            models = model_calls(self._library_of_programs(), name, like or core)
            return KernelModels.of(models, target, mhz)
        core = core or str(self.manifest.target.get("mcpu", "generic"))
        manifest = self.manifest
        path, kernels = self.folder / files.LIBRARY, manifest.kernels
        return KernelModels.of(model_library(path, manifest.machine, core, kernels, like), core)

    def explain(self) -> ExplainedKernels:
        """Says which kernels compute which layer, and what they take.

        A kernel's name tells its builder (`q_conv2d_depthwise`) and what was fused into it; it
        belongs to the layer whose weights it reads, or to the layer before it if it reads none. A
        product's tile is the part of its result that registers hold at once.

        Returns:
          Layer, kernel, tile, and what `model` says of it, in the order of a call; no numbers where
          the tools that `model` needs aren't installed, or know no such core.
        """
        artifact, data = self.artifact, len(self.manifest.inputs)
        layers = layers_of([spec.name for spec in artifact.inputs[: len(artifact.inputs) - data]])
        calls = kernel_calls(self.manifest, artifact, layers)
        try:
            models: Sequence[Any] = self.model()
        except ToolchainError:
            models = ()
        tiles = self.manifest.tiles
        rows = [
            (", ".join(layers[i] for i in call.layers), call.kernel, tiles.get(call.kernel, ()))
            for call in calls
        ]
        return explained(rows, models)

    def facts(self, data: tuple[Any, Any] | None = None) -> dict[str, Any]:
        """Describes the library and what it takes on its target, for a report.

        A microcontroller's is checked and modelled in the emulator; one for this machine is checked
        and timed here, any other modelled. What can't be done says why, in ``"note"``.

        Args:
          data: what it is checked on, as for `check`; by default the recorded example.

        Returns:
          Plain data: sizes, calls of kernels, versions, and the checksums of files.
        """
        manifest = self.manifest
        notes: list[str] = []
        small = is_microcontroller(manifest.machine)
        facts: dict[str, Any] = {
            "name": manifest.target_name, "machine": manifest.machine, "sizes": {}, "calls": [],
            "check": "", "milliseconds": None, "verdict": manifest.verdict,
            "versions": dict(manifest.versions), "files": dict(manifest.files),
        }  # fmt: skip
        try:
            if small:
                facts |= self._on_microcontroller()
                facts["check"] = self._said("emulated", data, notes)
            elif make_board("local").machine != manifest.machine:
                facts["calls"] = [{"kernel": one.name, "cycles": one.total} for one in self.model()]
            else:
                facts["check"] = self._said("local", data, notes)
                facts["milliseconds"] = self.benchmark(number=3, repeat=5).median_ms
                facts["calls"] = [
                    {"kernel": one.name, "milliseconds": one.ms, "cycles": None}
                    for one in self.profile(number=3, repeat=3)
                ]
        except (BoardError, files.BundleError, CLibraryError, ToolchainError) as error:
            notes.append(f"Not all was measured: {error}")
        facts["check"] = facts["check"] or "It was not checked on a board"
        return facts | {"note": " ".join(notes)}

    def _said(self, board: str, data: tuple[Any, Any] | None, notes: list[str]) -> str:
        """Says how results compare, of the example alone where data don't fit."""
        if data is not None:
            try:
                return str(self.check(board, data=data))
            except (files.BundleError, ValueError) as error:
                notes.append(f"Not checked over data: {error}.")
        return str(self.check(board))

    def _on_microcontroller(self) -> dict[str, Any]:
        """Describes what a library takes on a microcontroller: sizes, and calls of kernels."""
        library = self._library_of_programs()
        return {
            "sizes": library.sizes.to_json(),
            "calls": [
                {"kernel": step.kernel, "instructions": model.instructions, "cycles": model.total,
                 "parameters": step.parameters, "live": step.live}
                for step, model in zip(library.steps, self.model(), strict=True)
            ],
        }  # fmt: skip

    def _require_timed(self, board: str | Board) -> None:
        """Raises `BoardError` where nothing can be timed, and says what estimates a time."""
        if isinstance(self._named(board), SerialBoard):  # by a counter of its own
            return
        estimate = "bundle.model() (jaxeff-export model) estimates cycles without a board"
        if is_microcontroller(self.manifest.machine):
            raise BoardError(
                f"a library for {self.manifest.target_name} is not timed from here, for its "
                f"programs run in an emulator: {estimate}"
            )
        try:
            running.require_timed(make_board(board))
        except BoardError as error:
            raise BoardError(f"{error}; {estimate}") from None

    def _named(self, board: str | Board) -> Board:
        return make_board(board, target=self.manifest.target)

    @contextlib.contextmanager
    def _place(self, board: str | Board) -> Iterator[running.Runner]:
        """Opens a runner as `on` does, but keeps those that hold no connection between calls."""
        kept = self._runners.get(board) if isinstance(board, str) else None
        if kept is None:
            place = self._named(board)
            # A board that a caller has opened is the caller's, and so is what lies there.
            if place is board or not isinstance(place, LocalBoard | ProgramBoard):
                with self.on(board) as runner:
                    yield runner
                return
            # One thread loads the library; those that come meanwhile wait for it, and share it.
            with self._opening:
                kept = self._runners.get(place.name)
                if kept is None:
                    self._require_fit(place)
                    with place:
                        kept = self._runner(place)
                # "emulated" is the same board as the one named in full.
                self._runners |= {str(board): kept, place.name: kept}
        yield kept

    def take_library(self, library: CLibrary) -> None:
        """Keeps a copy of a C library of the function, if its processor's memories hold it."""
        processor = processor_of(library.target)
        if processor is not None:
            try:
                require_room(library.sizes, *processor.limits)
            except CLibraryError:  # which is said where programs are asked for
                return
        home = self._home()
        shutil.copytree(library.folder, home / "model")
        self._program_library = replace(library, folder=home / "model")

    def _home(self) -> Path:
        """Makes a folder that goes with the bundle."""
        home = Path(tempfile.mkdtemp(prefix="jaxeff-c-"))
        weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        return home

    def _library_of_programs(self) -> CLibrary:
        """The C library that programs are linked to, built once; it goes with the bundle."""
        with self._opening:
            if self._program_library is None:
                self._program_library = self.export_c(self._home() / "model")
            return self._program_library

    def _runner(self, board: Board) -> running.Runner:
        if isinstance(board, SerialBoard):
            return running.SerialRunner(self.manifest, self.recorded, board, self.treedef)
        self._read(files.LIBRARY)  # a library damaged since would take the process down
        if isinstance(board, ProgramBoard):
            # Such a board loads no libraries: the function is exported to C and linked to a
            # program.
            try:
                library = self._library_of_programs()
            except (CLibraryError, ToolchainError) as error:
                raise files.BundleError(str(error)) from error
            return running.ProgramRunner(self.manifest, library, self.recorded, board, self.treedef)
        return running.Runner(
            self.manifest,
            self.folder / files.LIBRARY,
            self.operands,
            self.recorded,
            board,
            self.treedef,
        )

    def _require_fit(self, board: Board) -> None:
        if isinstance(board, SerialBoard):  # its firmware says what it is of
            return
        require_extra("tvm", "running a bundle")
        manifest = self.manifest
        if board.machine is not None and board.machine != manifest.machine:
            raise files.BundleError(
                f"the library is for {manifest.machine} ({manifest.target_name}), the board "
                f"{board.name} is {board.machine}; run it on a board of its kind (emulated:<core> "
                "runs the named cores), or deploy for this one"
            )
        try:
            lacking = board.missing_features(manifest.target)
        except Exception as error:  # TVM has several kinds for a target it doesn't know
            reason = (str(error).strip().splitlines() or ["it gives no reason"])[-1]
            raise files.BundleError(
                f"TVM does not know the target of {files.MANIFEST}: {reason}"
            ) from error
        if lacking:
            raise files.BundleError(
                f"the library was compiled for {manifest.target.get('mcpu')}, the board "
                f"{board.name} lacks its {', '.join(lacking)}; deploy for this board's processor"
            )
        # Compiled libraries call into TVM's runtime, whose interface changes with its version.
        compiled_by, here = manifest.versions["apache-tvm"], metadata.version("apache-tvm")
        if compiled_by != here:
            raise files.BundleError(
                f"the library was compiled by TVM {compiled_by}, this is TVM {here}; deploy it "
                f"again or install apache-tvm=={compiled_by}"
            )


_T = TypeVar("_T")


@dataclass(frozen=True)
class BoardResult(Generic[_T]):
    """Outcome of the work on one board.

    Attributes:
      board: name of the board, as given.
      result: what the work returned; None if it failed.
      error: why it failed; None if it did not.
    """

    board: str
    result: _T | None
    error: BoardError | files.BundleError | None


@validate(
    bundle=instance_of(Bundle),
    work=function_of_form("work(runner)"),
    report=function_of_form("report(outcome)"),
    boards=sequence_of(instance_of(str, Board)),
)
def run_on_boards(
    bundle: Bundle,
    boards: Sequence[str | Board],
    work: Callable[[running.Runner], _T],
    *,
    timed: bool = False,
    report: Callable[[BoardResult[_T]], None] | None = None,
) -> tuple[BoardResult[_T], ...]:
    """Runs the same work with a bundle on several boards at once.

    Boards that are one machine (``local`` and a server on it) compete for its cores.

    ```python
    import jax.numpy as jnp
    import numpy as np

    from jaxeff_export import deploy, run_on_boards

    bundle = deploy(lambda w, x: x @ w, (jnp.eye(3), jnp.ones((2, 3))))
    x = np.ones((2, 3), np.float32)
    here, lost = run_on_boards(bundle, ["local", "rpc://localhost:1"], lambda runner: runner.run(x))
    assert here.error is None and (here.result == x).all()
    assert lost.result is None and "localhost" in str(lost.error)        # nothing answers there
    ```

    Args:
      bundle: the bundle; it must fit every board.
      boards: boards as `Bundle.on` takes them; a tracker's boards may be named several times.
      work: what to do, e.g. ``lambda runner: runner.benchmark()``; called in a thread per board.
      timed: whether the work is timing, which boards are refused that cannot be timed.
      report: called with each outcome as soon as there is one; a board that hangs is only given up
        when its session's time is up.

    Returns:
      One outcome per board, in order.
    """

    def one(board: str | Board, future: Future[BoardResult[_T]]) -> None:
        try:
            future.set_result(_outcome(bundle, board, work, timed))
        # An error that is no board's belongs to the caller, who gets it where results are read.
        except BaseException as error:
            future.set_exception(error)

    futures: list[Future[BoardResult[_T]]] = [Future() for _ in boards]
    for pair in zip(boards, futures, strict=True):
        # Daemons: whoever interrupts the waiting does not want to wait for a board that hangs.
        Thread(target=one, args=pair, daemon=True).start()
    for future in as_completed(futures):
        if report is not None:
            report(future.result())
    return tuple(future.result() for future in futures)


def _outcome(
    bundle: Bundle, board: str | Board, work: Callable[[running.Runner], _T], timed: bool
) -> BoardResult[_T]:
    name = board.name if isinstance(board, Board) else board
    try:
        if timed:
            bundle._require_timed(board)
        with bundle.on(board) as runner:
            return BoardResult(name, work(runner), None)
    except (BoardError, files.BundleError) as error:
        return BoardResult(name, None, error)
