"""A step of a decoder with a cache that it continues, on engines, in CPU time of one thread."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
from flax import nnx

import jaxeff
from experiments.decoding.products import ALONE, SETTINGS, one_thread
from experiments.harness import Row
from experiments.timing import measure_rounds, metered
from jaxeff.compression import integer
from jaxeff.nn import Decoder, DecoderConfig

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
    depth, width, vocabulary = size
    config = DecoderConfig(vocabulary=vocabulary, width=width, hidden=width * 11 // 4 // 32 * 32,
                           depth=depth, heads=8, key_heads=8)  # fmt: skip
    f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(0)))

    def step(params: Any, tokens: Any, count: Any, cache: Any) -> Any:
        return f(params, tokens, cache, count)

    filled = jax.random.randint(jax.random.key(0), (1, slots // 2), 0, vocabulary)
    _, cache = jax.jit(f)(params, filled, config.empty_cache(1, slots))
    args = jnp.zeros((1, 1), jnp.int32), jnp.int32(1), cache
    with contextlib.ExitStack() as stack:
        g: Any
        calls = {("float32", "XLA"): _xla(step, params, args)}
        for name, setting in FORMATS.items():
            g, taken = step, params
            if setting is not None:
                g = integer(step, {"*:linear": setting}, dynamic=True)
                taken = g.convert(params, *args)
            bundle = jaxeff_export.deploy(g, (taken, *args), target=one_thread(), state=("cache",))
            session = stack.enter_context(bundle.on()).session()
            calls[name, "jaxeff"] = _restarted(session, slots - int(cache.length) - 1)
        if find_spec("onnxruntime") and find_spec("onnx"):
            calls |= _onnxruntime(step, params, args)
        meters = {key: metered(call, time.process_time) for key, call in calls.items()}
        times = measure_rounds(meters, rounds, 0.05)
    for form, engine in calls:
        least, bits = min(times[form, engine]), form.split(",")[0]
        peers = [min(times[key]) for key in calls if key[0] == bits and key[1] != "jaxeff"]
        yield {
            "format": form, "engine": engine, "size": "{}x{}".format(*size), "slots": slots,
            "ms": least, **({"ratio": least / min(peers)} if peers else {}),
        }  # fmt: skip


def _restarted(session: Any, room: int) -> Call:
    """Steps, begun again where the cache is about to be full."""
    token, one = np.zeros((1, 1), np.int32), np.int32(1)
    numbers = itertools.count(1)

    def call() -> None:
        if next(numbers) % room == 0:
            session.reset()
        session.step(token, one)

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


def _onnxruntime(step: Any, params: Any, args: tuple[Any, ...]) -> dict[tuple[str, str], Call]:
    # Optional packages, which the other engines are measured without.
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    found = {}
    with tempfile.TemporaryDirectory() as home:
        file = jaxeff_export.to_onnx(step, (params, *args), f"{home}/float32.onnx")
        eight, four = f"{home}/int8.onnx", f"{home}/int4.onnx"
        quantize_dynamic(file.path, eight, ["MatMul"], True, weight_type=QuantType.QInt8)
        files = {"float32": str(file.path), "int8": eight}
        if find_spec("onnx_ir") and find_spec("sympy"):  # which its quantizer of four bits needs
            from onnxruntime.quantization import matmul_nbits_quantizer as nbits

            # Accuracy level 4: activations in int8, which is the faster.
            model = onnx.load(file.path)
            by_group = nbits.MatMulNBitsQuantizer(model, 4, 32, True, accuracy_level=4)
            by_group.process()
            by_group.model.save_model_to_file(four)
            files["int4 g32"] = four
        for form, path in files.items():
            found[form, "onnxruntime"] = _started(path, file.inputs, args)
    return found


def _started(path: str, names: Sequence[str], args: tuple[Any, ...]) -> Call:
    """Opens a file on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    given = [value(np.asarray(leaf)) for leaf in jax.tree.leaves(args)]
    feeds = dict(zip(names, given, strict=True))
    # Values of its own memory: arguments aren't copied, and a new cache replaces the old one.
    return lambda: session.run_with_ort_values(None, feeds)


__all__ = ["FORMATS", "steps"]
