"""Few bits: integer dots and convolutions, fake quantization, half precision."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.conformance.programs.family import Family, integers, normal

FAMILY = Family("quantized")
program = FAMILY.program
NHWC = ("NHWC", "HWIO", "NHWC")


def small(*shape):
    """8-bit integers of any value."""
    return integers(*shape, low=-128, high=128, dtype=np.int8)


@program(small(8, 64), small(64, 16))
def _integer_dot(x, w):
    return lax.dot(x, w, preferred_element_type=jnp.int32)


@program(integers(8, 64, high=256, dtype=np.uint8), integers(64, 16, high=256, dtype=np.uint8))
def _unsigned_dot(x, w):
    return lax.dot(x, w, preferred_element_type=jnp.uint32)


@program(small(2, 9, 9, 4), small(3, 3, 4, 8))
def _integer_convolution(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=NHWC, preferred_element_type=jnp.int32
    )


@program(small(3, 4, 8), small(3, 8, 5))
def _batched_integer_dot(x, w):
    return jnp.einsum("bij,bjk->bik", x, w, preferred_element_type=jnp.int32)


def quantize(x, bits=8):
    """Symmetric quantization to a range of its own."""
    scale = jnp.max(jnp.abs(x)) / (2 ** (bits - 1) - 1)
    return jnp.clip(jnp.round(x / scale), -128, 127).astype(jnp.int8), scale


@program(normal(8, 32), normal(32, 10))
def _dynamically_quantized_dense(x, w):
    (qx, sx), (qw, sw) = quantize(x), quantize(w)
    return lax.dot(qx, qw, preferred_element_type=jnp.int32).astype(jnp.float32) * (sx * sw)


@program(small(8, 32), small(32, 10), integers(10, low=-999, high=999), integers(high=20))
def _requantized_dense(x, w, b, zero):
    total = lax.dot(x, w, preferred_element_type=jnp.int32) + b - zero
    scaled = lax.shift_right_arithmetic(total * 77 + (1 << 12), 13)
    return jnp.clip(scaled, -128, 127).astype(jnp.int8)


@program(normal(8, 32))
def _fake_quantization(x):
    def f(x):
        scale = (x.max() - x.min()) / 15
        grid = jnp.round((x - x.min()) / scale) * scale + x.min()
        return x + lax.stop_gradient(grid - x)

    return f(x), jax.grad(lambda x: jnp.sum(f(x) ** 2))(x)


@program(normal(8, 32), normal(32, 10))
def _binary_weights(x, w):
    return x @ (jnp.sign(w) * jnp.abs(w).mean(0))


@program(normal(16, 9))
def _ternary_weights(w):
    threshold = 0.7 * jnp.abs(w).mean()
    return jnp.where(w > threshold, 1, jnp.where(w < -threshold, -1, 0)).astype(jnp.int8)


@program(integers(6, 8, low=-128, high=128, dtype=np.int8), normal(3, 16))
def _packed_four_bit_weights(packed, x):
    low = lax.shift_right_arithmetic(lax.shift_left(packed, np.int8(4)), np.int8(4))
    high = lax.shift_right_arithmetic(packed, np.int8(4))
    w = jnp.stack([low, high], -1).reshape(6, 16).astype(jnp.float32)
    return x @ w.T


BFLOAT, HALF = jnp.bfloat16, np.float16


@program(normal(8, 32, dtype=BFLOAT), normal(32, 16, dtype=BFLOAT))
def _bfloat16_dense(x, w):
    return x @ w, lax.dot(x, w, preferred_element_type=jnp.float32)


@program(normal(8, 32, dtype=HALF), normal(32, 16, dtype=HALF))
def _float16_dense(x, w):
    return jax.nn.relu(x @ w)


@program(normal(2, 9, 9, 4, dtype=BFLOAT), normal(3, 3, 4, 8, dtype=BFLOAT))
def _bfloat16_convolution(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)


@program(normal(2, 9, 9, 4, dtype=HALF), normal(3, 3, 4, 8, dtype=HALF))
def _float16_convolution(x, w):
    return lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=NHWC)


@program(normal(4, 6, 16, dtype=BFLOAT))
def _bfloat16_layer_norm_and_softmax(x):
    wide = x.astype(jnp.float32)
    normed = jax.nn.standardize(wide).astype(BFLOAT)
    return normed, jax.nn.softmax(x), jax.nn.gelu(x), x.sum(-1)


@program(normal(4, 20, dtype=HALF))
def _float16_elementwise(x):
    return jnp.exp(x), jnp.tanh(x), jax.nn.sigmoid(x), x / 3, jnp.cumsum(x, 1), jnp.sort(x)


@program(normal(8, 16), normal(16, 32, scale=0.2), normal(32, 4, scale=0.2))
def _mixed_precision_gradient(x, w1, w2):
    def loss(weights):
        low = [w.astype(BFLOAT) for w in weights]
        h = jax.nn.relu(x.astype(BFLOAT) @ low[0])
        return jnp.mean((h @ low[1]).astype(jnp.float32) ** 2)

    return jax.grad(lambda weights: 128.0 * loss(weights))((w1, w2))


@program(normal(40))
def _stochastic_rounding(x):
    noise = jax.random.uniform(jax.random.PRNGKey(3), x.shape)
    return jnp.floor(8 * x + noise) / 8, lax.reduce_precision(x, 5, 3)


@program(normal(2, 8, 8, 3), normal(3, 3, 3, 4))
def _quantized_convolution_with_channel_scales(x, w):
    scale = jnp.abs(w).max((0, 1, 2)) / 127
    qw = jnp.round(w / scale).astype(jnp.int8)
    qx, sx = quantize(x)
    y = lax.conv_general_dilated(
        qx, qw, (1, 1), "SAME", dimension_numbers=NHWC, preferred_element_type=jnp.int32
    )
    return y.astype(jnp.float32) * scale * sx
