"""Every elementwise operation on the values where implementations differ, against XLA.

A dtype's operations are compiled once, as one program, and then run on many inputs.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from importer_oracle import assert_close, export, run
from jax import lax
from jaxeff_export.compiler import compile_module
from jaxeff_export.importer import import_stablehlo
from tvm import relax, tirx

FLOATS = ("float32", "float16", "bfloat16", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
SIZE = 64

_UNARY = {
    **{
        name: getattr(lax, name)
        for name in (
            "abs", "neg", "sign", "floor", "ceil", "is_finite", "exp", "exp2", "expm1", "log",
            "log1p", "tanh", "logistic", "sqrt", "rsqrt", "cbrt", "erf", "erfc", "sin", "cos",
            "tan", "square",
        )
    },
    "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "relu": jax.nn.relu,
    "times_zero": lambda x: x * 0,
    "self_minus": lambda x: x - x,
    "self_over": lambda x: x / x,
    "is_nan": lambda x: x != x,
    "is_number": lambda x: x == x,
    "to_int32": lambda x: lax.convert_element_type(x, jnp.int32),
    "to_int8": lambda x: lax.convert_element_type(x, jnp.int8),
    "to_uint8": lambda x: lax.convert_element_type(x, jnp.uint8),
    "to_bool": lambda x: lax.convert_element_type(x, jnp.bool_),
    "to_float16": lambda x: lax.convert_element_type(x, jnp.float16),
    "to_bfloat16": lambda x: lax.convert_element_type(x, jnp.bfloat16),
    "to_float32": lambda x: lax.convert_element_type(x, jnp.float32),
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 7),
}  # fmt: skip
_BINARY = {
    **{
        name: getattr(lax, name)
        for name in ("add", "sub", "mul", "div", "rem", "max", "min", "pow", "atan2")
    },
    **{name: getattr(lax, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "select": lambda x, y: lax.select(x > y, x, y),
    "clamp": lambda x, y: lax.clamp(-jnp.abs(y), x, jnp.abs(y)),
    "max_one": lambda x, y: jnp.maximum(x, jnp.ones((), x.dtype)),
    "clip": lambda x, y: jnp.clip(x, -0.0, 0.0) if jnp.issubdtype(x.dtype, jnp.floating) else x,
}
_INTEGER_UNARY = {
    **{name: getattr(lax, name) for name in ("neg", "sign", "bitwise_not", "population_count")},
    "clz": lax.clz,
    "abs": jnp.abs,
    **{name: _UNARY[name] for name in _UNARY if name.startswith("to_")},
}
_INTEGER_BINARY = {
    **{name: _BINARY[name] for name in _BINARY if name not in ("pow", "atan2")},
    **{
        name: getattr(lax, name)
        for name in (
            "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right_logical",
            "shift_right_arithmetic",
        )
    },
    "cube": lambda x, y: lax.integer_pow(x, 3),
}  # fmt: skip
_BOOLEAN_UNARY = {"not": lax.bitwise_not, "to_int32": _UNARY["to_int32"]}
_BOOLEAN_BINARY = {
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "max": lax.max,
    "min": lax.min,
    "eq": lax.eq,
    "lt": lax.lt,
}
# What the C library or the polynomial may be off by, in units of the result's last place.
_ULPS = {"float32": 16, "float64": 4, "float16": 1, "bfloat16": 1}


@functools.cache
def _program(dtype: str, arity: int):
    """The operations of a dtype, jitted and compiled: two functions of one or two arrays."""
    if dtype == "bool":
        table = _BOOLEAN_UNARY if arity == 1 else _BOOLEAN_BINARY
    elif dtype in FLOATS:
        table = _UNARY if arity == 1 else _BINARY
    else:
        table = _INTEGER_UNARY if arity == 1 else _INTEGER_BINARY
        if dtype in UNSIGNED and arity == 1:
            table = {name: f for name, f in table.items() if name != "abs"}

    def everything(*operands):
        return {name: function(*operands) for name, function in table.items()}

    example = [np.zeros(SIZE, dtype=jnp.dtype(dtype))] * arity
    with jax.enable_x64(True):
        module = import_stablehlo(export(everything, *example))
        jitted = jax.jit(everything)
    vm = relax.VirtualMachine(compile_module(module), tvm.cpu())
    return vm, jitted


def _check(dtype: str, *operands: np.ndarray) -> None:
    vm, jitted = _program(dtype, len(operands))
    with jax.enable_x64(True):
        want = {name: np.asarray(value) for name, value in jitted(*operands).items()}
    got = vm["main"](*[tvm.runtime.tensor(x) for x in operands])
    got = [got] if hasattr(got, "numpy") else got
    wrong = []
    for name, ours in zip(sorted(want), got, strict=True):
        theirs = want[name]
        finfo = jnp.finfo(theirs.dtype) if jnp.issubdtype(theirs.dtype, jnp.floating) else None
        with np.errstate(all="ignore"):
            try:
                assert_close(
                    ours.numpy(),
                    theirs,
                    finfo and _ULPS[str(theirs.dtype)] * float(finfo.eps),
                    finfo and float(finfo.tiny),
                )
                zeros = (ours.numpy() == 0) & (theirs == 0) if finfo else np.False_
                assert not np.any(zeros & (np.signbit(ours.numpy()) != np.signbit(theirs))), "-0"
            except AssertionError as error:
                wrong.append(f"{name} of {dtype}: {error}")
    assert not wrong, "\n".join(wrong)


def _special(dtype: str) -> np.ndarray:
    kind = jnp.dtype(dtype)
    if dtype == "bool":
        values = [False, True]
    elif dtype in FLOATS:
        info = jnp.finfo(kind)
        positive = [
            0.0, 1.0, 0.5, 1.5, 2.5, 3.5, 0.1, 7.0, 100.0, 127.5, 255.5, 300.0, 1e-3, 0.49999997,
            2.0**31, 2.0**33, float(info.max), float(info.tiny), float(info.eps), np.inf, np.nan,
        ]  # fmt: skip
        values = [*positive, *(-p for p in positive)]
    else:
        info = np.iinfo(kind)
        values = [0, 1, 2, 3, 7, 8, 15, 31, 32, 63, 64, 100, info.max, info.max - 1, info.max // 2]
        values += [info.min, info.min + 1, -1 % (info.max + 1) if dtype in UNSIGNED else -1]
        values += [-7, -8, -100] if dtype in SIGNED else []
        return np.array(values, kind)
    with np.errstate(over="ignore"):
        return np.array(values).astype(kind)


def _fill(values: np.ndarray) -> np.ndarray:
    return np.resize(values, SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*FLOATS, *SIGNED, *UNSIGNED, "bool"])
def test_special_values(dtype):
    values = _special(dtype)
    _check(dtype, _fill(values))
    pairs = np.array([(a, b) for a in values for b in values], dtype=values.dtype)
    for start in range(0, len(pairs), SIZE):
        part = pairs[start : start + SIZE]
        _check(dtype, _fill(part[:, 0]), _fill(part[:, 1]))


def _arrays(dtype: str) -> st.SearchStrategy[np.ndarray]:
    """Arrays of any bit pattern, but no subnormal numbers: XLA flushes these to zero."""
    kind = np.dtype(dtype)
    bits = hnp.arrays(kind if kind.kind != "f" else f"uint{8 * kind.itemsize}", SIZE)

    def as_kind(array: np.ndarray) -> np.ndarray:
        values = array.view(kind)
        if kind.kind != "f":
            return values
        subnormal = (values != 0) & (np.abs(values) < np.finfo(kind).tiny)
        return np.where(subnormal, np.zeros((), kind), values)

    return bits.map(as_kind)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint32", "int8"])
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_any_values(dtype, data):
    operands = data.draw(st.tuples(_arrays(dtype), _arrays(dtype)))
    _check(dtype, operands[0])
    _check(dtype, *operands)


def test_an_exponential_reaches_both_ends_of_the_exponents():
    least, most = np.float32(-87.33654), np.float32(88.72283)
    near = (np.arange(-40, 40) * np.float32(2**-17)).astype(np.float32)
    x = np.concatenate(
        [near + least, near + most, near + 128 * np.log(2), near - 125.5 * np.log(2)]
    )
    x = np.concatenate([x, [np.nan, np.inf, -np.inf, 0.0, -200, 1e30]]).astype(np.float32)
    (ours,) = run(import_stablehlo(export(jnp.exp, x)), x)
    with np.errstate(over="ignore"):
        exact = np.exp(x.astype(np.float64))
        theirs = exact.astype(np.float32)
    theirs = np.where(exact < np.finfo(np.float32).tiny, 0, theirs)
    np.testing.assert_allclose(ours, theirs, rtol=2 * np.finfo(np.float32).eps)


def test_results_that_share_terms_and_read_constants_come_from_one_loop():
    scale, shift = np.arange(1.0, 6.0, dtype=np.float32), np.linspace(2, 3, 5, dtype=np.float32)

    def both(x):
        shared = jnp.exp(jnp.tanh(x))
        return shared * scale, jnp.sin(shared) / shift

    x = np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5)
    module = import_stablehlo(export(both, x))
    assert sum(isinstance(f, tirx.PrimFunc) for f in module.functions.values()) == 1
    for ours, theirs in zip(run(module, x), jax.jit(both)(x), strict=True):
        assert_close(ours, np.asarray(theirs), rtol=1e-6)
