"""The columns of the zoo: one transform of one model, held against what it should compute."""

import dataclasses
import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import jaxeff
from experiments.beyond import trials
from experiments.beyond.trials import Cell, apart, judged
from experiments.beyond.zoo.models import Subject
from experiments.timing import interleaved
from jaxeff import Additive, Crossbar, Gaussian, Int
from jaxeff.adapters import LoRA, init_lora, merge_lora
from jaxeff.compression import calibrate, integer_aware
from jaxeff.ensembles import Members
from jaxeff.moment_propagation import is_gaussian
from jaxeff.pruning import PlanError, Prune, masked

_KEY = jax.random.key(0)
_DRAWS = 256
_SPREAD = 0.05  # of random parameters, relative to each
_NEAR = 0.8  # variances of moments over those of draws, in the median
_DIGITS = 1e-6  # of float32, over a handful of layers
LINEAR = "*:linear"
"""Pattern of the sites of all products and convolutions."""


def functional(s: Subject) -> Cell:
    """The pure function computes what the model does."""
    return judged(apart(jax.jit(s.f)(s.params, *s.args), s.alone), 1e-5)


def noisy(s: Subject) -> Cell:
    """Noise of no scale changes nothing; some does."""
    still, shaken = (
        jax.jit(jaxeff.noisy(s.f, {LINEAR: Additive(scale)}))(_KEY, s.params, *s.args)
        for scale in (0.0, 0.1)
    )
    exact = jax.jit(s.f)(s.params, *s.args)
    moved = apart(shaken, exact)
    cell = judged(apart(still, exact), 1e-5)
    return cell if 0 < moved < 100 else Cell("wrong", moved, "no noise, or too much")


def quantized(s: Subject) -> Cell:
    """Sixteen bits are nearly the function."""
    g = jaxeff.quantized(s.f, {LINEAR: Int(16, symmetric=False)})
    return judged(apart(jax.jit(g)(s.params, *s.args), jax.jit(s.f)(s.params, *s.args)), 5e-3)


def integer(s: Subject) -> Cell:
    """Codes compute what `integer_aware` does; the number is the share of all MACs in codes.

    Both have the same codes but where a value lies between two of them to the last bits of float32:
    there one step is lost, and what depends on it moves. So half of the results, at least, are the
    same to float32's digits, and none is further away than eight bits themselves are from f.
    """
    spec = calibrate(s.f, s.params, [s.args], {LINEAR: Int(8)}).spec
    g = jaxeff.integer(s.f, spec)
    codes = g.convert(s.params, *s.args)
    propagated, near, exact = (
        np.concatenate([np.ravel(y).astype(np.float64) for y in jax.tree.leaves(made)])
        for made in (
            jax.jit(g)(codes, *s.args),
            jax.jit(integer_aware(s.f, spec))(s.params, *s.args),
            jax.jit(s.f)(s.params, *s.args),
        )
    )
    usual, most = np.median(np.abs(propagated - near)), np.abs(propagated - near).max()
    same = usual <= _DIGITS * np.abs(near).max() and most <= np.abs(near - exact).max()
    words = f"differs by {usual:.2g} (median), {most:.2g} (largest)"
    return Cell("right" if same else "wrong", share_in_codes(s, codes), words)


def share_in_codes(s: Subject, codes: Any) -> float:
    """The share of all multiply-accumulates whose weights are among codes of `integer`."""
    sites = {name.removesuffix("/codes") for name in codes.named() if name.endswith("/codes")}
    rows = jaxeff.cost(s.f, s.params, *s.args).layers
    return sum(r.macs for r in rows if r.site in sites) / sum(r.macs for r in rows)


def _posterior(s: Subject) -> Any:
    return jax.tree.map(lambda w: Gaussian(w, (_SPREAD * w) ** 2), s.params)


def variances(
    s: Subject, draws: int, noise: Any = None, jit: bool = True, **settings: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Variances of the moment pass, those of draws, and their relative standard errors.

    What is random to neither, such as slots of a cache that are passed on, is left out. `noise` are
    the variances of the parameters, if not those of a share of each. Outside of `jit` the pass
    looks at draws of its own before it warns.
    """
    posterior = _posterior(s) if noise is None else jax.tree.map(Gaussian, s.params, noise)
    moments = jaxeff.moments(s.f, **settings)
    propagated = (jax.jit(moments) if jit else moments)(posterior, *s.args)

    flat, tree = ravel_pytree(s.params)
    deviation = jnp.sqrt(
        ravel_pytree(jax.tree.map(lambda g: g.var, posterior, is_leaf=is_gaussian))[0]
    )

    def draw(key: jax.Array) -> Any:
        # One vector of noise for all parameters: each generator takes long to compile.
        return s.f(tree(flat + deviation * jax.random.normal(key, flat.shape)), *s.args)

    drawn = jax.jit(lambda keys: jax.lax.map(draw, keys))(jax.random.split(_KEY, draws))
    pairs = zip(
        jax.tree.leaves(propagated, is_leaf=is_gaussian), jax.tree.leaves(drawn), strict=True
    )
    both = [
        np.stack([np.ravel(v) for v in (g.var, y.var(0), y.mean(0), _kurtosis(y))])
        for g, y in pairs
        if is_gaussian(g)
    ]
    propagated, sampled, means, kurtosis = np.concatenate(both, 1)
    # Draws of what isn't random differ by the rounding of their mean at most.
    some = (propagated != 0) | (sampled > (_DIGITS * means) ** 2)
    return propagated[some], sampled[some], np.sqrt((kurtosis[some] - 1) / draws)


def _kurtosis(y: jax.Array) -> jax.Array:
    return jnp.mean((y - y.mean(0)) ** 4, 0) / y.var(0) ** 2


def _variance_ratio(s: Subject, **settings: Any) -> Cell:
    propagated, sampled, _ = variances(s, _DRAWS, **settings)
    ratios = propagated / sampled
    if not np.isfinite(ratios).all():
        return Cell("wrong", None, "a variance that is no number")
    ratio = float(np.median(ratios))
    # A variance of so many draws has a standard error of 9 %, the median of entries less.
    return Cell("right" if _NEAR <= ratio <= 1 / _NEAR else "off", ratio)


def moments(s: Subject) -> Cell:
    """Variances of the moment pass over sampled ones, their median."""
    return _variance_ratio(s)


def linear(s: Subject) -> Cell:
    """The same of the delta method."""
    return _variance_ratio(s, method="linear")


def verdict(s: Subject) -> Cell:
    """`moments_check` says whether the moment pass is right; the number is its ratio."""
    # All arguments at once: a batch may be spread over several, which are split together.
    ratios = jaxeff.moments_check(_KEY, lambda p, args: s.f(p, *args), _posterior(s), s.args)
    ratio = None if ratios.ratio is None else float(ratios.ratio.median)
    return Cell("right", ratio, ratios.advice)


def pruned(s: Subject) -> Cell:
    """The smaller network computes what zeros in place of its channels do.

    Where a statistic over channels can't count zeros, which is refused, these channels are kept.
    """
    kept = ""
    try:
        plan = jaxeff.prune_plan(s.f, s.params, s.args, {LINEAR: Prune(0.5, crossed="zeros")})
    except PlanError as refusal:
        kept = f", with crossed='keep' after {str(refusal)[:200]}"
        plan = jaxeff.prune_plan(s.f, s.params, s.args, {LINEAR: Prune(0.5, crossed="keep")})
    small = plan.shrink(s.params)
    error = apart(
        jax.jit(jaxeff.pruned(s.f, plan))(small, *s.args),
        jax.jit(masked(s.f, plan))(s.params, *s.args),
    )
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (small, s.params)]
    words = f"differs by {error:.2g}{kept}"
    return Cell("right" if error <= 1e-4 else "wrong", sizes[0] / sizes[1], words)


def lora(s: Subject) -> Cell:
    """Updates beside the layers compute what they do once they are merged into the weights."""
    spec = {LINEAR: LoRA(rank=2)}
    adapters = init_lora(_KEY, s.f, s.params, s.args, spec)
    # Second factors begin at zero, where an update has no effect.
    adapters = jax.tree.map(lambda a: 0.1 * jax.random.normal(_KEY, a.shape), adapters)
    beside = jax.jit(jaxeff.lora(s.f, spec))(s.params, adapters, *s.args)
    merged = merge_lora(s.f, s.params, adapters, s.args, spec)
    return judged(apart(beside, jax.jit(s.f)(merged, *s.args)), 1e-4)


def ensemble(s: Subject) -> Cell:
    """Each member computes what its parameters do."""
    g, members = jaxeff.ensemble(_KEY, s.f, s.params, {s.last: Members(3)})
    outputs = jax.jit(g)(members, *s.args)
    each = [jax.jit(s.f)(g.member(members, i), *s.args) for i in range(3)]
    return judged(apart(outputs, jax.tree.map(lambda *ys: jnp.stack(ys), *each)), 1e-5)


def analog(s: Subject) -> Cell:
    """Tiles of many bits and no noise are nearly the function."""
    tile = Crossbar(
        rows=64, columns=64, input_bits=12, weight_bits=11, output_bits=24, gain=0.03, signed=True
    )
    outputs = jax.jit(jaxeff.analog(s.f, {LINEAR: tile}))(_KEY, s.params, *s.args)
    return judged(apart(outputs, jax.jit(s.f)(s.params, *s.args)), 0.05)


def _over_xla(s: Subject, call: Callable[[], Any]) -> float:
    # CPU time, so that what else the machine does costs little; so an engine's threads count too.
    f = jax.jit(s.f)
    calls = {"xla": lambda: f(s.params, *s.args), "other": call}
    times = interleaved(calls, rounds=5, relative_to="xla", clock=time.process_time)
    return times["other"]["ratio"]


def _megabytes(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def deploy(s: Subject) -> Cell:
    """A bundle of this machine replays what JAX computes."""
    from jaxeff_export import deploy

    with tempfile.TemporaryDirectory() as folder:
        bundle = deploy(s.f, (s.params, *s.args), path=Path(folder) / "bundle", check=False)
        verdict = bundle.check()
        with bundle.on("local") as runner:
            times = _over_xla(s, lambda: runner.run(*s.args))
        size = _megabytes(Path(folder) / "bundle")
    status = "right" if verdict.passed else "wrong"
    return Cell(status, float(verdict.max_abs_error), megabytes=size, times=times)


def a72(s: Subject) -> Cell:
    """A bundle of a Cortex-A72 replays what JAX computes, on an emulated one."""
    from jaxeff_export import deploy

    with tempfile.TemporaryDirectory() as folder:
        bundle = deploy(
            s.f, (s.params, *s.args), target="cortex-a72", path=Path(folder) / "bundle", check=False
        )
        verdict = bundle.check("emulated")
    return Cell("right" if verdict.passed else "wrong", float(verdict.max_abs_error))


CORES = (
    "cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55",
    "cortex-m85", "riscv32",
)  # fmt: skip
"""Microcontrollers that are emulated: columns of models with loops, unless others are asked for."""


def _on(core: str) -> Callable[[Subject], Cell]:
    def on_core(s: Subject) -> Cell:
        """An int8 library of a microcontroller replays what JAX computes, on an emulated one."""
        from jaxeff_export import BoardError, ToolchainError, deploy

        spec = calibrate(s.f, s.params, [s.args], {LINEAR: Int(8)}).spec
        g = jaxeff.integer(s.f, spec)
        codes = g.convert(s.params, *s.args)
        with tempfile.TemporaryDirectory() as folder:
            try:
                bundle = deploy(
                    g, (codes, *s.args), target=core, path=Path(folder) / "bundle", check=False
                )
                verdict = bundle.check(f"emulated:{core}")
            except (ToolchainError, BoardError) as error:
                # A board without its emulator says so for it.
                if not isinstance(error.__cause__ or error, ToolchainError):
                    raise
                return Cell("absent", None, str(error))
        return Cell("right" if verdict.passed else "wrong", float(verdict.max_abs_error))

    return on_core


def _of_file(s: Subject, file: Any, call: Callable[[dict[str, np.ndarray]], Any]) -> Cell:
    """Judges, times and weighs a file by the results of an engine that has loaded it."""
    feeds = dict(zip(file.inputs, map(np.asarray, jax.tree.leaves(s.args)), strict=True))
    cell = judged(apart(call(feeds), jax.tree.leaves(s.alone)), 1e-4)
    times = _over_xla(s, lambda: call(feeds))
    return dataclasses.replace(cell, megabytes=_megabytes(Path(file.path)), times=times)


def by_onnxruntime(file: Any) -> Callable[[dict[str, np.ndarray]], Any]:
    """A call of a file that `to_onnx` wrote, by one thread of ONNX Runtime."""
    import onnxruntime

    # Threads that wait for each other on the one core of this process would take its time.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.path, options)
    return lambda given: session.run(list(file.outputs), given)


def onnx(s: Subject) -> Cell:
    """ONNX Runtime computes what JAX computes."""
    if importlib.util.find_spec("onnxruntime") is None:
        return Cell("absent", None, "onnxruntime isn't installed")
    from jaxeff_export import to_onnx

    with tempfile.TemporaryDirectory() as folder:
        file = to_onnx(s.f, (s.params, *s.args), Path(folder) / "net.onnx")
        return _of_file(s, file, by_onnxruntime(file))


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
        lora, deploy, a72, onnx, litert,
    )
} | {core: _on(core) for core in CORES}  # fmt: skip
"""What is tried, by name."""


def tried(column: str, s: Subject) -> Cell:
    """One cell, whatever happens."""
    return trials.tried(COLUMNS[column], s)
