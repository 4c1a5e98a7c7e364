"""Functions of values at the edges of dtypes, through files and back."""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.beyond.fuzz.drawing import Draw
from experiments.beyond.trials import Cell

_FLOATS = ("float32", "float16")
_INTEGERS = ("int8", "uint8", "int16", "int32", "uint32")
_NUMBERS = (
    0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 127.5, -128.5, 255.5, 256.0, 300.0, 32768.0,
    -32769.0, 65504.0, 65520.0, 3e9, -3e9, 1e10, np.inf, -np.inf, np.nan,
)  # fmt: skip

Step = tuple[str, Callable[[jax.Array], jax.Array]]


class Edged(NamedTuple):
    """A function of one array, in words and as one, and an array of values at edges."""

    words: str
    f: Callable[[Any, jax.Array], jax.Array]
    x: np.ndarray


def edged(seed: int) -> Edged:
    """Draws a function of one to three steps, all exact, and what it is tried on."""
    d = Draw(seed)
    dtype = d.one((*_FLOATS, *_FLOATS, *_INTEGERS))
    x = _values(dtype)
    steps: list[Step] = []
    like = jnp.dtype(dtype)
    while len(steps) < d.one((1, 2, 2, 3)):
        name, step = _step(d, like)
        like = jax.eval_shape(step, jax.ShapeDtypeStruct(x.shape, like)).dtype
        steps.append((name, step))

    def f(params: Any, x: jax.Array) -> jax.Array:
        del params
        for _, step in steps:
            x = step(x)
        return x

    return Edged(f"{dtype}: {', '.join(name for name, _ in steps)}", f, x)


def _values(dtype: str) -> np.ndarray:
    """Four rows of values, each with both ends of the dtype."""
    if dtype in _FLOATS:
        with np.errstate(over="ignore"):
            values = np.array(_NUMBERS, dtype)
        ends: list[Any] = [np.finfo(dtype).min, np.finfo(dtype).max, np.finfo(dtype).tiny]
    else:
        info = np.iinfo(dtype)
        values = np.array([v for v in (0, 1, 2, 3, 100, 127, 200, 255) if v <= info.max], dtype)
        ends = [info.min, info.max, info.max - 1, info.min + 1]
    row = np.concatenate([values, np.array(ends, dtype)])
    return np.stack([np.roll(row, i) for i in (0, 3, 7, 11)])


def _step(d: Draw, dtype: Any) -> Step:
    """Draws an operation that every engine computes exactly, or ought to."""
    floating = jnp.issubdtype(dtype, jnp.floating)
    to = d.one((*_FLOATS, *_INTEGERS))
    bound, power, axis = d.one((1, 6, 100)), d.one((2, 3)), d.one((0, 1))
    steps: dict[str, Callable[[jax.Array], jax.Array]] = {
        f"to {to}": lambda x: x.astype(to),
        f"clip {bound}": lambda x: jnp.clip(x, 0, bound),
        f"power {power}": lambda x: x**power,
        "abs": jnp.abs,
        "negative": jnp.negative,
        "sign": jnp.sign,
        f"maximum {bound}": lambda x: jnp.maximum(x, jnp.asarray(bound, x.dtype)),
        f"minimum {bound}": lambda x: jnp.minimum(x, jnp.asarray(bound, x.dtype)),
        "twice": lambda x: x + x,
        f"largest over {axis}": lambda x: x.max(axis, keepdims=True),
        f"argmax over {axis}": lambda x: x.argmax(axis, keepdims=True),
        f"argmin over {axis}": lambda x: x.argmin(axis, keepdims=True),
        "compared": lambda x: jnp.where(x > 1, x, jnp.zeros_like(x)),
        "transposed": lambda x: x.T,
    }
    if floating:
        steps |= {
            "round": jnp.round, "floor": jnp.floor, "ceil": jnp.ceil, "relu": jax.nn.relu,
            "is nan": lambda x: jnp.where(jnp.isnan(x), 1, x),
            "is finite": lambda x: jnp.where(jnp.isfinite(x), x, 0),
            "max pool": lambda x: jax.lax.reduce_window(
                x, jnp.asarray(-jnp.inf, x.dtype), jax.lax.max, (1, 2), (1, 2), "VALID"
            ),
        }  # fmt: skip
    name = d.one((f"to {to}", *steps))
    return name, steps[name]


def _same(of: Edged, outputs: Any, engine: str) -> Cell:
    """Judges a result by XLA's, entry by entry; zeros are equal, and so are all NaN."""
    outputs, wanted = np.asarray(outputs), np.asarray(jax.jit(of.f)({}, of.x))
    if outputs.shape != wanted.shape or outputs.dtype != wanted.dtype:
        words = f"{engine}: {outputs.dtype}{outputs.shape} for {wanted.dtype}{wanted.shape}"
        return Cell("wrong", None, f"{words}; {of.words}")
    floating = wanted.dtype.kind == "f"
    off = ~((outputs == wanted) | (np.isnan(outputs) & np.isnan(wanted) if floating else False))
    if not off.any():
        return Cell("right", 0.0, of.words)
    at = tuple(np.argwhere(off)[0])
    words = f"{engine}: {outputs[at]} for {wanted[at]} and {off.sum() - 1} more; {of.words}"
    return Cell("wrong", float(off.mean()), words)


def onnx(seed: int) -> Cell:
    """ONNX Runtime, and the function that is read back, compute what XLA does, to the bit."""
    if importlib.util.find_spec("onnxruntime") is None:
        return Cell("absent", None, "onnxruntime isn't installed")
    from jaxeff_export import to_onnx

    import jaxeff
    from experiments.beyond.zoo.cells import by_onnxruntime

    of = edged(seed)
    with tempfile.TemporaryDirectory() as folder:
        file = to_onnx(of.f, ({}, of.x), Path(folder) / "edges.onnx")
        (outputs,) = by_onnxruntime(file)(dict(zip(file.inputs, [of.x], strict=True)))
        f, params = jaxeff.functional(file.path)
        back = jax.jit(f)(params, of.x)
    cell = _same(of, outputs, "ONNX Runtime")
    return cell if cell.status == "wrong" else _same(of, jax.tree.leaves(back)[0], "read back")


def litert(seed: int) -> Cell:
    """LiteRT computes what XLA does, to the bit."""
    try:
        from ai_edge_litert.interpreter import Interpreter
        from jaxeff_export import to_litert
    except ImportError:
        return Cell("absent", None, "jaxeff[litert] isn't installed")

    of = edged(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edges.tflite"
        file = to_litert(of.f, ({}, of.x), path)
        outputs = Interpreter(str(path)).get_signature_runner()(**{file.inputs[0]: of.x})
        return _same(of, outputs[file.outputs[0]], "LiteRT")
