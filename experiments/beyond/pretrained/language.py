"""SmolLM2-135M in few bits: perplexity of docstrings, bundles that continue texts alone."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxeff
from experiments import engines
from experiments.beyond.onnx_steps import greedy
from experiments.beyond.pretrained.formats import FORMATS, METHODS
from experiments.beyond.tokens.texts import HELD_OUT, LEARNT, docstrings
from experiments.harness import Refused, Row
from experiments.timing import interleaved
from jaxeff import uncertainty as u
from jaxeff.contrib import PretrainedDecoder, load_decoder

PROMPT = "The capital of France is"
PEERS = {
    "ggml": "llama.cpp", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "iree": "IREE",
}  # fmt: skip
"""Engines that continue the text beside our bundles."""
_WORDS = 200  # of an engine's error
_CALIBRATION, _TOGETHER = 8, 4  # windows that corrections see, and those of one call


@functools.cache
def decoder() -> PretrainedDecoder:
    """Loads the decoder, once."""
    try:
        return load_decoder()
    except FileNotFoundError as error:
        raise Refused(str(error)) from error


@functools.cache
def _tokens(modules: tuple[str, ...], windows: int, length: int) -> np.ndarray:
    """Cuts windows from all over the docstrings, the same for every format."""
    text = docstrings(modules)
    tokens = np.array(decoder().tokenizer.encode(text, special=False), np.int32)
    starts = np.linspace(0, len(tokens) - length - 1, windows).astype(int)
    return tokens[starts[:, None] + np.arange(length + 1)[None]]


def perplexity(name: str, windows: int, length: int) -> Row:
    """Judges next tokens of docstrings that come with Python, in windows without a past.

    What is corrected by data has seen other modules' docstrings.
    """
    f, params = decoder()[:2]
    cut = _tokens(HELD_OUT, windows, length)
    fitted, spec, bits = METHODS[name](f, params, _tokens(LEARNT, _CALIBRATION, length)[:, :-1])
    g = jaxeff.quantized(f, spec)

    @jax.jit
    def judge(params: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
        said = jax.nn.log_softmax(g(params, x))
        entropy = -(jnp.exp(said) * said).sum(-1)
        return -jnp.take_along_axis(said, y[..., None], -1)[..., 0], entropy, said.argmax(-1) == y

    # Weights are rounded anew in every call, so that several windows share one.
    batches = np.array_split(cut, range(_TOGETHER, len(cut), _TOGETHER))
    judgements = [judge(fitted, w[:, :-1], w[:, 1:]) for w in batches]
    nll, entropy, right = (
        np.concatenate([np.ravel(part) for part in parts])
        for parts in zip(*judgements, strict=True)
    )
    return {
        "format": name, "perplexity": float(np.exp(nll.mean())), "accuracy": float(right.mean()),
        "bits": bits, "tokens": len(nll),
        "error_auroc": float(u.auroc(jnp.asarray(entropy[right]), jnp.asarray(entropy[~right]))),
    }  # fmt: skip


def decoding(folder: Path, formats: Sequence[str], steps: int, rounds: int) -> Iterator[Row]:
    """Deploys formats for one core, lets each continue a text, and times tokens in turns."""
    # TVM loads in seconds, and only here.
    from jaxeff_export import Bundle, deploy, resolve_target

    f, params, _, tokenizer, _ = decoder()
    target = {**resolve_target("host"), "num-cores": 1}
    prompt = tokenizer.encode(PROMPT)
    one = first_arguments(prompt, steps)
    results: dict[tuple[str, str], Row] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for name in formats:
        place = folder / name.replace(" ", "-")
        g, taken = converted(f, params, name, one)
        if not place.exists():
            step = functools.partial(step_of, g)
            deploy(
                step,
                (taken, *one),
                target,
                place,
                state=("cache",),
                tokenizer=tokenizer,
                check=False,
            )
        # From the folder alone, as a user of the bundle has it.
        bundle = Bundle.load(place)
        speak = functools.partial(_continued, bundle, prompt, steps)
        results[name, "jaxeff"] = {
            "bytes": sum(int(facts["size"]) for facts in bundle.manifest.files.values()),
            "error": bundle.check().max_relative_error,
            "continuation": " ".join(_text(bundle, speak()).split()),
        }
        calls["|".join((name, "jaxeff"))] = speak
    refused: list[Row] = []
    # Other engines have files of their own, of the same numbers, rounded by themselves.
    for engine, name in itertools.product(engines.available(PEERS), formats):
        peer = engines.load("experiments.beyond.pretrained", engine)
        try:
            continued, size = peer.continuing(folder, name, PROMPT, steps)
            text = " ".join(continued().split())
        except Exception as error:  # of any kind: what an engine says is the row
            words = " ".join(str(error).split())[:_WORDS]
            refused.append({"format": name, "engine": PEERS[engine], "refused": words})
            continue
        results[name, PEERS[engine]] = {"bytes": size, "continuation": text}
        calls["|".join((name, PEERS[engine]))] = continued
    first = "|".join((formats[0], "jaxeff"))
    timed = interleaved(calls, rounds, relative_to=first, clock=time.process_time)
    for key, found in timed.items():
        name, engine = key.split("|")
        count = len(prompt) + steps
        yield {"format": name, "engine": engine, **results[name, engine],
               "per_second": count / found["ms"] * 1e3, **found}  # fmt: skip
    yield from refused


def first_arguments(prompt: Sequence[int], steps: int) -> tuple[Any, Any, Any]:
    """Makes the arguments of a first step: a token, one, and a cache with room for all others."""
    cache = decoder().config.empty_cache(1, len(prompt) + steps)
    return jnp.array([prompt[:1]], jnp.int32), jnp.int32(1), cache


def step_of(g: Any, params: Any, tokens: Any, count: Any, cache: Any) -> Any:
    """Orders arguments as a bundle has them: what is kept comes last."""
    return g(params, tokens, cache, count)


def converted(f: Any, params: Any, name: str, one: Any) -> tuple[Any, Any]:
    """Returns the decoder in a format, and its codes."""
    if not FORMATS[name]:
        return f, params
    tokens, count, cache = one
    g = jaxeff.integer(f, FORMATS[name], dynamic=True)
    return g, g.convert(params, tokens, cache, count)


def _text(bundle: Any, tokens: list[int]) -> str:
    return bundle.tokenizer.decode(tokens)


def _continued(bundle: Any, prompt: list[int], steps: int) -> list[int]:
    """Reads the prompt token by token, and takes the most probable ones."""
    session, one = bundle.session(), np.int32(1)
    return list(
        greedy(lambda token: session.step(np.array([[token]], np.int32), one), prompt, steps)
    )
