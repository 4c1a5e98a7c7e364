"""What is held of a random network: each transform against an oracle."""

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxeff
from experiments.fuzz.grammar import Network
from experiments.trials import Cell, apart, judged
from experiments.zoo import cells as zoo
from jaxeff import Int
from jaxeff.compression import calibrate, integer_aware
from jaxeff.moment_propagation import MomentsWarning

DRAWS = 2048
BOUNDS = 0.8, 1.25
"""Variances over sampled ones that are right, two standard errors aside."""

_EXACT = 1e-5  # of the largest result: sums in another order


def integer(net: Network) -> Cell:
    """Codes compute what `integer_aware` does, with one example and with several at a time.

    Where a value lies between two codes to the last bits of float32 a step is lost. So half of the
    examples, at least, are the same to float32's digits, and none is further away than eight bits
    themselves are from f. The number is the share of all multiply-accumulates in codes.
    """
    s, count = net.subject(len(net.examples)), len(net.examples)
    spec = calibrate(s.f, s.params, [s.args], {zoo.LINEAR: Int(8, symmetric="weights")})
    g = jaxeff.integer(s.f, spec)
    codes = g.convert(s.params, *s.args)
    by_codes, by_floats = jax.jit(g), jax.jit(integer_aware(s.f, spec))
    exact, told, same = np.asarray(s.alone), [], True
    for size in (1, count):
        parts = [net.examples[i : i + size] for i in range(0, count - size + 1, size)]
        found, near = (
            np.concatenate([by(p, x) for x in parts])
            for by, p in ((by_codes, codes), (by_floats, s.params))
        )
        errors = _errors(found, near)
        usual, most = np.median(errors), errors.max()
        same &= bool(usual <= _EXACT * np.abs(near).max())
        same &= bool(most <= _errors(near, exact[: len(near)]).max())
        told += [f"batch {size}: differs by {usual:.2g} (median), {most:.2g} (largest)"]
    words = "; ".join(told)
    return Cell("right" if same else "wrong", zoo.share_in_codes(s, codes), words)


def _errors(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The largest error of each example."""
    return np.abs(found - exact).reshape(len(found), -1).max(1)


def _variance(net: Network, **settings: Any) -> Cell:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found, sampled, errors = zoo.variances(net.subject(), DRAWS, **settings)
    warned = [str(w.message) for w in told if issubclass(w.category, MomentsWarning)]
    words = warned[0] if warned else ""
    ratios = found / sampled
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


def deploy(net: Network) -> Cell:
    """A bundle of this machine computes what XLA does, of its own examples and of others."""
    from jaxeff_export import deploy

    s = net.subject()
    with tempfile.TemporaryDirectory() as folder:
        bundle = deploy(s.f, (s.params, *s.args), path=Path(folder) / "bundle")
        check = bundle.check()
        cell = judged(apart(bundle.run(net.others), jax.jit(s.f)(s.params, net.others)), _EXACT)
    return cell if check.passed else Cell("wrong", float(check.max_abs_error), str(check))


def onnx(net: Network) -> Cell:
    """ONNX Runtime computes what XLA does, of other examples than the file was written with."""
    if importlib.util.find_spec("onnxruntime") is None:
        return Cell("absent", None, "onnxruntime isn't installed")
    from jaxeff_export import to_onnx

    s = net.subject()
    with tempfile.TemporaryDirectory() as folder:
        file = to_onnx(s.f, (s.params, *s.args), Path(folder) / "net.onnx")
        given = dict(zip(file.inputs, [np.asarray(net.others)], strict=True))
        (found,) = zoo.by_onnxruntime(file)(given)
    return judged(apart(found, jax.jit(s.f)(s.params, net.others)), _EXACT)


COLUMNS: Mapping[str, Callable[[Network], Cell]] = {
    of.__name__: of for of in (integer, moments, linear, pruned, deploy, onnx)
}
"""What is tried, by name."""
