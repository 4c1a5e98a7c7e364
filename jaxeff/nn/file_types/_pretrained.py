"""`load_magika`: the classifier of file types with its published weights.

They come with a package of the registry, whose dependencies aren't needed:

    pip install jaxeff[weights]
    pip install --no-deps magika
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from jaxeff.core import Table, functional, path_like, validate
from jaxeff.nn.file_types._magika import Magika
from jaxeff.store import open_regular
from jaxeff.weights import WeightsError, load_weights, packaged_file

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
    from jaxeff.nn import file_tokens, load_magika

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
