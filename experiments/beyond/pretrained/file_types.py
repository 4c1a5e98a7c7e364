"""Magika under every transform: accuracy on files of a disk, size, latency, what it never saw."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxeff
from experiments.beyond.pretrained.files import Files, read_files
from experiments.harness import Refused, Row
from experiments.timing import interleaved
from jaxeff import Additive, Int, bayes
from jaxeff import uncertainty as u
from jaxeff.compression import calibrate
from jaxeff.contrib import load_magika
from jaxeff.program.costs import inputs_of
from jaxeff.pruning import Prune
from jaxeff.weights import packaged_file

Logits = Callable[[Any, Any], Any]
_EIGHT = {"*:linear": Int(8)}
_FOUR = Int(4, activations=False, per="group", group=32, steps="float16")
_BATCH = 50


class Bench:
    """The network, labelled files in two halves, and files of types that it never saw.

    Args:
        folder: Same as for `read_files`.
        count: The same.
        seed: Of everything random.
    """

    def __init__(self, folder: str, count: int, seed: int) -> None:
        self.key = jax.random.key(seed)
        try:
            self.f, self.params, self.labels, _ = load_magika()
        except FileNotFoundError as error:
            raise Refused(str(error)) from error
        known, self.unseen = read_files(folder, count)
        if len(known.types) < 4 or not len(self.unseen.types):
            raise Refused("the folder has too few files of known or of other types")
        # Neighbours are of one extension: each half has all of them.
        self.fitted, self.tested = known.half(0, _BATCH), known.half(1, _BATCH)

    def numbers(self, files: Files) -> Any:
        """The types of files as places of logits."""
        return jnp.array([self.labels.index(label) for label in files.types])

    def logits(self, files: Files) -> Any:
        """The network's own."""
        return _all(self.f, self.params, files)

    @functools.cached_property
    def spec(self) -> Any:
        """Ranges of eight bits, from files that nothing is judged on."""
        return calibrate(self.f, self.params, [self.fitted.tokens[:_BATCH]], _EIGHT).spec

    @functools.cached_property
    def codes(self) -> tuple[Any, Any]:
        """The network in codes of eight bits, and its codes."""
        g = jaxeff.integer(self.f, self.spec)
        return g, g.convert(self.params, self.tested.tokens[:1])

    @functools.cached_property
    def laplace(self) -> Any:
        """A posterior of the last layer, its prior chosen by the likelihood of the fitted half.

        The evidence of a hundred files would choose a prior for a network of a hundred files.
        """
        found = self._posterior("kron")
        labels = self.numbers(self.fitted)
        priors = [
            dataclasses.replace(found, prior_precision=found.prior_precision * factor)
            for factor in np.logspace(0, 5, 11, dtype=np.float32)
        ]

        def loss(posterior: Any) -> float:
            said = jax.nn.log_softmax(_all(_probit, posterior, self.fitted))
            return float(u.nll_from_log(said, labels))

        return min(priors, key=loss)

    @functools.cached_property
    def diagonal(self) -> Any:
        """The same with independent weights, which a moment pass takes."""
        posterior = self._posterior("diag")
        return dataclasses.replace(posterior, prior_precision=self.laplace.prior_precision)

    def _posterior(self, structure: Any) -> Any:
        data = jnp.asarray(self.fitted.tokens), self.numbers(self.fitted)
        return bayes.laplace(
            self.key, self.f, self.params, data, "head", structure, batch_size=_BATCH, draws=1
        )


def methods(bench: Bench) -> Iterator[tuple[str, Logits, Any]]:
    """Every transform: its name, logits of its arrays and tokens, and the arrays."""
    f, params = bench.f, bench.params
    yield "float", f, params
    yield "8 bits, rounded", jaxeff.quantized(f, bench.spec), params
    yield "4-bit weights by 32", jaxeff.quantized(f, {"*:linear": _FOUR}), params
    for share in (0.1, 0.25, 0.5):
        plan = jaxeff.prune_plan(
            f, params, bench.fitted.tokens[:1], {"conv": Prune(share, crossed="left")}
        )
        yield f"{share:.0%} fewer channels", jaxeff.pruned(f, plan), plan.shrink(params)
    # A level is an argument, so that all are one program.
    noisy = partial(_noisy, f, bench.key)
    for level in (0.1, 0.3, 1.0):
        yield f"noise of {level:g}", noisy, (params, jnp.float32(level))
    scale = u.temperature_scale(bench.logits(bench.fitted), bench.numbers(bench.fitted))
    yield "tempered", u.tempered(f, scale), params
    yield "Laplace, last layer", _probit, bench.laplace


def _probit(posterior: Any, x: Any) -> Any:
    return u.probit_logits(posterior.marginals(x))


def _noisy(f: Any, key: Any, both: tuple[Any, Any], x: Any) -> Any:
    params, level = both
    return jaxeff.noisy(f, {"*:linear": Additive(level)})(key, params, x)


def judged(bench: Bench) -> Iterator[Row]:
    """Rows of methods, each against labels and against the network in float."""
    numbers = bench.numbers(bench.tested)
    truth, alone = np.asarray(numbers), bench.logits(bench.tested)
    probs = np.asarray(jax.nn.softmax(alone))
    if find_spec("onnxruntime"):
        theirs = _session().run(None, {"bytes": bench.tested.tokens})[0]
        # Probabilities: one of a billionth has no digits to compare.
        error = float(np.abs(probs - theirs).max() / theirs.max())
        yield {"method": "ONNX Runtime", "accuracy": float((theirs.argmax(-1) == truth).mean()),
               "error": error, "files": len(truth)}  # fmt: skip
    for name, logits, arrays in methods(bench):
        scores = _all(logits, arrays, bench.tested)
        said = np.asarray(jax.nn.softmax(scores))
        right = said.argmax(-1) == truth
        yield {
            "method": name, "accuracy": float(right.mean()), "files": len(truth),
            "agreement": float((said.argmax(-1) == probs.argmax(-1)).mean()),
            "nll": float(u.nll_from_log(jax.nn.log_softmax(scores), numbers)),
            "ece": float(u.ece(jnp.asarray(said), numbers)), 
            "bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(arrays)),
            "error_auroc": float(u.auroc(*(u.msp(scores[k]) for k in (right, ~right)))),
        }  # fmt: skip


def detected(bench: Bench) -> Iterator[Row]:
    """Rows of scores: how well each tells files of types that the network never saw."""
    sides = bench.tested, bench.unseen
    logits = [bench.logits(files) for files in sides]
    read, posterior = inputs_of(bench.f, "head"), bench.laplace
    fitted, *features = (_all(read, bench.params, files) for files in (bench.fitted, *sides))
    spread = [_all(lambda p, x: u.raw_variance(p.marginals(x)), posterior, s) for s in sides]
    scores = {
        "MSP": [u.msp(a) for a in logits], "max logit": [u.max_logit(a) for a in logits],
        "energy": [u.energy(a) for a in logits],
        "GEN": [u.generalized_entropy(a) for a in logits],
        "KNN": [u.knn(fitted, 5)(a) for a in features],
        "variance (Laplace)": spread,
    }  # fmt: skip
    for name, (inside, outside) in scores.items():
        yield {"score": name, "auroc": float(u.auroc(inside, outside)),
               "fpr95": float(u.fpr95(inside, outside)), "files": len(outside)}  # fmt: skip


def timed(bench: Bench, rounds: int) -> Iterator[Row]:
    """Rows of bundles for one core: answers, size, self-check, time over ONNX Runtime's."""
    # TVM loads in seconds, and only here.
    from jaxeff_export import deploy, resolve_target

    target = {**resolve_target("host"), "num-cores": 1}
    x = bench.tested.tokens[:1]
    truth, alone = np.asarray(bench.numbers(bench.tested)), bench.logits(bench.tested).argmax(-1)
    calls: dict[str, Callable[[], Any]] = {}
    results: dict[str, Row] = {}
    if find_spec("onnxruntime"):
        calls["ONNX Runtime"] = partial(_session(1).run, None, {"bytes": x})
        results["ONNX Runtime"] = {"size": _path().stat().st_size}
    with contextlib.ExitStack() as stack:
        for name, (g, taken) in {
            "float": (bench.f, bench.params), "8 bits, in codes": bench.codes,
            "moments, last layer": (jaxeff.moments(bench.f), bench.diagonal.to_gaussians()),
        }.items():  # fmt: skip
            bundle = deploy(g, (taken, x), target, check=False)
            run = stack.enter_context(bundle.on()).run
            calls[name] = partial(run, x)
            classes = np.stack([_mean(run(one[None])).argmax() for one in bench.tested.tokens])
            size = sum(int(facts["size"]) for facts in bundle.manifest.files.values())
            results[name] = {
                "accuracy": float((classes == truth).mean()), "size": size,
                "agreement": float((classes == np.asarray(alone)).mean()),
                "error": bundle.check().max_relative_error,
            }  # fmt: skip
        base = next(iter(calls))
        clock = time.process_time
        for name, of in interleaved(calls, rounds, relative_to=base, clock=clock).items():
            yield {"engine": name, **results[name], **of}


def _mean(logits: Any) -> Any:
    return logits.mean if isinstance(logits, jaxeff.Gaussian) else logits


_compiled = functools.cache(jax.jit)


def _all(f: Logits, arrays: Any, files: Files) -> Any:
    # Arrays are an argument: as constants of the program they would be folded for minutes.
    g = _compiled(f)
    return u.in_batches(lambda tokens: g(arrays, tokens), jnp.asarray(files.tokens), _BATCH)


def _path() -> Any:
    return packaged_file("magika", "models/standard_v3_3/model.onnx")


def _session(threads: int = 0) -> Any:
    import onnxruntime  # optional

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(_path(), options)
