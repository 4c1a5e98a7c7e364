"""SmolLM2-135M in few bits: perplexity of docstrings, bundles that continue texts alone."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxeff
from experiments.harness import Refused, Row
from experiments.timing import interleaved
from experiments.tokens.texts import HELD_OUT, docstrings
from jaxeff import Int
from jaxeff import uncertainty as u
from jaxeff.compression import memory
from jaxeff.nn import PretrainedDecoder, load_decoder

PROMPT = "The capital of France is"


def _weights(bits: int, **more: Any) -> Int:
    return Int(bits, symmetric="weights", activations=False, **more)


_EIGHT = _weights(8)
_TABLE = {"embed": _EIGHT, "embed#1": _EIGHT}
"""The table of embeddings, which is also the head: a fifth of all parameters."""
_GROUPS = _weights(4, per="group", group=32, steps="float16")
FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "int8": {"*:linear": _EIGHT, **_TABLE},
    "int8, activations by token": {
        "*:linear": Int(8, symmetric="weights", activations_per="token"), **_TABLE
    },
    "int4": {"*:linear": _weights(4), **_TABLE},
    "int4 by 32": {"*:linear": _GROUPS, **_TABLE},
    "int4 by 32, with offsets": {
        "*:linear": Int(4, activations=False, per="group", group=32), **_TABLE
    },
}  # fmt: skip
"""The setting of each layer; tables have eight bits. The file's own weights have offsets."""


@functools.cache
def decoder() -> PretrainedDecoder:
    """Loads the decoder, once."""
    try:
        return load_decoder()
    except FileNotFoundError as error:
        raise Refused(str(error)) from error


def perplexity(name: str, windows: int, length: int) -> Row:
    """Judges next tokens of docstrings that come with Python, in windows without a past."""
    f, params, _, tokenizer, _ = decoder()
    tokens = np.array(tokenizer.encode(docstrings(HELD_OUT), special=False), np.int32)
    # From all over the text, the same for every format.
    starts = np.linspace(0, len(tokens) - length - 1, windows).astype(int)
    cut = tokens[starts[:, None] + np.arange(length + 1)[None]]
    spec = FORMATS[name]
    g = jaxeff.quantized(f, spec)

    @jax.jit
    def judge(params: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
        said = jax.nn.log_softmax(g(params, x[None])[0])
        entropy = -(jnp.exp(said) * said).sum(-1)
        return -jnp.take_along_axis(said, y[:, None], -1)[:, 0], entropy, said.argmax(-1) == y

    found = [judge(params, jnp.asarray(w[:-1]), jnp.asarray(w[1:])) for w in cut]
    nll, entropy, right = (np.concatenate(parts) for parts in zip(*found, strict=True))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    weights = float(memory(f, spec, params, cut[:1, :-1])) / size if spec else 32.0
    return {
        "format": name, "perplexity": float(np.exp(nll.mean())), "accuracy": float(right.mean()),
        "bits": weights, "tokens": len(nll),
        "error_auroc": float(u.auroc(jnp.asarray(entropy[right]), jnp.asarray(entropy[~right]))),
    }  # fmt: skip


def decoding(folder: Path, formats: Sequence[str], steps: int, rounds: int) -> Iterator[Row]:
    """Deploys formats for one core, lets each continue a text, and times tokens in turns."""
    # TVM loads in seconds, and only here.
    from jaxeff_export import Bundle, deploy, resolve_target

    f, params, config, tokenizer, _ = decoder()
    target = {**resolve_target("host"), "num-cores": 1}
    prompt = tokenizer.encode(PROMPT)
    cache = config.empty_cache(1, len(prompt) + steps)
    one = jnp.array([prompt[:1]], jnp.int32), jnp.int32(1), cache
    made: dict[str, Row] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for name in formats:
        place = folder / name.replace(" ", "-")
        g, taken = _converted(f, params, name, one)
        if not place.exists():
            step = functools.partial(_step, g)
            deploy(step, (taken, *one), target, place, state=("cache",), tokenizer=tokenizer)
        # From the folder alone, as a user of the bundle has it.
        bundle = Bundle.load(place)
        speak = functools.partial(_continued, bundle, prompt, steps)
        made[name] = {
            "bytes": sum(int(facts["size"]) for facts in bundle.manifest.files.values()),
            "error": bundle.check().max_relative_error,
            "continuation": " ".join(_text(bundle, speak()).split()),
        }
        calls[name] = speak
    for name, found in interleaved(
        calls, rounds, relative_to=formats[0], clock=time.process_time
    ).items():
        count = len(prompt) + steps
        yield {"format": name, **made[name], "per_second": count / found["ms"] * 1e3, **found}


def _step(g: Any, params: Any, tokens: Any, count: Any, cache: Any) -> Any:
    return g(params, tokens, cache, count)


def _converted(f: Any, params: Any, name: str, one: Any) -> tuple[Any, Any]:
    if not FORMATS[name]:
        return f, params
    tokens, count, cache = one
    g = jaxeff.integer(f, FORMATS[name], dynamic=True)
    return g, g.convert(params, tokens, cache, count)


def _text(bundle: Any, tokens: list[int]) -> str:
    return bundle.tokenizer.decode(tokens)


def _continued(bundle: Any, prompt: list[int], steps: int) -> list[int]:
    """Reads the prompt token by token, and takes the most probable ones."""
    session, drawn = bundle.session(), []
    for token in prompt:
        logits = session.step(np.array([[token]], np.int32), np.int32(1))
    for _ in range(steps):
        drawn.append(int(logits.argmax()))
        logits = session.step(np.array([drawn[-1:]], np.int32), np.int32(1))
    return drawn
