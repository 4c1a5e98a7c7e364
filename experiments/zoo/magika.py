"""Magika, Google's classifier of file types, as a Flax model with its published weights.

    pip install magika
    python -m experiments.zoo.magika

The package ships its network as an ONNX file: an embedding of bytes, a convolution over groups of
four of them, the largest value over time, and a dense layer (Fratantonio et al., arXiv:2409.13768;
the layout is read from the file's graph). It prints how far the Flax model is from ONNX Runtime on
the files of this directory.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff

BYTES, END = 1024, 256
"""Bytes from either end of a file, and the token beyond a shorter one."""
_GRAPH = "jax2tf_get_logits_/pjit_get_logits_/MagikaV2"
_TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "embed/kernel": ("jax2tf_get_logits_/Const:0", ()),
    "embed/bias": (f"{_GRAPH}/Dense_0/Reshape:0", ()),
    "norm1/scale": (f"{_GRAPH}/LayerNorm_0/Reshape_2:0", ()),
    "norm1/bias": (f"{_GRAPH}/LayerNorm_0/Reshape_3:0", ()),
    "conv/kernel": (f"{_GRAPH}/Conv_0/transpose_3:0", (2, 1, 0)),
    "conv/bias": ("const_fold_opt__209", ()),
    "norm2/scale": (f"{_GRAPH}/LayerNorm_1/Reshape_2:0", ()),
    "norm2/bias": (f"{_GRAPH}/LayerNorm_1/Reshape_3:0", ()),
    "head/kernel": ("jax2tf_get_logits_/Const_24:0", ()),
    "head/bias": (f"{_GRAPH}/Dense_1/Reshape:0", ()),
}
"""The tensor of each parameter, and an order of its axes."""


class Magika(nnx.Module):
    """The network of the model ``standard_v3_3``: 214 types from 2048 bytes."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.embed = nnx.Linear(END + 1, 64, rngs=rngs)
        # Over positions, as the published network normalizes.
        self.norm1 = nnx.LayerNorm(512, reduction_axes=1, feature_axes=1, rngs=rngs)
        self.conv = nnx.Conv(256, 512, (5,), padding="VALID", rngs=rngs)
        self.norm2 = nnx.LayerNorm(512, rngs=rngs)
        self.head = nnx.Linear(512, 214, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns logits of ``[batch, 2048]`` tokens: bytes, or `END`."""
        x = nnx.gelu(self.embed(jax.nn.one_hot(tokens, END + 1)))
        x = nnx.gelu(self.conv(self.norm1(x.reshape(len(x), 512, 256))))
        return self.head(self.norm2(x.max(1)))


def network_file() -> Path | None:
    """Finds the network of the installed package, without importing it."""
    found = importlib.util.find_spec("magika")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "models" / "standard_v3_3" / "model.onnx"


def load(path: Path) -> tuple[Callable[..., Any], Any]:
    """Returns the model as `f(params, tokens)`, and its published parameters."""
    f, params = jaxeff.functional(Magika(nnx.Rngs(0)))

    def laid(order: tuple[int, ...], shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
        def reshaped(tensor: np.ndarray) -> np.ndarray:
            moved = tensor.squeeze(-1).transpose(order) if order else tensor
            return moved.reshape(shape)

        return reshaped

    rules = {}
    for name, (tensor, order) in _TENSORS.items():
        module, leaf = name.split("/")
        rules[name] = (tensor, laid(order, params[module][leaf].shape))
    return f, jaxeff.load_weights(params, path, rules, ignore=["*"]).params


def tokens_of(content: bytes) -> np.ndarray:
    """Reads the tokens of a file: its first and its last bytes, without blanks around them."""
    first, last = content[:4096].lstrip()[:BYTES], content[-4096:].rstrip()[-BYTES:]
    pad = [END] * BYTES
    return np.array([*first, *pad[len(first) :], *pad[len(last) :], *last], np.int32)


def main() -> None:
    """Compares the model with ONNX Runtime on the files of this directory."""
    path = network_file()
    if path is None:
        raise SystemExit("magika isn't installed")
    import onnxruntime

    files = [file for file in sorted(Path(__file__).parent.rglob("*.py")) if file.stat().st_size]
    tokens = np.stack([tokens_of(file.read_bytes()) for file in files])
    f, params = load(path)
    ours = np.asarray(jax.jit(lambda p, t: jax.nn.softmax(f(p, t)))(params, jnp.asarray(tokens)))
    (theirs,) = onnxruntime.InferenceSession(path).run(None, {"bytes": tokens})
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    print(f"{len(files)} files: probabilities differ by {error:.2g} of the largest")


if __name__ == "__main__":
    main()
