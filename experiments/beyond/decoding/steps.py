"""A step of a decoder with a cache that it continues, on engines, in CPU time of one thread."""

from __future__ import annotations

import contextlib
import itertools
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
from flax import nnx

import jaxeff
from experiments.beyond import onnx_steps
from experiments.beyond.decoding.products import ALONE, SETTINGS, one_thread
from experiments.harness import Row
from experiments.timing import measure_rounds, metered
from jaxeff.compression import integer
from jaxeff.contrib import Decoder, DecoderConfig

Call = Callable[[], Any]
FORMATS = {
    "float32": None,
    "int8": SETTINGS["int8"],
    "int4 g32": SETTINGS["int4 g32"],
    "int4 g32, weights alone": ALONE["int4 g32"],
}


def steps(size: tuple[int, int, int], slots: int, rounds: int) -> Iterator[Row]:
    """Times a step with half of the cache's slots filled, on all engines in turns.

    Args:
        size: Blocks, features and tokens of the decoder.
        slots: Slots of its cache.
        rounds: How often every engine is measured.
    """
    step, params, config = _decoder(size)
    filled = jax.random.randint(jax.random.key(0), (1, slots // 2), 0, size[2])
    empty = config.empty_cache(1, slots)
    _, cache = jax.jit(step)(params, filled, jnp.int32(slots // 2), empty)
    args = jnp.zeros((1, 1), jnp.int32), jnp.int32(1), cache
    for row in _measured(step, params, args, slots - int(cache.length) - 1, FORMATS, rounds):
        yield {"size": "{}x{}".format(*size), "slots": slots, **row}


def prefill(size: tuple[int, int, int], tokens: int, rounds: int) -> Iterator[Row]:
    """Times the reading of a prompt into an empty cache, on all engines in turns.

    Args:
        size: Same as for `steps`.
        tokens: Tokens of the prompt.
        rounds: The same.
    """
    step, params, config = _decoder(size)
    prompt = jax.random.randint(jax.random.key(0), (1, tokens), 0, size[2])
    args = prompt, jnp.int32(tokens), config.empty_cache(1, tokens)
    formats = {name: FORMATS[name] for name in ("float32", "int8")}
    for row in _measured(step, params, args, 1, formats, rounds):
        yield {"size": "{}x{}".format(*size), "prompt": tokens, **row}


def overheads(depth: int, rounds: int) -> Iterator[Row]:
    """Times steps of narrow decoders, which have next to nothing to compute.

    Args:
        depth: Blocks of the deeper one.
        rounds: How often each is measured.
    """
    calls = {}
    with contextlib.ExitStack() as stack:
        for blocks in (1, depth):
            step, params, config = _decoder((blocks, 32, 64))
            args = jnp.zeros((1, 1), jnp.int32), jnp.int32(1), config.empty_cache(1, 32)
            bundle = jaxeff_export.deploy(
                step, (params, *args), target=one_thread(), state=("cache",)
            )
            calls[blocks] = restarted(stack.enter_context(bundle.on()).session(), args, 31)
        meters = {blocks: metered(call, time.process_time) for blocks, call in calls.items()}
        times = measure_rounds(meters, rounds)
    for blocks, each in times.items():
        yield {"size": f"{blocks}x32", "ms": min(each)}


def _decoder(size: tuple[int, int, int]) -> tuple[Any, Any, DecoderConfig]:
    """Makes a step of a decoder with random weights, whose first argument they are."""
    depth, width, vocabulary = size
    config = DecoderConfig(vocabulary=vocabulary, width=width, hidden=width * 11 // 4 // 32 * 32,
                           depth=depth, heads=8, key_heads=8)  # fmt: skip
    f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(0)))

    def step(params: Any, tokens: Any, count: Any, cache: Any) -> Any:
        return f(params, tokens, cache, count)

    return step, params, config


def _measured(
    step: Any, params: Any, args: Any, room: int, formats: Mapping[str, Any], rounds: int
) -> Iterator[Row]:
    """Times a step on all engines; ours begins anew after so many calls."""
    compiled: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        g: Any
        calls = {("float32", "XLA"): _xla(step, params, args)}
        for name, setting in formats.items():
            g, taken = step, params
            if setting is not None:
                g = integer(step, {"*:linear": setting}, dynamic=True)
                taken = g.convert(params, *args)
            start = _processor_seconds()
            bundle = jaxeff_export.deploy(g, (taken, *args), target=one_thread(), state=("cache",))
            compiled[name] = _processor_seconds() - start
            session = stack.enter_context(bundle.on()).session()
            calls[name, "jaxeff"] = restarted(session, args, room)
        if find_spec("onnxruntime") and find_spec("onnx"):
            calls |= _onnxruntime(step, params, args, formats)
        meters = {key: metered(call, time.process_time) for key, call in calls.items()}
        times = measure_rounds(meters, rounds, 0.05)
    for form, engine in calls:
        least, bits = min(times[form, engine]), form.split(",")[0]
        peers = [min(times[key]) for key in calls if key[0] == bits and key[1] != "jaxeff"]
        yield {
            "format": form, "engine": engine, "ms": least,
            **({"ratio": least / min(peers)} if peers else {}),
            **({"compile_s": compiled[form]} if engine == "jaxeff" else {}),
        }  # fmt: skip


def _processor_seconds() -> float:
    """Reads the time of this process and of those it started: the linker is one."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def restarted(session: Any, args: Any, room: int) -> Call:
    """Steps, begun again where the cache is about to be full."""
    tokens, count = (np.asarray(each) for each in args[:2])
    numbers = itertools.count(1)

    def call() -> None:
        if next(numbers) % room == 0:
            session.reset()
        session.step(tokens, count)

    return call


def _xla(step: Any, params: Any, args: tuple[Any, ...]) -> Call:
    """Steps with a cache that XLA may write over."""
    run = jax.jit(step, donate_argnums=3)
    tokens, count, cache = args
    kept = [jax.tree.map(jnp.copy, cache)]

    def call() -> None:
        logits, made = run(params, tokens, count, kept.pop())
        # Every step is the first after the prompt: the engines' caches stay as full.
        kept.append(made._replace(length=jnp.array(cache.length)))
        logits.block_until_ready()

    return call


def _onnxruntime(
    step: Any, params: Any, args: Any, formats: Mapping[str, Any]
) -> dict[tuple[str, str], Call]:
    named = {"float32": "float32", "int8": "int8", "int4": "int4 g32"}
    forms = tuple(form for form, name in named.items() if name in formats)
    with tempfile.TemporaryDirectory() as home:
        files = onnx_steps.written(step, (params, *args), Path(home), forms)
        return {
            (named[form], "onnxruntime"): _started(str(path), files.inputs, args)
            for form, path in files.paths.items()
        }


def _started(path: str, names: Sequence[str], args: tuple[Any, ...]) -> Call:
    """Opens a file on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    values = [value(np.asarray(leaf)) for leaf in jax.tree.leaves(args)]
    feeds = dict(zip(names, values, strict=True))
    # Values of its own memory: arguments aren't copied, and a new cache replaces the old one.
    return lambda: session.run_with_ort_values(None, feeds)


__all__ = ["FORMATS", "overheads", "prefill", "steps"]
