"""Data that people give and no network takes, and the calls that get them.

Public functions (`tried.CALLS`) get them at valid values (`valid.call_of`) of a network that is a
convolution and a dense layer here: images have an order of axes that can be wrong.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas

from jaxeff.bayes import Draws
from jaxeff.moment_propagation import Gaussian
from tests.bad_arguments import valid
from tests.bad_arguments.network import CLASSES, LOSS, PARAMS, N, X, Y, f

try:
    import torch
except ModuleNotFoundError:  # `make env` leaves it out
    TENSORS: dict[str, Callable[[Any], Any]] = {}
else:
    TENSORS = {"a tensor": torch.tensor}

GAUSSIANS = jax.tree.map(lambda w: Gaussian(w, 0.1 * jnp.abs(w)), PARAMS)
DRAWS = Draws({"fc2/kernel": jnp.ones((2, 4, 40, CLASSES))}, PARAMS)


def at_setting(setting: Any) -> Any:
    """The loss, whatever the setting."""
    return LOSS


LEFT_OUT = {"metric", "eval_fn", "on_epoch", "checkpoint", "folder"}
"""What isn't asked for: files, and functions that would take any data."""

SMALL = [
    (valid.f, f), (valid.PARAMS, PARAMS), (valid.X, X), (valid.DATA, (X, Y)), (valid.Y, Y),
    (valid.GAUSSIANS, GAUSSIANS), (valid.DRAWS, DRAWS), (valid.at_setting, at_setting),
    (valid.COMMON["loss"], LOSS),
]  # fmt: skip
"""What stands for the values of `valid`."""


def call_of(name: str, function: Any) -> dict[str, Any]:
    """A valid value for each parameter of a public function of a network."""

    def replaced(value: Any) -> Any:
        for old, new in SMALL:
            if value is old:
                return new
        # Lists and tuples of batches; settings and other named tuples stay.
        return type(value)(map(replaced, value)) if type(value) in (list, tuple) else value

    values = {name: replaced(value) for name, value in valid.call_of(name, function).items()}
    if name == "jaxeff.moments_check":
        values["params"] = GAUSSIANS
    if "init" in values and callable(values["init"]):
        values["init"] = lambda key: (PARAMS, None)
    return {**values, **dict.fromkeys(values.keys() & LEFT_OUT)}


INPUTS: dict[str, Callable[[Any], Any]] = {
    "one image": lambda x: x[0],
    "channels first": lambda x: x.transpose(0, 3, 1, 2),
    "channels first, one image": lambda x: x[0].transpose(2, 0, 1),
    "no channels": lambda x: x[..., 0],
    "flat": lambda x: x.reshape(N, -1),
    "flat, one image": lambda x: x[0].reshape(-1),
    "smaller images": lambda x: x[:, 1:],
    "three channels": lambda x: np.repeat(x, 3, -1),
    "a batch of batches": lambda x: x.reshape(3, 4, 4, 5, 1),
    "a list of images": list,
    "rows of numbers": lambda x: x.reshape(N, -1).tolist(),
    "a tuple in a tuple": lambda x: ((x,),),
    "two inputs": lambda x: (x, x),
    "labels": lambda x: Y,
    "a number": lambda x: 3.0,
    "None": lambda x: None,
    "text": lambda x: "images.npz",
    "words": lambda x: np.full(x.shape, "one"),
    "objects": lambda x: np.array([*x[:-1], None], object),
    "dates": lambda x: np.zeros(x.shape, "datetime64[s]"),
    "a frame": lambda x: pandas.DataFrame(x.reshape(N, -1)),
    "a series": lambda x: pandas.Series(x.reshape(-1)),
    **TENSORS,
    "a dictionary": lambda x: {"images": x},
    "none": lambda x: x[:0],
    "NaN": lambda x: np.where(x > 0.9, np.nan, x),
    "infinity": lambda x: np.where(x > 0.9, np.inf, x),
    "bytes": lambda x: (255 * x).astype(np.uint8),
    "a set": lambda x: {1, 2},
}
"""What comes in the place of images."""

LABELS: dict[str, Callable[[Any], Any]] = {
    "one-hot": lambda y: np.eye(CLASSES, dtype=np.float32)[y],
    "a column": lambda y: y[:, None],
    "fractions": lambda y: y + 0.5,
    "floats": lambda y: y.astype(np.float32),
    "beyond the classes": lambda y: y + 1,
    "negative": lambda y: y - 1,
    "too few": lambda y: y[:-1],
    "a list of numbers": lambda y: y.tolist(),
    "words": lambda y: np.array(["cat", "dog", "cow"])[y],
    "None": lambda y: None,
    "a series": lambda y: pandas.Series(y),
    **TENSORS,
}
"""What comes in the place of labels."""

DATA: dict[str, Callable[[Any, Any], Any]] = {
    "(y, x)": lambda x, y: (y, x),
    "images alone": lambda x, y: x,
    "pairs": lambda x, y: list(zip(x, y, strict=True)),
    "three": lambda x, y: (x, y, y),
    "by name": lambda x, y: {"images": x, "labels": y},
}
"""What comes in the place of both."""


def wrong_data(value: Any) -> dict[str, Any]:
    """What is wrong in the place of an input, of a tuple or list of them, or of a pair."""
    if isinstance(value, tuple) and len(value) == 2 and value[1] is Y:
        x, y = value
        return {
            **{f"images: {what}": (change(x), y) for what, change in INPUTS.items()},
            **{f"labels: {what}": (x, change(y)) for what, change in LABELS.items()},
            **{what: change(x, y) for what, change in DATA.items()},
        }
    if isinstance(value, list):
        return {what: [change(X)] for what, change in INPUTS.items()}
    return {what: change(X) for what, change in INPUTS.items()}


RIGHT: dict[str, str] = {
    "jaxeff.training.fit: images: NaN": "a loss may mask it; one that doesn't diverges",
    "jaxeff.training.fit: images: infinity": "the same",
    "jaxeff.training.sweep: images: NaN": "the same",
    "jaxeff.training.sweep: images: infinity": "the same",
    "jaxeff.robustness.learn_budget: images: NaN": "the same",
    "jaxeff.robustness.learn_budget: images: infinity": "the same",
}
"""What is taken, and why."""


def argument(parameter: str, name: str, value: Any, wrong: Any) -> Any:
    """What a parameter gets in the place of a valid value: inputs alone, or beside parameters."""
    if name.startswith("jaxeff_export"):
        return (PARAMS, wrong)
    return (wrong,) if parameter in ("args", "inputs") else wrong
