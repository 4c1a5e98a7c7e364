"""Single layers: dense, convolutions of every kind, pools, norms, activations, embeddings."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from tests.conformance.programs.family import KEY, Family, integers, normal, uniform

FAMILY = Family("layers")
program = FAMILY.program
IMAGE = normal(2, 12, 12, 8)
NHWC = ("NHWC", "HWIO", "NHWC")


@program(normal(8, 32), normal(32, 16), normal(16))
def _dense(x, w, b):
    return x @ w + b


@program(normal(64, 256), normal(256, 128), normal(128))
def _dense_with_relu(x, w, b):
    return jax.nn.relu(jnp.dot(x, w) + b)


@program(normal(32, 8), normal(32, 16))
def _dense_of_transposed_input(x, w):
    return x.T @ w


@program(normal(4, 3, 8), normal(4, 8, 5))
def _batched_matrix_product(x, w):
    return jnp.matmul(x, w)


@program(normal(3, 5, 8), normal(8, 2, 4))
def _dense_over_several_axes(x, w):
    return jnp.tensordot(x, w, 1)


@program(normal(6, 8), normal(6, 5), normal(4, 8, 5))
def _bilinear_layer(x, y, w):
    return jnp.einsum("ni,nj,oij->no", x, y, w)


@program(IMAGE, normal(3, 3, 8, 16), normal(16))
def _convolution_with_bias(x, w, b):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC) + b


@program(IMAGE, normal(3, 3, 8, 16))
def _strided_convolution(x, w):
    return lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=NHWC)


@program(normal(2, 8, 12, 12), normal(16, 8, 3, 3))
def _convolution_NCHW(x, w):
    return lax.conv(x, w, (1, 1), "SAME")


@program(IMAGE, normal(3, 3, 8, 8))
def _dilated_convolution(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=NHWC
    )


@program(IMAGE, normal(3, 3, 1, 16))
def _depthwise_convolution(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=8
    )


@program(IMAGE, normal(3, 3, 4, 16))
def _grouped_convolution(x, w):
    return lax.conv_general_dilated(
        x, w, (2, 1), ((1, 2), (0, 1)), dimension_numbers=NHWC, feature_group_count=2
    )


@program(IMAGE, normal(1, 1, 8, 24))
def _pointwise_convolution(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NHWC)


@program(IMAGE, normal(3, 3, 1, 8), normal(1, 1, 8, 16))
def _separable_convolution(x, depthwise, pointwise):
    x = lax.conv_general_dilated(
        x, depthwise, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=8
    )
    return jnp.einsum("nhwc,co->nhwo", jax.nn.relu(x), pointwise[0, 0])


@program(normal(2, 7, 7, 8), normal(3, 3, 8, 4))
def _transposed_convolution(x, w):
    return lax.conv_transpose(x, w, (2, 2), "SAME")


@program(normal(2, 7, 7, 8), normal(4, 4, 6, 8))
def _transposed_convolution_by_kernel(x, w):
    return lax.conv_transpose(x, w, (2, 2), "VALID", transpose_kernel=True)


@program(normal(3, 20, 6), normal(5, 6, 10))
def _convolution_1d(x, w):
    return lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


@program(normal(2, 16, 4), normal(3, 4, 8))
def _causal_convolution_1d(x, w):
    return lax.conv_general_dilated(
        x, w, (1,), ((4, 0),), rhs_dilation=(2,), dimension_numbers=("NWC", "WIO", "NWC")
    )


@program(normal(1, 6, 7, 8, 3), normal(3, 3, 3, 3, 4))
def _convolution_3d(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 2, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
    )


@program(normal(4, 9, 9, 3), normal(3, 3, 3, 8))
def _convolution_with_batch_groups(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 1), "VALID", dimension_numbers=NHWC, batch_group_count=2
    )


@program(IMAGE)
def _max_pool(x):
    return nn.max_pool(x, (2, 2), (2, 2))


@program(normal(2, 13, 13, 4))
def _overlapping_max_pool_with_padding(x):
    return nn.max_pool(x, (3, 3), (2, 2), "SAME")


@program(IMAGE)
def _average_pool(x):
    return nn.avg_pool(x, (2, 2), (2, 2))


@program(normal(2, 13, 13, 4))
def _average_pool_without_counting_padding(x):
    return nn.avg_pool(x, (3, 3), (2, 2), "SAME", count_include_pad=False)


@program(IMAGE)
def _global_average_and_max_pool(x):
    return x.mean((1, 2)), x.max((1, 2))


@program(IMAGE)
def _lp_pool(x):
    total = lax.reduce_window(jnp.abs(x) ** 3, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return total ** (1 / 3)


@program(IMAGE, normal(8), normal(8))
def _batch_norm_in_training(x, scale, bias):
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(var + 1e-5) * scale + bias, 0.9 * mean, 0.9 * var


@program(IMAGE, normal(8), normal(8), normal(8), uniform(8, low=0.5))
def _batch_norm_in_inference(x, scale, bias, mean, var):
    return (x - mean) / jnp.sqrt(var + 1e-5) * scale + bias


@program(normal(4, 6, 32), normal(32), normal(32))
def _layer_norm(x, scale, bias):
    return jax.nn.standardize(x, axis=-1, epsilon=1e-6) * scale + bias


@program(IMAGE, normal(8), normal(8))
def _group_norm(x, scale, bias):
    return nn.GroupNorm(num_groups=2).apply({"params": {"scale": scale, "bias": bias}}, x)


@program(IMAGE)
def _instance_norm(x):
    return (x - x.mean((1, 2), keepdims=True)) / (x.std((1, 2), keepdims=True) + 1e-5)


@program(normal(4, 6, 32), normal(32))
def _rms_norm(x, scale):
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * scale


@program(normal(2, 8, 8, 10))
def _local_response_norm(x):
    total = lax.reduce_window(x**2, 0.0, lax.add, (1, 1, 1, 5), (1, 1, 1, 1), "SAME")
    return x / (2.0 + 1e-4 * total) ** 0.75


@program(normal(16, 9), normal(9, 16))
def _weight_norm(x, v):
    return x @ (v / jnp.linalg.norm(v, axis=0))


@program(integers(4, 7, high=50), normal(50, 16))
def _embedding(tokens, table):
    return jnp.take(table, tokens, axis=0)


@program(integers(4, 7, high=50), normal(50, 16))
def _embedding_by_one_hot(tokens, table):
    return jax.nn.one_hot(tokens, 50) @ table


@program(KEY, normal(16, 32))
def _dropout(key, x):
    return nn.Dropout(0.4, deterministic=False).apply({}, x, rngs={"dropout": key})


@program(normal(6, 33, scale=3.0))
def _rectifiers(x):
    activations = (jax.nn.relu, jax.nn.relu6, jax.nn.leaky_relu, jax.nn.elu, jax.nn.celu)
    return [f(x) for f in (*activations, jax.nn.selu, jax.nn.hard_tanh, jax.nn.squareplus)]


@program(normal(6, 33, scale=3.0))
def _smooth_activations(x):
    activations = (jax.nn.sigmoid, jax.nn.silu, jax.nn.softplus, jax.nn.mish, jax.nn.log_sigmoid)
    return [f(x) for f in (*activations, jax.nn.soft_sign, jax.nn.hard_swish, jnp.tanh)]


@program(normal(6, 32, scale=3.0))
def _gelu_and_glu(x):
    return jax.nn.gelu(x, approximate=False), jax.nn.gelu(x, approximate=True), jax.nn.glu(x)


@program(normal(6, 33, scale=3.0))
def _softmax_and_log_softmax(x):
    return jax.nn.softmax(x), jax.nn.log_softmax(x, axis=0)


@program(normal(2, 8, 8, 12))
def _pixel_shuffle(x):
    x = x.reshape(2, 8, 8, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(2, 16, 16, 3)


@program(normal(2, 7, 7, 3))
def _bilinear_resize(x):
    return jax.image.resize(x, (2, 14, 10, 3), "bilinear")


@program(normal(2, 7, 7, 3))
def _nearest_resize(x):
    return jax.image.resize(x, (2, 14, 14, 3), "nearest")


@program(normal(1, 9, 9, 2))
def _image_patches(x):
    return lax.conv_general_dilated_patches(x, (3, 3), (2, 2), "VALID", dimension_numbers=NHWC)
