"""What is held of a random network: each transform against an oracle."""

import dataclasses
import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxeff
from experiments.beyond.fuzz import edges
from experiments.beyond.fuzz.grammar import Network
from experiments.beyond.trials import Cell, apart, judged
from experiments.beyond.zoo import cells as zoo
from jaxeff import Int
from jaxeff.compression import calibrate, integer_aware
from jaxeff.moment_propagation import MomentsWarning

DRAWS = 2048
BOUNDS = 0.8, 1.25
"""Variances over sampled ones that are right, two standard errors aside."""

_EXACT = 1e-5  # of the largest result: sums in another order
_BESIDE = 2**-11
"""What `integer` says that it may lose of a bias beside which products are small."""
_ROUNDINGS = 8
"""Calls with other parameters, by which it is measured what float32 loses."""
_NEARBY = 1e-5  # how far away these are, relative to each


def integer(net: Network) -> Cell:
    """Codes compute what `integer_aware` does, with one example and with several at a time.

    Where a value lies between two codes to the last bits of float32 a step is lost. So half of the
    examples, at least, are the same to float32's digits, and none is further away than eight bits
    themselves are from f. Where codes of weights were rounded anew, as an accumulator has no room
    for fine products beside a large bias, half are the same to what that may lose. The number is
    the share of all multiply-accumulates in codes.
    """
    s, count = net.subject(len(net.examples)), len(net.examples)
    spec = calibrate(s.f, s.params, [s.args], {zoo.LINEAR: Int(8)}).spec
    g = jaxeff.integer(s.f, spec)
    codes = g.convert(s.params, *s.args)
    by_codes, by_floats = jax.jit(g), jax.jit(integer_aware(s.f, spec))
    exact, told, same = np.asarray(s.alone), [], True
    coarse = _rounded_anew(codes.named())
    digits = _BESIDE if coarse else _EXACT
    for size in (1, count):
        parts = [net.examples[i : i + size] for i in range(0, count - size + 1, size)]
        propagated, near = (
            np.concatenate([by(p, x) for x in parts])
            for by, p in ((by_codes, codes), (by_floats, s.params))
        )
        errors = _errors(propagated, near)
        usual, most = np.median(errors), errors.max()
        same &= bool(usual <= digits * np.abs(near).max())
        # Where eight bits lose nothing, float32's digits are what is left to lose.
        lost = _errors(near, exact[: len(near)]).max()
        same &= bool(most <= max(lost, digits * np.abs(near).max()))
        told += [f"batch {size}: differs by {usual:.2g} (median), {most:.2g} (largest)"]
    told += [f"coarser codes beside a bias: {', '.join(coarse)}"] if coarse else []
    words = "; ".join(told)
    return Cell("right" if same else "wrong", zoo.share_in_codes(s, codes), words)


def _rounded_anew(arrays: Mapping[str, Any]) -> list[str]:
    """Names the sites where the largest code of an output isn't that of eight bits."""
    largest = {
        name.removesuffix("/codes"): np.abs(np.asarray(codes, int))
        .reshape(-1, codes.shape[-1])
        .max(0)
        for name, codes in arrays.items()
        if name.endswith("/codes")
    }
    return [site for site, most in largest.items() if ((most > 0) & (most < 127)).any()]


def _errors(outputs: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The largest error of each example."""
    return np.abs(outputs - exact).reshape(len(outputs), -1).max(1)


def _variance(net: Network, **settings: Any) -> Cell:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        propagated, sampled, errors = zoo.variances(net.subject(), DRAWS, **settings)
    warned = [str(w.message) for w in told if issubclass(w.category, MomentsWarning)]
    words = warned[0] if warned else ""
    ratios = propagated / sampled
    if not np.isfinite(ratios).all():
        return Cell("warned" if warned else "wrong", None, words or "a variance that is no number")
    ratio, error = float(np.median(ratios)), float(np.median(errors))
    least, most = BOUNDS
    if least * (1 - 2 * error) <= ratio <= most * (1 + 2 * error):
        return Cell("right", ratio, words)
    return Cell("warned" if warned else "wrong", ratio, words or f"standard error {error:.2g}")


def moments(net: Network) -> Cell:
    """Variances of the moment pass over those of draws, their median."""
    return _variance(net)


def linear(net: Network) -> Cell:
    """The same of the delta method."""
    return _variance(net, method="linear")


def pruned(net: Network) -> Cell:
    """The smaller network computes what zeros in place of its channels do."""
    return zoo.pruned(net.subject())


def _as_xla(net: Network, outputs: Any) -> Cell:
    """Judges results of `net.others` against XLA's; the number is their distance.

    Further apart may be what both lose to float32, by a difference of large numbers, say. So where
    they are, both are held against float64: "rounding" is no further from it than XLA's float32 is
    itself, of the same parameters or of ones nearby.
    """
    f, params, x = net.block.apply, net.block.params, net.others
    by_xla = jax.jit(f)
    cell = judged(apart(outputs, by_xla(params, x)), _EXACT)
    if cell.status == "right":
        return cell
    rng = np.random.default_rng(0)
    exact = _in_float64(f, params, x)
    error, lost = apart(outputs, exact), [apart(by_xla(params, x), exact)]
    for _ in range(_ROUNDINGS):
        moved = jax.tree.map(
            lambda w: w * np.float32(1 + _NEARBY * rng.standard_normal(w.shape)), params
        )
        lost.append(apart(by_xla(moved, x), _in_float64(f, moved, x)))
    words = f"from float64: {error:.2g}; XLA's float32: {min(lost):.2g} to {max(lost):.2g}"
    return Cell("rounding" if error <= max(lost) else "wrong", cell.number, words)


def _in_float64(f: Callable[..., Any], params: Any, x: Any) -> np.ndarray:
    """Computes a function of float32 arrays in float64."""

    def wide(a: Any) -> Any:
        a = np.asarray(a)
        return jax.numpy.asarray(a, np.float64 if a.dtype == np.float32 else a.dtype)

    with jax.enable_x64(True):
        return np.asarray(jax.jit(f)(jax.tree.map(wide, params), wide(x)))


def deploy(net: Network) -> Cell:
    """A bundle of this machine computes what XLA does, of its own examples and of others."""
    from jaxeff_export import deploy

    s = net.subject()
    with tempfile.TemporaryDirectory() as folder:
        bundle = deploy(s.f, (s.params, *s.args), path=Path(folder) / "bundle", check=False)
        check = bundle.check()
        cell = _as_xla(net, bundle.run(net.others))
    return cell if check.passed else Cell("wrong", float(check.max_abs_error), str(check))


def onnx(net: Network) -> Cell:
    """ONNX Runtime computes what XLA does, of other examples than the file was written with."""
    if importlib.util.find_spec("onnxruntime") is None:
        return Cell("absent", None, "onnxruntime isn't installed")
    from jaxeff_export import to_onnx

    s = net.subject()
    with tempfile.TemporaryDirectory() as folder:
        file = to_onnx(s.f, (s.params, *s.args), Path(folder) / "net.onnx")
        feeds = dict(zip(file.inputs, [np.asarray(net.others)], strict=True))
        (outputs,) = zoo.by_onnxruntime(file)(feeds)
    return _as_xla(net, outputs)


def litert(net: Network) -> Cell:
    """LiteRT computes what XLA does, of other examples than the file was written with."""
    if importlib.util.find_spec("ai_edge_litert") is None:
        return Cell("absent", None, "jaxeff[litert] isn't installed")
    from ai_edge_litert.interpreter import Interpreter
    from jaxeff_export import to_litert

    s = net.subject()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.tflite"
        file = to_litert(s.f, (s.params, *s.args), path)
        run = Interpreter(str(path)).get_signature_runner()
        outputs = run(**{file.inputs[0]: np.asarray(net.others)})
        return _as_xla(net, outputs[file.outputs[0]])


def c_source(net: Network) -> Cell:
    """Source in C computes what XLA does under any flags, and sanitizers have nothing to say."""
    from jaxeff_export import CLibraryError, deploy
    from jaxeff_export.clib import ExampleProgram

    if shutil.which("gcc") is None:
        return Cell("absent", None, "gcc isn't installed")
    s, cell = net.subject(), Cell("right", 0.0)
    with tempfile.TemporaryDirectory() as folder:
        bundle = deploy(s.f, (s.params, *s.args), path=Path(folder) / "bundle", check=False)
        library = bundle.export_c(Path(folder) / "net", source=True)
        for flags in FLAGS:
            build = ("gcc", *library.build[1:], *flags.split())
            program = ExampleProgram(dataclasses.replace(library, build=build), None)
            try:
                (outputs,) = program.run([np.asarray(net.others)])
            except CLibraryError as error:  # what was refused was so before
                return Cell("wrong", None, f"{flags}: {error}")
            now = _as_xla(net, outputs)
            now = dataclasses.replace(now, words=f"{flags}: {now.words}")
            if now.status == "wrong":
                return now
            cell = now if now.status == "rounding" else cell
    return cell


FLAGS = (
    "-O0", "-O3", "-O3 -ffast-math", "-O1 -fsanitize=undefined -fsanitize-undefined-trap-on-error",
)  # fmt: skip
"""How source in C is compiled."""


def torch(net: Network) -> Cell:
    """The function of a module of PyTorch, drawn from the same seed, computes what PyTorch does."""
    if importlib.util.find_spec("torchax") is None:
        return Cell("absent", None, "jaxeff[torch] isn't installed")
    from experiments.beyond.fuzz import modules

    return modules.torch_module(net.seed)


def onnx_edges(net: Network) -> Cell:
    """A function of values at the edges of dtypes, of the same seed, through ONNX and back."""
    return edges.onnx(net.seed)


def litert_edges(net: Network) -> Cell:
    """The same through LiteRT."""
    return edges.litert(net.seed)


COLUMNS: Mapping[str, Callable[[Network], Cell]] = {
    of.__name__: of
    for of in (
        integer, moments, linear, pruned, deploy, c_source, onnx, litert, torch, onnx_edges,
        litert_edges,
    )
}  # fmt: skip
"""What is tried, by name."""


def subject(net: Network, column: str) -> str:
    """What a column tries, in words."""
    if column.endswith("_edges"):
        return edges.edged(net.seed).words
    if column == "torch" and importlib.util.find_spec("torchax") is not None:
        from experiments.beyond.fuzz import modules

        return modules.module(net.seed)[0]
    return net.words
