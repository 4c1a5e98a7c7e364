"""Fourier transforms, and complex numbers between a real argument and a real result."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from importer_oracle import assert_agrees, export, run
from jax import lax
from jax.numpy import fft
from jaxeff_export.importer import UnsupportedOpError, import_stablehlo


def _normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


def _parts(z):
    return z.real, z.imag


@pytest.mark.slow
def test_arithmetic():
    def arithmetic(x, y):
        a, b = lax.complex(x, y), lax.complex(y, x + 1)
        results = [
            a + b, a - b, a * b, a / b, -a, jnp.conj(a), jnp.exp(a), jnp.log(a), a**2, a**b,
            jnp.sin(a), jnp.cos(a), lax.rsqrt(a), jnp.where(x > 0, a, b), a @ b.T, a.sum(0),
            a[1:, ::2].T, jnp.concatenate([a, b]),
            jnp.pad(a, 1), a.reshape(-1)[jnp.array([0, 5])], lax.dynamic_slice(a, (1, 1), (2, 2)),
            jnp.array([1 + 2j, 3 - 1j, jnp.inf]) * a, 1j * a, jnp.sign(a), a.astype("complex64"),
        ]  # fmt: skip
        return [_parts(z) for z in results], jnp.abs(a), jnp.angle(a), a == b, a != b, a == a

    assert_agrees(arithmetic, _normal(3, 3), _normal(3, 3, seed=1), rtol=1e-5, atol=1e-5)


def test_roots_and_sizes_at_the_edges():
    real = jnp.array([0, 4, -4, -4, 1e30, 1e-30, 3, 0, 0, jnp.inf], "float32")
    imaginary = jnp.array([0, 0, 0.0, -0.0, 1e30, 1e-30, -4, 2, -2, jnp.inf], "float32")

    def edges(x, y):
        return jnp.abs(lax.complex(x, y)), _parts(jnp.sqrt(lax.complex(x[:-1], y[:-1])))

    assert_agrees(edges, real, imaginary, rtol=1e-5)


@pytest.mark.parametrize("imaginary", [0.0, -0.0, 3.0, -3.0])
def test_roots_that_jax_did_not_expand(imaginary):
    part, whole = "tensor<2xf32>", "tensor<2xcomplex<f32>>"
    text = f"""func.func public @main(%x: {part}, %y: {part}) -> ({part}, {part}) {{
      %z = stablehlo.complex %x, %y : {whole}
      %root = stablehlo.sqrt %z : {whole}
      %real = stablehlo.real %root : ({whole}) -> {part}
      %imaginary = stablehlo.imag %root : ({whole}) -> {part}
      return %real, %imaginary : {part}, {part}
    }}"""
    x = np.array([-4, 4], "float32")
    y = np.full(2, imaginary, "float32")
    expected = jax.jit(lambda x, y: _parts(jnp.sqrt(lax.complex(x, y))))(x, y)
    got = run(import_stablehlo(text), x, y)
    for ours, xla in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, xla, rtol=1e-6)


@pytest.mark.slow
def test_sums_and_updates():
    def sums(x, i):
        z = lax.complex(x, x * 2 + 1)
        return [
            _parts(part)
            for part in (z.sum(), z.mean(0), jnp.cumsum(z, 1), z.at[i].set(1j), z.at[:, 1:].add(1))
        ]

    assert_agrees(sums, _normal(3, 4), jnp.array([2, 0]), rtol=1e-5, atol=1e-5)


def test_loops_and_branches():
    def control(x, count):
        start = lax.complex(x, 1 - x)
        turn = jnp.complex64(0.6 + 0.8j)
        z = lax.fori_loop(0, count, lambda i, z: z * turn + i, start)
        chosen = lax.cond(count > 3, fft.fft, lambda z: z @ jnp.eye(4, dtype=z.dtype), z)
        return _parts(z), _parts(chosen)

    assert_agrees(control, _normal(4), jnp.int32(7), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 7, 12, 33, 64])
def test_transforms_of_any_length(length):
    def transforms(x):
        z = lax.complex(x, x[::-1])
        return (
            _parts(fft.fft(z)), _parts(fft.ifft(z)), _parts(fft.rfft(x)), fft.irfft(z),
            fft.irfft(z, n=length), jnp.abs(fft.rfft(x)),
        )  # fmt: skip

    assert_agrees(transforms, _normal(2, length), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_transforms_along_several_axes():
    def transforms(x):
        return (
            _parts(fft.fft2(x)), _parts(fft.rfft2(x)), fft.irfft2(fft.rfft2(x)),
            _parts(fft.ifftn(x)), _parts(fft.fft(x, axis=0)), fft.fftshift(jnp.abs(fft.fft2(x))),
        )  # fmt: skip

    assert_agrees(transforms, _normal(3, 4, 6), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_programs():
    def convolve(x, y):
        return fft.irfft(fft.rfft(x, n=32) * fft.rfft(y, n=32), n=32)

    def power(x):
        return jnp.sum(jnp.abs(fft.rfft(x)) ** 2)

    def programs(x, y):
        return convolve(x, y), jax.grad(power)(x), jax.vjp(convolve, x, y)[1](jnp.ones(32))

    assert_agrees(programs, _normal(20), _normal(9, seed=1), rtol=1e-4, atol=1e-4)


def test_arguments_and_results_have_to_be_real():
    for function, x in ((fft.fft, _normal(3)), (jnp.real, _normal(3) * 1j)):
        with pytest.raises(UnsupportedOpError, match=r"of the public function: .* complex"):
            import_stablehlo(export(function, x))
