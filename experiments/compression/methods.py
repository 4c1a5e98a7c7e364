"""The methods that are compared: what each does to weights and to activations, in how many bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import optax

from jaxeff import compression as jc
from jaxeff import contrib

FLOAT = 32
ENDS = 8
"""Bits of the first and last layer under a method, as the papers have them."""

Make = Callable[[], jc.Quantizer]


@dataclass(frozen=True)
class Method:
    """A way to quantize the layers between the first and the last."""

    family: str  # methods that differ in bits alone
    weight_bits: float  # of a weight
    activation_bits: float = FLOAT  # of an activation
    weights: Make | None = None  # makes the quantizer of weights
    activations: Make | None = None  # that of activations
    learns: bool = True  # whether its numbers are learnt; else they are those of the calibration
    keyed: bool = False  # whether training draws random numbers
    penalty: bool = False  # whether it adds a penalty to the loss
    bounded: bool = False  # whether the bits that all weights take are held to `weight_bits` each
    # what comes after an update of the weights, from the number of updates and the ends
    after: Callable[[int, tuple[str, str]], optax.GradientTransformation] | None = None

    def spec(self, first: str, last: str) -> dict[str, Any]:
        """The setting of every site, given the first and the last; see `jaxeff.quantized`."""
        weights, activations = (make and make() for make in (self.weights, self.activations))
        inside = jc.LayerQuantization(weights, activations)
        end = jc.LSQ(ENDS) if self.learns else _grid(ENDS)
        ends = jc.LayerQuantization(weights and end, activations and end)
        return {"*:linear": inside, first: ends, last: ends}


def _grid(bits: int) -> jc.Uniform:
    return jc.Uniform(bits)


def _floating(form: str, bits: int) -> jc.Floating:
    return jc.Floating(form, scaling="power_of_two")


def _apart(
    family: str,
    bits: int,
    weights: Callable[[int], jc.Quantizer],
    activations: Callable[[int], jc.Quantizer],
    **rest: Any,
) -> Method:
    return Method(family, bits, bits, lambda: weights(bits), lambda: activations(bits), **rest)


def _both(family: str, bits: int, make: Callable[[int], jc.Quantizer], **rest: Any) -> Method:
    return _apart(family, bits, make, make, **rest)


def _weights(family: str, bits: float, make: Make, **rest: Any) -> Method:
    return Method(family, bits, FLOAT, make, None, **rest)


def _inq(steps: int, ends: tuple[str, str]) -> optax.GradientTransformation:
    every = max(1, steps // 5)  # four shares, and as long with all weights at their values

    def inner(params: Any) -> Any:
        def chosen(path: Any, leaf: Any) -> bool:
            names = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
            return names[-1] == "kernel" and names[0] not in ends

        return jax.tree_util.tree_map_with_path(chosen, params)

    return optax.masked(
        contrib.incremental_quantization(contrib.Incremental(4), contrib.share_schedule(every)),
        inner,
    )


METHODS: dict[str, Method] = {
    **{f"fixed {b}": _both("fixed", b, _grid, learns=False) for b in (8, 4, 3, 2)},
    **{f"lsq {b}": _both("lsq", b, jc.LSQ) for b in (8, 4, 3, 2)},
    **{
        f"lsq {b}, least error": _both("lsq, least error", b, lambda b: jc.LSQ(b, initial="error"))
        for b in (4, 2)
    },
    **{
        f"lsq+ {b}": _apart("lsq+", b, jc.LSQ, lambda b: jc.LSQ(b, asymmetric=True))
        for b in (4, 2)
    },
    **{f"pact {b}": _apart("pact", b, jc.DoReFa, jc.PACT, penalty=True) for b in (4, 2)},
    **{f"dorefa {b}": _both("dorefa", b, jc.DoReFa) for b in (4, 2, 1)},
    "dorefa 4, gradients 6": _both(
        "dorefa, gradients", 4, lambda b: jc.DoReFa(b, gradient_bits=6), keyed=True
    ),
    "stochastic 4": _both("stochastic", 4, jc.Stochastic, learns=False, keyed=True),
    **{
        f"fp8 {form}": _both("fp8", 8, partial(_floating, form), learns=False)
        for form in ("e4m3", "e5m2")
    },
    "width 4": Method(
        "learned width", 4, 4, lambda: contrib.LearnedWidth(8), lambda: jc.LSQ(4), bounded=True
    ),
    "powers, learned": Method(
        "learned powers", 4, 4, lambda: contrib.LearnedPowers(4, zero=True), lambda: jc.LSQ(4)
    ),
    "relaxed 4": _both("relaxed", 4, contrib.Relaxed, keyed=True),
    "relaxed 2": _both("relaxed", 2, contrib.Relaxed, keyed=True),
    "bayesian bits": Method(
        "bayesian bits", 8, 8,
        lambda: contrib.BayesianBits(price=2e-4), lambda: contrib.BayesianBits(price=2e-4),
        keyed=True, penalty=True,
    ),
    "lq-net 2": _both("lq-net", 2, contrib.LearnedBasis),
    "half-wave": Method(
        "half-wave", 1, 2, lambda: jc.Binary(follow=True), lambda: contrib.HalfWave(2)
    ),
    "sign weights": _weights("sign", 1, lambda: jc.Binary(per="none")),
    "drawn signs": _weights("drawn signs", 1, lambda: jc.Binary(stochastic=True), keyed=True),
    "xnor weights": _weights("xnor", 1, lambda: jc.Binary(follow=True)),
    "xnor, bi-real": _weights("bi-real", 1, lambda: jc.Binary(gradient="polynomial")),
    "abc 3 weights": _weights("abc", 3, lambda: contrib.BinaryBases(3, follow=True)),
    "abc 3 and 3": Method(
        "abc both", 3, 3,
        lambda: contrib.BinaryBases(3, follow=True), lambda: contrib.BinaryBases(3),
    ),
    "twn weights": _weights("twn", 2, jc.Ternary, learns=False),
    "ttq weights": _weights("ttq", 2, jc.TrainedTernary),
    "discrete weights": _weights("discrete", 2, contrib.Discrete, keyed=True, penalty=True),
    "powers 4 weights": _weights("powers", 4, lambda: jc.PowersOfTwo(4)),
    "inq 4 weights": _weights("inq", 4, lambda: contrib.Incremental(4), learns=False, after=_inq),
    "codebook 4": _weights("codebook", 4, lambda: jc.Codebook(4, coding="huffman")),
    "codebook 2": _weights("codebook", 2, lambda: jc.Codebook(2, coding="huffman")),
}  # fmt: skip
"""By name; those in whose name stands "weights" leave activations alone."""


def at_bits(weights: int, activations: int) -> Method:
    """Learned steps of some bits for weights and activations, 32 leaving one alone."""
    return Method(
        "lsq", weights, activations, (lambda: jc.LSQ(weights)) if weights < FLOAT else None,
        (lambda: jc.LSQ(activations)) if activations < FLOAT else None,
    )  # fmt: skip
