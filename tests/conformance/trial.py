"""One case from JAX to TVM and back: export, oracle, import, compile, run, compare."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tvm
from jaxeff_export.compiler import compile_module
from jaxeff_export.importer import StableHLOParseError, UnsupportedOpError, import_stablehlo
from tvm import relax

from experiments.timing import interleaved
from tests.conformance.c_library import CRun
from tests.conformance.harnesses import Case
from tests.conformance.judging import judge

TYPES = {
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "bfloat16", "float32", "float64"),
}
COMPILERS: dict[str, Callable[[tvm.IRModule], Any]] = {
    "pipeline": compile_module,
    "plain": lambda mod: tvm.compile(mod, target="llvm"),
}


def run_case(case: Case, compiler: str, constants: bool, say: Callable[[str], None]) -> dict:
    """Runs a case in this process and says what came of it.

    Args:
        case: The program.
        compiler: A key of `COMPILERS`, or "c" for a C library.
        constants: Whether the arguments are written into the module, as in the official files.
        say: Called with the name of each stage before it begins.

    Returns:
        `outcome`, `message`, `ulps` and the seconds that importing and compiling took; of timed
        cases also the milliseconds of a run here and in XLA, and their ratio; of C libraries
        whether the results are the bits of the same kernels in TVM's runtime.
    """
    with jax.enable_x64(case.wide):
        return _run_case(case, compiler, constants, say)


def _run_case(case: Case, compiler: str, constants: bool, say: Callable[[str], None]) -> dict:
    say("exporting")
    try:
        exported, arguments, expected = _oracle(case, constants)
    except _LeftOut as reason:
        return {"outcome": "left out", "message": str(reason)}
    row: dict[str, Any] = {}
    try:
        say("importing")
        module = _timed(row, "import_s", import_stablehlo, exported)
        say("compiling")
        run: _Run | CRun
        if compiler == "c":
            run = _timed(row, "compile_s", lambda m: CRun(m, arguments, expected), module)
            beside = _Run(COMPILERS["pipeline"](module), arguments).results()
        else:
            run = _Run(_timed(row, "compile_s", COMPILERS[compiler], module), arguments)
        say("running")
        results = run.results()
        if compiler == "c":
            row["same_bits"] = all(map(_same_bits, results, beside))
    except UnsupportedOpError as error:
        return row | {"outcome": "unsupported", "message": _short(error, "; ")}
    except (StableHLOParseError, Exception) as error:
        stage = ("run" if "compile_s" in row else "compile") if "import_s" in row else "import"
        message = f"{type(error).__name__}: {_short(error)}"
        return row | {"outcome": f"{stage} error", "message": message}
    verdict = judge(results, expected)
    row |= {"outcome": verdict.outcome, "message": verdict.message, "ulps": verdict.ulps}
    if case.timed and isinstance(run, _Run):
        say("timing")
        row |= _times(exported, arguments, run)
    return row


class _LeftOut(Exception):
    """The case isn't one for the importer; says why."""


def _oracle(
    case: Case, constants: bool
) -> tuple[jax.export.Exported, list[np.ndarray], list[np.ndarray]]:
    """The artifact, the arguments it takes, and XLA's results of that artifact."""
    function, arguments = case.build()
    try:
        types = {a.dtype.name for a in jax.tree.leaves(jax.eval_shape(function, *arguments))}
        types |= {jax.dtypes.result_type(a).name for a in jax.tree.leaves(arguments)}
        if types - TYPES:
            raise _LeftOut(f"TVM has no {', '.join(sorted(types - TYPES))}")
        if constants:
            fixed = jax.tree.map(np.asarray, arguments)
            function, arguments = (lambda f: lambda: f(*fixed))(function), ()
        exported = jax.export.export(jax.jit(function, keep_unused=True), platforms=["cpu"])(
            *arguments
        )
        expected = jax.tree.leaves(jax.jit(exported.call)(*arguments))
    except _LeftOut:
        raise
    except Exception as error:
        raise _LeftOut(f"JAX: {type(error).__name__}: {_short(error)}") from error
    leaves = zip(jax.tree.leaves(arguments), exported.in_avals, strict=True)
    given = [np.array(leaf, dtype=aval.dtype, order="C") for leaf, aval in leaves]
    return exported, given, [np.asarray(leaf) for leaf in expected]


class _Run:
    """A compiled program together with its arguments."""

    def __init__(self, executable: relax.VMExecutable, arguments: Sequence[np.ndarray]):
        self._main = relax.VirtualMachine(executable, tvm.cpu())["main"]
        self._arguments = [tvm.runtime.tensor(a) for a in arguments]

    def __call__(self) -> Any:
        return self._main(*self._arguments)

    def results(self) -> list[np.ndarray]:
        results = self()
        return [results.numpy()] if hasattr(results, "numpy") else [r.numpy() for r in results]


def _same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return ours.tobytes() == np.ascontiguousarray(theirs).tobytes()


def _times(exported: jax.export.Exported, arguments: Sequence[np.ndarray], run: _Run) -> dict:
    """Milliseconds of XLA and of TVM, and how many times longer TVM takes."""
    leaves = [jax.device_put(a) for a in arguments]
    given = jax.tree.unflatten(exported.in_tree, leaves)
    theirs = jax.jit(exported.call).lower(*given[0], **given[1]).compile()
    calls: dict[str, Callable[[], Any]] = {"xla": lambda: theirs(*given[0], **given[1]), "tvm": run}
    times = interleaved(calls, rounds=5, seconds=0.01, relative_to="xla")
    return {
        "xla_ms": times["xla"]["ms"],
        "tvm_ms": times["tvm"]["ms"],
        "ratio": times["tvm"]["ratio"],
    }


def _timed(row: dict, key: str, call: Callable, argument: Any) -> Any:
    start = time.perf_counter()
    result = call(argument)
    row[key] = round(time.perf_counter() - start, 3)
    return result


def _short(error: Exception, join: str = " ") -> str:
    """What an error says, without a traceback that it may carry."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Traceback"):
        lines = lines[-1:]
    return join.join(lines)[:600]
