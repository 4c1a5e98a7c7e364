"""Canonical programs of one model: a hash of what each transform makes of it.

A program is hashed as `store.describe_computation` reads it: equations, numbers and shapes, without
the names and places of Python functions. Beside it are hashes of what a transform says: sites,
kinds, channels, warnings, and a refusal's words.
"""

import hashlib
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jaxeff_export
import numpy as np

import jaxeff
from jaxeff import Additive, Crossbar, Gaussian, Int
from jaxeff.compression import calibrate
from jaxeff.ensembles import Members
from jaxeff.pruning import PlanError, Prune
from jaxeff.store import describe_computation

KEY = jax.random.key(0)
_LINEAR = "*:linear"
_TILE = Crossbar(rows=64, columns=64, output_bits=24, gain=0.03, signed=True)
_ADDRESSES = re.compile(r" at 0x[0-9a-f]+|(?<![\w.])/[^\s'\"`,;:()]+/(?=[^\s/])")
_SYMBOLS = re.compile(r"@[\w.$]+")
_LINES = re.compile(r"(?<=\.py):\d+(:\d+)?")  # a text above moves them
_WIDTHS = re.compile(r"[\s━─]+")  # a table's columns are as wide as its folders are long


class Model(NamedTuple):
    """A model as a pure function, with an example.

    Attributes:
        f: The function `f(params, *args)`.
        params: Its parameters.
        args: An example of its data.
    """

    f: Callable[..., Any]
    params: Any
    args: tuple[Any, ...]


def _short(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _program(f: Callable[..., Any], *args: Any) -> str:
    return str(describe_computation(f, *args)["hash"])[:16]


def _text(value: Any) -> str:
    """Returns a text without addresses, folders, line numbers and the widths of columns."""
    return _WIDTHS.sub(" ", _LINES.sub("", _ADDRESSES.sub("", str(value))))


def _posterior(m: Model) -> Any:
    return jax.tree.map(lambda w: Gaussian(w, (0.05 * w) ** 2), m.params)


def _last_linear(m: Model) -> str:
    sites = jaxeff.sites(m.f, m.params, *m.args)
    return [name for name, kind in zip(sites, sites.kinds, strict=True) if kind == "linear"][-1]


def _layers(m: Model) -> list[str]:
    sites = jaxeff.sites(m.f, m.params, *m.args)
    return [_short(*map(" ".join, zip(sites, sites.kinds, strict=True)))]


def _channels(m: Model) -> list[str]:
    return [_short(_text(jaxeff.channels(m.f, m.params, *m.args)))]


def _assumptions(m: Model) -> list[str]:
    return [_short(_text(jaxeff.assumptions(m.f, _posterior(m), *m.args)))]


def _functional(m: Model) -> list[str]:
    return [_program(m.f, m.params, *m.args)]


def _noisy(m: Model) -> list[str]:
    return [_program(jaxeff.noisy(m.f, {_LINEAR: Additive(0.1)}), KEY, m.params, *m.args)]


def _quantized(m: Model) -> list[str]:
    g = jaxeff.quantized(m.f, {_LINEAR: Int(8)})

    def total(params: Any, *args: Any) -> Any:
        return sum(leaf.sum() for leaf in jax.tree.leaves(g(params, *args)))

    slopes = jax.grad(total, allow_int=True)
    return [_program(g, m.params, *m.args), _program(slopes, m.params, *m.args)]


def _integer(m: Model) -> list[str]:
    # One call to calibrate: ranges are numbers of the program.
    spec = calibrate(m.f, m.params, [m.args], {_LINEAR: Int(8)}).spec
    g = jaxeff.integer(m.f, spec)
    codes = g.convert(m.params, *m.args)
    kept = [f"{name} {np.asarray(a).tobytes().hex()}" for name, a in sorted(codes.arrays.items())]
    return [_program(g, codes, *m.args), _short(*kept)]


def _moments(**settings: Any) -> Callable[[Model], list[str]]:
    return lambda m: [_program(jaxeff.moments(m.f, **settings), _posterior(m), *m.args)]


def _pruned(m: Model) -> list[str]:
    try:
        spec = {_LINEAR: Prune(0.5, crossed="zeros")}
        plan = jaxeff.prune_plan(m.f, m.params, m.args, spec)
    except PlanError:
        spec = {_LINEAR: Prune(0.5, crossed="keep")}
        plan = jaxeff.prune_plan(m.f, m.params, m.args, spec)
    small = plan.shrink(m.params)
    return [
        _program(jaxeff.pruned(m.f, plan), small, *m.args),
        _program(jaxeff.masked(m.f, plan), m.params, *m.args),
    ]


def _ensemble(m: Model) -> list[str]:
    g, members = jaxeff.ensemble(KEY, m.f, m.params, {_last_linear(m): Members(3)})
    return [_program(g, members, *m.args)]


def _lora(m: Model) -> list[str]:
    spec = {_LINEAR: jaxeff.LoRA(2)}
    factors = jaxeff.adapters.init_lora(KEY, m.f, m.params, m.args, spec)
    return [_program(jaxeff.lora(m.f, spec), m.params, factors, *m.args)]


def _analog(m: Model) -> list[str]:
    return [_program(jaxeff.analog(m.f, {_LINEAR: _TILE}), KEY, m.params, *m.args)]


def _photonic(m: Model) -> list[str]:
    light = {"*:pooling": jaxeff.ChaoticLight(noise=0.7, cap=4.0)}
    return [_program(jaxeff.photonic(m.f, light), KEY, m.params, *m.args)]


def _onnx(m: Model) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        jaxeff_export.to_onnx(m.f, (m.params, *m.args), path=path)
        return [hashlib.sha256(path.read_bytes()).hexdigest()[:16]]


def _stablehlo(m: Model) -> list[str]:
    lowered = jax.jit(jaxeff.moments(m.f, method="diagonal")).lower(_posterior(m), *m.args)
    # Functions are named after Python's: only which is which counts.
    order: dict[str, str] = {}
    text = _SYMBOLS.sub(lambda s: order.setdefault(s[0], f"@{len(order)}"), lowered.as_text())
    return [_short(text)]


TRANSFORMS: dict[str, Callable[[Model], list[str]]] = {
    "layers": _layers,
    "channels": _channels,
    "assumptions": _assumptions,
    "functional": _functional,
    "noisy": _noisy,
    "quantized": _quantized,
    "integer": _integer,
    "moments": _moments(),
    "moments, diagonal": _moments(method="diagonal"),
    "moments, linear": _moments(method="linear"),
    "pruned": _pruned,
    "ensemble": _ensemble,
    "lora": _lora,
    "analog": _analog,
    "photonic": _photonic,
    "onnx": _onnx,
    "stablehlo": _stablehlo,
}
"""By name: gives the hashes of a model's programs."""


def hashes(m: Model, name: str) -> list[str]:
    """Returns the hashes of one transform's programs of a model, and of what it says.

    An error of the library, or of anything else, is hashed by its class and words: a crash of today
    is a difference tomorrow.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            parts = TRANSFORMS[name](m)
        except Exception as error:
            # What a stranger's model raises is any class.
            parts = [f"{type(error).__name__} {_short(_text(error))}"]
    words = sorted({_text(w.message) for w in said})
    return [*parts, _short(*words)] if words else parts
