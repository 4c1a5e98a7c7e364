"""Every elementwise operation in every type, at the values where implementations differ.

Infinities, NaN, signed zeros, extreme integers, shifts beyond the width, halves, and random bits,
in all pairs. Nothing with subnormal numbers, which XLA's CPU threads take for zero in some
operations, and no x + 0, which XLA takes for x.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.conformance.harnesses import Case

INTEGERS = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
TYPES = ["bool", *INTEGERS, *FLOATS]

_COMPARED = {
    f"lax.{name}": getattr(lax, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "max", "min")
}
_NAMES = {
    1: {
        "float": "abs neg sign floor ceil sqrt rsqrt cbrt exp exp2 expm1 log log1p sin cos tan "
        "tanh logistic asin acos atan sinh cosh asinh acosh atanh erf erfc erf_inv lgamma digamma "
        "bessel_i0e bessel_i1e is_finite square",
        "int": "abs neg sign bitwise_not population_count clz square",
        "bool": "bitwise_not",
    },
    2: {
        "float": "add sub mul div rem pow atan2 nextafter eq ne lt le gt ge max min",
        "int": "add sub mul div rem bitwise_and bitwise_or bitwise_xor shift_left "
        "shift_right_logical shift_right_arithmetic eq ne lt le gt ge max min",
        "bool": "bitwise_and bitwise_or bitwise_xor eq ne lt le gt ge max min",
    },
}
_VARIANTS: dict[int, dict[str, dict[str, Callable]]] = {
    1: {
        "float": {
            "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
            "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
            **{f"integer_pow_{n}": partial(lax.integer_pow, y=n) for n in (-1, 0, 2, 5)},
            **{
                f"reduce_precision_{e}_{m}": partial(
                    lax.reduce_precision, exponent_bits=e, mantissa_bits=m
                )
                for e, m in ((5, 10), (8, 7), (4, 3), (5, 2), (3, 0), (8, 23), (11, 52))
            },
            "x_minus_x": lambda x: x - x,
            "x_over_x": lambda x: x / x,
            "x_ne_x": lambda x: x != x,
            "zero_times_x": lambda x: x * 0,
            "zero_minus_x": lambda x: 0 - x,
            "relu": lambda x: jnp.maximum(x, 0),
            "x_max_x": lambda x: jnp.maximum(x, x),
        },
        "int": {f"integer_pow_{n}": partial(lax.integer_pow, y=n) for n in (0, 2, 5)},
        "bool": {},
    },
    2: {
        "float": {"eq_to": lax.eq_to_p.bind, "lt_to": lax.lt_to_p.bind, "le_to": lax.le_to_p.bind},
        "int": {},
        "bool": {},
    },
}


def cases() -> dict[str, Case]:
    """All of them, by name."""
    found = [*_unary(), *_binary(), *_ternary(), *_conversions(), *_bitcasts()]
    return {case.name: case for case in found}


def _operations(arity: int, kind: str) -> Iterator[tuple[str, Callable]]:
    for name in _NAMES[arity][kind].split():
        yield name, getattr(lax, name)
    yield from _VARIANTS[arity][kind].items()


def _unary() -> Iterator[Case]:
    for dtype in TYPES:
        for name, function in _operations(1, _kind(dtype)):
            if dtype.startswith("uint") and name in ("neg", "abs"):
                continue
            yield _case(name, dtype, function, partial(_lined, dtype, 1))


def _binary() -> Iterator[Case]:
    for dtype in TYPES:
        for name, function in _operations(2, _kind(dtype)):
            yield _case(name, dtype, function, partial(_lined, dtype, 2))
        if dtype in INTEGERS:
            for exponent in ("int32", "uint8"):
                arguments = partial(_power_arguments, dtype, exponent)
                yield _case("pow", f"{dtype}_{exponent}", lax.pow, arguments)
            constants: list[tuple[str, Callable[[Any], Any]]] = [
                ("div", lambda x: lax.div(x, jnp.full_like(x, 3))),
                ("rem", lambda x: lax.rem(x, jnp.full_like(x, 7))),
                ("mul", lambda x: x * 3),
            ]
            for name, function in constants:
                yield _case(f"{name}_constant", dtype, function, partial(_lined, dtype, 1))


def _ternary() -> Iterator[Case]:
    for dtype in TYPES:
        yield _case(
            "select", dtype, lambda a, b: lax.select(a < b, a, b), partial(_lined, dtype, 2)
        )
        yield _case("clamp", dtype, lambda a, b, c: lax.clamp(a, b, c), partial(_lined, dtype, 3))
        yield _case("select_n", dtype, _choose, partial(_lined, dtype, 3))


def _choose(a: Any, b: Any, c: Any) -> Any:
    return lax.select_n((a != b).astype(jnp.int32) + (b != c), a, b, c)


def _conversions() -> Iterator[Case]:
    for source, target in product(TYPES, TYPES):
        function = partial(lax.convert_element_type, new_dtype=target)
        yield _case("convert", f"{source}_{target}", function, partial(_lined, source, 1))


def _bitcasts() -> Iterator[Case]:
    types = [t for t in TYPES if t != "bool"]
    for source, target in product(types, types):
        arguments = partial(_bit_patterns, source, target)
        function = partial(lax.bitcast_convert_type, new_dtype=target)
        yield _case("bitcast", f"{source}_{target}", function, arguments)


def _case(name: str, what: str, function: Callable, arguments: Callable) -> Case:
    return Case(name, f"{name}_{what}", lambda: (function, arguments()))


def _kind(dtype: str) -> str:
    return "bool" if dtype == "bool" else "float" if "float" in dtype else "int"


def special_values(dtype: str) -> np.ndarray:
    """The values of a type where implementations differ."""
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        info, bits = np.iinfo(dtype), np.iinfo(dtype).bits
        near = {info.min, info.min + 1, info.max, info.max - 1, info.max // 2, -3, -2, -1, 7, 100}
        near |= {0, 1, 2, 3, bits - 1, bits, bits + 1}
        return np.array(sorted(v for v in near if info.min <= v <= info.max), dtype)
    real = jnp.finfo(dtype)
    positive = [0.0, 0.25, 0.49999997, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 10.0, 87.5, 126.5]
    positive += [127.0, 128.0, 255.5, 256.0, 1e3, 32767.0, 32768.0, 65504.0, 65536.0, 1e-3, 1e-6]
    positive += [2.0**24 + 1, 2.0**31, 2.0**32, 2.0**52 + 0.5, 2.0**63, 2.0**64, 1e19, 1e38, 1e308]
    positive += [np.inf, float(real.max), float(real.tiny), 1 + float(real.eps), np.pi, np.pi / 2]
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.array([*positive, *(-p for p in positive), np.nan], np.float64).astype(dtype)
        subnormal = (values != 0) & (abs(values) < real.tiny)
    return values[~subnormal]


def _random_values(dtype: str, count: int, seed: int) -> np.ndarray:
    """Random bits, and numbers near one for the floats."""
    rng = np.random.RandomState(seed)
    if dtype == "bool":
        return rng.rand(count) < 0.5
    size = np.dtype(jnp.dtype(dtype)).itemsize
    values = np.frombuffer(rng.bytes(count * size), jnp.dtype(dtype)).copy()
    if dtype in INTEGERS:
        return values
    values[::2] = (3 * rng.randn(len(values[::2]))).astype(values.dtype)
    with np.errstate(invalid="ignore"):
        values[~(abs(values) >= jnp.finfo(dtype).tiny)] = 1.5
    return values


def _lined(dtype: str, arity: int) -> list[np.ndarray]:
    """All tuples of special values beside random ones."""
    special = special_values(dtype)
    grids = np.meshgrid(*[special if i < 2 else special[::5] for i in range(arity)], indexing="ij")
    random = [_random_values(dtype, 1000, seed) for seed in range(arity)]
    return [np.concatenate([g.ravel(), r]) for g, r in zip(grids, random, strict=True)]


def _power_arguments(dtype: str, exponent: str) -> list[np.ndarray]:
    base, power = special_values(dtype), np.arange(0 if exponent[0] == "u" else -5, 70)
    grids = np.meshgrid(base, power.astype(exponent), indexing="ij")
    return [g.ravel() for g in grids]


def _bit_patterns(source: str, target: str) -> Sequence[np.ndarray]:
    ratio = max(1, jnp.dtype(target).itemsize // jnp.dtype(source).itemsize)
    values = _random_values(source, 24 * ratio, 0)
    return [values.reshape(3, 8, ratio) if ratio > 1 else values.reshape(3, 8)]
