"""The columns of the zoo: one transform of one model, held against what it should compute."""

import dataclasses
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxeff
from experiments.timing import interleaved
from experiments.zoo.models import Subject
from jaxeff import Additive, Crossbar, Gaussian, Int
from jaxeff.compression import calibrate, integer_aware
from jaxeff.ensembles import Members
from jaxeff.moment_propagation import MomentsWarning, is_gaussian
from jaxeff.pruning import PlanError, Prune, masked

_KEY = jax.random.key(0)
_DRAWS = 256
_DIGITS = 1e-6  # of float32, over a handful of layers
_LINEAR = "*:linear"
_OURS = ("jaxeff", "jaxeff_export")
# A path begins at a slash that ends no word (sites have names with slashes) and no address.
_FOLDERS = re.compile(r"(?<![\w.:/*)\]}])~?/(?:[^\s/'\"`,;:()]+/)+")


@dataclasses.dataclass(frozen=True)
class Cell:
    """What became of one transform of one model.

    Attributes:
        status: "right", "off" (variances that are another order), "wrong", "refused" (an error of
            the library that says why), "crash" (any other error) or "absent" (a package is).
        number: What was measured: an error, a share, a ratio.
        words: An error's, or a warning's.
        megabytes: Of the files that were written.
        times: Seconds of a call over those of XLA's, both of one thread, in turn.
    """

    status: str
    number: float | None = None
    words: str = ""
    megabytes: float | None = None
    times: float | None = None


def apart(found: Any, exact: Any) -> float:
    """The largest distance of two results, over the largest value of the second."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def _judged(number: float, limit: float) -> Cell:
    return Cell("right" if number <= limit else "wrong", number)


def functional(s: Subject) -> Cell:
    """The pure function computes what the model does."""
    return _judged(apart(jax.jit(s.f)(s.params, *s.args), s.alone), 1e-5)


def noisy(s: Subject) -> Cell:
    """Noise of no scale changes nothing; some does."""
    still, shaken = (
        jax.jit(jaxeff.noisy(s.f, {_LINEAR: Additive(scale)}))(_KEY, s.params, *s.args)
        for scale in (0.0, 0.1)
    )
    exact = jax.jit(s.f)(s.params, *s.args)
    moved = apart(shaken, exact)
    cell = _judged(apart(still, exact), 1e-5)
    return cell if 0 < moved < 100 else Cell("wrong", moved, "no noise, or too much")


def quantized(s: Subject) -> Cell:
    """Sixteen bits are nearly the function."""
    g = jaxeff.quantized(s.f, {_LINEAR: Int(16)})
    return _judged(apart(jax.jit(g)(s.params, *s.args), jax.jit(s.f)(s.params, *s.args)), 5e-3)


def integer(s: Subject) -> Cell:
    """Codes compute what `integer_aware` does; the number is the share of all MACs in codes.

    Both have the same codes but where a value lies between two of them to the last bits of float32:
    there one step is lost, and what depends on it moves. So half of the results, at least, are the
    same to float32's digits, and none is further away than eight bits themselves are from f.
    """
    spec = calibrate(s.f, s.params, [s.args], {_LINEAR: Int(8, symmetric="weights")})
    g = jaxeff.integer(s.f, spec)
    codes = g.convert(s.params, *s.args)
    found, near, exact = (
        np.concatenate([np.ravel(y).astype(np.float64) for y in jax.tree.leaves(made)])
        for made in (
            jax.jit(g)(codes, *s.args),
            jax.jit(integer_aware(s.f, spec))(s.params, *s.args),
            jax.jit(s.f)(s.params, *s.args),
        )
    )
    usual, most = np.median(np.abs(found - near)), np.abs(found - near).max()
    same = usual <= _DIGITS * np.abs(near).max() and most <= np.abs(near - exact).max()
    sites = {name.removesuffix("/codes") for name in codes.named() if name.endswith("/codes")}
    rows = jaxeff.cost(s.f, s.params, *s.args).layers
    share = sum(r.macs for r in rows if r.site in sites) / sum(r.macs for r in rows)
    words = f"differs by {usual:.2g} (median), {most:.2g} (largest)"
    return Cell("right" if same else "wrong", share, words)


def _posterior(s: Subject) -> Any:
    return jax.tree.map(lambda w: Gaussian(w, (0.05 * w) ** 2), s.params)


def _variance_ratio(s: Subject, **settings: Any) -> Cell:
    posterior = _posterior(s)
    found = jax.jit(jaxeff.moments(s.f, **settings))(posterior, *s.args)

    def draw(key: jax.Array) -> Any:
        leaves, structure = jax.tree.flatten(posterior, is_leaf=is_gaussian)
        keys = jax.random.split(key, len(leaves))
        drawn = [g.sample(k) for g, k in zip(leaves, keys, strict=True)]
        return s.f(jax.tree.unflatten(structure, drawn), *s.args)

    drawn = jax.jit(jax.vmap(draw))(jax.random.split(_KEY, _DRAWS))
    pairs = zip(jax.tree.leaves(found, is_leaf=is_gaussian), jax.tree.leaves(drawn), strict=True)
    both = [
        np.stack([np.ravel(v) for v in (g.var, y.var(0), y.mean(0))])
        for g, y in pairs
        if is_gaussian(g)
    ]
    found, sampled, means = np.concatenate(both, 1)
    # What is random to neither, such as slots of a cache that are passed on, has no ratio; its
    # draws differ by the rounding of their mean at most.
    some = (found != 0) | (sampled > (_DIGITS * means) ** 2)
    ratios = found[some] / sampled[some]
    if not np.isfinite(ratios).all():
        return Cell("wrong", None, "a variance that is no number")
    ratio = float(np.median(ratios))
    # A variance of so many draws has a standard error of 9 %, the median of entries less.
    return Cell("right" if 0.75 <= ratio <= 1 / 0.75 else "off", ratio)


def moments(s: Subject) -> Cell:
    """Variances of the moment pass over sampled ones, their median."""
    return _variance_ratio(s)


def linear(s: Subject) -> Cell:
    """The same of the delta method."""
    return _variance_ratio(s, method="linear")


def verdict(s: Subject) -> Cell:
    """`moments_check` says whether the moment pass is right; the number is its ratio."""
    # All arguments at once: a batch may be spread over several, which are split together.
    found = jaxeff.moments_check(_KEY, lambda p, args: s.f(p, *args), _posterior(s), s.args)
    ratio = None if found.ratio is None else float(found.ratio.median)
    return Cell("right", ratio, found.advice)


def pruned(s: Subject) -> Cell:
    """The smaller network computes what zeros in place of its channels do.

    Where a statistic over channels can't count zeros, which is refused, these channels are kept.
    """
    kept = ""
    try:
        plan = jaxeff.prune_plan(s.f, s.params, s.args, {_LINEAR: Prune(0.5, crossed="zeros")})
    except PlanError as refusal:
        kept = f", with crossed='keep' after {str(refusal)[:200]}"
        plan = jaxeff.prune_plan(s.f, s.params, s.args, {_LINEAR: Prune(0.5, crossed="keep")})
    small = plan.shrink(s.params)
    error = apart(
        jax.jit(jaxeff.pruned(s.f, plan))(small, *s.args),
        jax.jit(masked(s.f, plan))(s.params, *s.args),
    )
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (small, s.params)]
    words = f"differs by {error:.2g}{kept}"
    return Cell("right" if error <= 1e-4 else "wrong", sizes[0] / sizes[1], words)


def ensemble(s: Subject) -> Cell:
    """Each member computes what its parameters do."""
    g, members = jaxeff.ensemble(_KEY, s.f, s.params, {s.last: Members(3)})
    found = jax.jit(g)(members, *s.args)
    each = [jax.jit(s.f)(g.member(members, i), *s.args) for i in range(3)]
    return _judged(apart(found, jax.tree.map(lambda *ys: jnp.stack(ys), *each)), 1e-5)


def analog(s: Subject) -> Cell:
    """Tiles of many bits and no noise are nearly the function."""
    tile = Crossbar(
        rows=64, columns=64, input_bits=12, weight_bits=11, output_bits=24, gain=0.03, signed=True
    )
    found = jax.jit(jaxeff.analog(s.f, {_LINEAR: tile}))(_KEY, s.params, *s.args)
    return _judged(apart(found, jax.jit(s.f)(s.params, *s.args)), 0.05)


def _over_xla(s: Subject, call: Callable[[], Any]) -> float:
    # CPU time, so that what else the machine does costs little; so an engine's threads count too.
    f = jax.jit(s.f)
    calls = {"xla": lambda: f(s.params, *s.args), "other": call}
    found = interleaved(calls, rounds=5, relative_to="xla", clock=time.process_time)
    return found["other"]["ratio"]


def _megabytes(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def deploy(s: Subject) -> Cell:
    """A bundle of this machine replays what JAX computes."""
    from jaxeff_export import deploy

    with tempfile.TemporaryDirectory() as folder:
        bundle = deploy(s.f, (s.params, *s.args), path=Path(folder) / "bundle")
        found = bundle.check()
        with bundle.on("local") as runner:
            times = _over_xla(s, lambda: runner.run(*s.args))
        size = _megabytes(Path(folder) / "bundle")
    status = "right" if found.passed else "wrong"
    return Cell(status, float(found.max_abs_error), megabytes=size, times=times)


def a72(s: Subject) -> Cell:
    """A bundle of a Cortex-A72 replays what JAX computes, on an emulated one."""
    from jaxeff_export import deploy

    with tempfile.TemporaryDirectory() as folder:
        bundle = deploy(s.f, (s.params, *s.args), target="cortex-a72", path=Path(folder) / "bundle")
        found = bundle.check("emulated")
    return Cell("right" if found.passed else "wrong", float(found.max_abs_error))


CORES = (
    "cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55",
    "cortex-m85", "riscv32",
)  # fmt: skip
"""Microcontrollers that are emulated: columns of models with loops, unless others are asked for."""


def _on(core: str) -> Callable[[Subject], Cell]:
    def on_core(s: Subject) -> Cell:
        """An int8 library of a microcontroller replays what JAX computes, on an emulated one."""
        from jaxeff_export import BoardError, ToolchainError, deploy

        spec = calibrate(s.f, s.params, [s.args], {_LINEAR: Int(8, symmetric="weights")})
        g = jaxeff.integer(s.f, spec)
        codes = g.convert(s.params, *s.args)
        with tempfile.TemporaryDirectory() as folder:
            try:
                bundle = deploy(g, (codes, *s.args), target=core, path=Path(folder) / "bundle")
                found = bundle.check(f"emulated:{core}")
            except (ToolchainError, BoardError) as error:
                # A board without its emulator says so for it.
                if not isinstance(error.__cause__ or error, ToolchainError):
                    raise
                return Cell("absent", None, str(error))
        return Cell("right" if found.passed else "wrong", float(found.max_abs_error))

    return on_core


def _of_file(s: Subject, file: Any, call: Callable[[dict[str, np.ndarray]], Any]) -> Cell:
    """Judges, times and weighs a file by the results of an engine that has loaded it."""
    given = dict(zip(file.inputs, map(np.asarray, jax.tree.leaves(s.args)), strict=True))
    cell = _judged(apart(call(given), jax.tree.leaves(s.alone)), 1e-4)
    times = _over_xla(s, lambda: call(given))
    return dataclasses.replace(cell, megabytes=_megabytes(Path(file.path)), times=times)


def onnx(s: Subject) -> Cell:
    """ONNX Runtime computes what JAX computes."""
    try:
        import onnxruntime
    except ImportError:
        return Cell("absent", None, "onnxruntime isn't installed")
    from jaxeff_export import to_onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        file = to_onnx(s.f, (s.params, *s.args), path)
        # Threads that wait for each other on the one core of this process would take its time.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options)
        return _of_file(s, file, lambda given: session.run(list(file.outputs), given))


def litert(s: Subject) -> Cell:
    """LiteRT computes what JAX computes."""
    try:
        from ai_edge_litert.interpreter import Interpreter
        from jaxeff_export import to_litert
    except ImportError:
        return Cell("absent", None, "jaxeff[litert] isn't installed")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.tflite"
        file = to_litert(s.f, (s.params, *s.args), path)
        run = Interpreter(str(path)).get_signature_runner()

        def call(given: dict[str, np.ndarray]) -> list[np.ndarray]:
            made = run(**given)
            return [made[name] for name in file.outputs]

        return _of_file(s, file, call)


COLUMNS: Mapping[str, Callable[[Subject], Cell]] = {
    of.__name__: of
    for of in (
        functional, noisy, quantized, integer, moments, linear, verdict, pruned, ensemble, analog,
        deploy, a72, onnx, litert,
    )
} | {core: _on(core) for core in CORES}  # fmt: skip
"""What is tried, by name."""


def tried(column: str, s: Subject) -> Cell:
    """One cell, whatever happens."""
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            cell = COLUMNS[column](s)
            # Whether a user is warned of what is off; of the rest, packages warn of themselves.
            warned = [str(w.message) for w in told if issubclass(w.category, MomentsWarning)]
            words = warned[0] if cell.status == "off" and warned else cell.words
            return dataclasses.replace(cell, words=without_folders(words)[:400])
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        ours = any(f"/{package}/" in last for package in _OURS)
        meant = ours and isinstance(error, ValueError | TypeError | NotImplementedError)
        words = f"{type(error).__name__}: {error}".split("\n")[0]
        return Cell("refused" if meant else "crash", None, without_folders(words)[:400])


def without_folders(words: str) -> str:
    """Leaves of each path its last name: where a machine keeps its files is no result."""
    return _FOLDERS.sub("", words)
