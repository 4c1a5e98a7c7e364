"""Magika: a classifier of file types from their bytes, with the weights that Google published.

```python
import jax.numpy as jnp
from flax import nnx

import jaxeff
from jaxeff.contrib import Magika, file_tokens

f, params = jaxeff.functional(Magika(rngs=nnx.Rngs(0)))
tokens = jnp.stack([file_tokens(b"import os")])               # [1, 2048]
logits = f(params, tokens)                                     # [1, 214]
```

The network (Fratantonio et al., arXiv 2409.13768) is an embedding of bytes, a convolution over
groups of four of them, the largest value over positions, and a dense layer; the layout is that of
the graph of the published model `standard_v3_3`.

`load_magika()` gives the function, the published parameters and the names of the types. They come
with a package of the registry, whose dependencies aren't needed:

    pip install jaxeff[weights]
    pip install --no-deps magika
"""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxeff.core import Table, functional, instance_of, path_like, validate
from jaxeff.store import open_regular
from jaxeff.weights import WeightsError, load_weights, packaged_file

_BYTES, _END = 1024, 256  # bytes of either end of a file; the token beyond those of a shorter one
_BLOCK = 4096  # blanks are looked for in so many bytes of either end
_GROUP = 4  # bytes that stand side by side at a position of the convolution


class Magika(nnx.Module):
    """``embed``, ``norm1``, ``conv``, ``norm2``, ``head``; 214 types from 2048 bytes by default."""

    def __init__(
        self,
        types: int = 214,
        length: int = 2 * _BYTES,
        width: int = 64,
        channels: int = 512,
        *,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
            types: Number of file types.
            length: Number of tokens, a multiple of 4.
            width: Features of a token.
            channels: Outputs of the convolution.
            rngs: Keys for the initial parameters.
        """
        self.embed = nnx.Embed(_END + 1, width, rngs=rngs)
        self.shift = nnx.Param(jnp.zeros((1, 1, width)))
        # Over positions, not over features, as the published network normalizes.
        self.norm1 = nnx.LayerNorm(length // _GROUP, reduction_axes=1, feature_axes=1, rngs=rngs)
        self.conv = nnx.Conv(_GROUP * width, channels, (5,), padding="VALID", rngs=rngs)
        self.norm2 = nnx.LayerNorm(channels, rngs=rngs)
        self.head = nnx.Linear(channels, types, rngs=rngs)

    def __call__(self, tokens: Int[Array, "batch length"]) -> Float[Array, "batch types"]:
        """Returns the logits of files, each given by the tokens of `file_tokens`."""
        x = nnx.gelu(self.embed(tokens) + self.shift[...])
        x = x.reshape(len(x), -1, _GROUP * x.shape[-1])
        x = nnx.gelu(self.conv(self.norm1(x)))
        return self.head(self.norm2(x.max(1)))


@validate(content=instance_of(bytes))
def file_tokens(content: bytes) -> Int[np.ndarray, " 2048"]:
    """Gives the tokens that `Magika` reads of a file.

    Args:
        content: The file's bytes; the first and the last 4096 are enough.

    Returns:
        The first and the last 1024 bytes without blanks around them, int32; 256 where a file is
        shorter.

    ```python
    from jaxeff.contrib import file_tokens

    print(file_tokens(b"  import os ")[:10], file_tokens(b"")[0])
    ```
    """
    first, last = content[:_BLOCK].lstrip()[:_BYTES], content[-_BLOCK:].rstrip()[-_BYTES:]
    tokens = np.full(2 * _BYTES, _END, np.int32)
    tokens[: len(first)] = np.frombuffer(first, np.uint8)
    tokens[2 * _BYTES - len(last) :] = np.frombuffer(last, np.uint8)
    return tokens


_MOST_TEXT = 1 << 20  # bytes of the file of names
_GRAPH = "jax2tf_get_logits_"
_NETWORK = f"{_GRAPH}/pjit_get_logits_/MagikaV2"
_TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "embed/embedding": (f"{_GRAPH}/Const:0", (0, 1)),
    "shift": (f"{_NETWORK}/Dense_0/Reshape:0", (0, 1, 2)),
    "norm1/scale": (f"{_NETWORK}/LayerNorm_0/Reshape_2:0", (1,)),
    "norm1/bias": (f"{_NETWORK}/LayerNorm_0/Reshape_3:0", (1,)),
    "conv/kernel": (f"{_NETWORK}/Conv_0/transpose_3:0", (2, 1, 0)),
    "conv/bias": ("const_fold_opt__209", (1,)),
    "norm2/scale": (f"{_NETWORK}/LayerNorm_1/Reshape_2:0", (1,)),
    "norm2/bias": (f"{_NETWORK}/LayerNorm_1/Reshape_3:0", (1,)),
    "head/kernel": (f"{_GRAPH}/Const_24:0", (0, 1)),
    "head/bias": (f"{_NETWORK}/Dense_1/Reshape:0", (1,)),
}
"""The tensor of each parameter, and those of its axes that are the parameter's, in order."""


class PretrainedMagika(NamedTuple):
    """What `load_magika` returns.

    Attributes:
        f: `f(params, tokens)`, as `Magika` computes.
        params: The parameters, float32.
        labels: The names of the types, in the order of logits.
        pairs: A table of parameters and tensors, to print.
    """

    f: Callable[..., Any]
    params: dict[str, Any]
    labels: tuple[str, ...]
    pairs: Table


@validate(path=path_like)
def load_magika(path: str | os.PathLike[str] | None = None) -> PretrainedMagika:
    """Reads Magika's model `standard_v3_3` from its ONNX file.

    Args:
        path: The file, with `config.min.json` beside it; without one, that of the installed package
            `magika`. It isn't imported, and nothing is downloaded.

    Raises:
        FileNotFoundError: A file isn't there, or the package isn't installed.
        ImportError: The package `onnx` isn't there (`jaxeff[weights]`).
        WeightsError: A file is damaged or of another model, or the two are of different ones.

    ```python
    from pathlib import Path

    import numpy as np
    from jaxeff.contrib import file_tokens, load_magika

    try:
        f, params, labels, _ = load_magika()
        tokens = np.stack([file_tokens(Path(np.__file__).read_bytes())])
        print(labels[f(params, tokens)[0].argmax()])               # python
    except FileNotFoundError as error:
        print(error)                                               # how to install the file
    ```
    """
    if path is None:
        path = packaged_file("magika", "models/standard_v3_3/model.onnx")
    path = Path(path)
    labels = _read_labels(path.with_name("config.min.json"))
    # Shapes are enough: the file has all values.
    f, params = functional(nnx.eval_shape(lambda: Magika(len(labels), rngs=nnx.Rngs(0))))
    rules = {name: (tensor, _laid(axes)) for name, (tensor, axes) in _TENSORS.items()}
    # What is left are constants of the graph: shapes, ranges, parts of formulas.
    params, pairs = load_weights(params, path, rules, ignore=["*"])
    return PretrainedMagika(f, params, labels, pairs)


def _laid(axes: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
    """Makes a function that takes a tensor's axes in an order, and drops the others, of size 1."""

    def transposed(tensor: np.ndarray) -> np.ndarray:
        kept = [tensor.shape[axis] for axis in axes]
        if math.prod(kept) != tensor.size:
            raise ValueError(f"it has the shape {list(tensor.shape)}")
        rest = [axis for axis in range(tensor.ndim) if axis not in axes]
        return tensor.transpose(*axes, *rest).reshape(kept)

    return transposed


def _read_labels(path: Path) -> tuple[str, ...]:
    if not path.exists():
        raise FileNotFoundError(f"load_magika: there is no file {path}, which names the types.")
    try:
        with open_regular(path) as (file, _):
            said = json.loads(file.read(_MOST_TEXT))
        labels = said["target_labels_space"]
        expected = {"beg_size": 1024, "mid_size": 0, "end_size": 1024, "padding_token": 256}
        differing = [name for name, value in expected.items() if said[name] != value]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsError(f"load_magika: {path} is damaged, or of another model.") from error
    if differing:
        raise WeightsError(
            f"load_magika: {path} is of another model: {differing[0]} is {said[differing[0]]}, "
            f"not {expected[differing[0]]}."
        )
    named = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    if not named or not 0 < len(labels) == len(set(labels)):
        raise WeightsError(f"load_magika: {path} doesn't name its types one by one.")
    return tuple(labels)
