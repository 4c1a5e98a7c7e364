"""Whole networks, forward."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx
from jax import lax

import jaxeff
from jaxeff.nn import MLP, VGG11, LeNet5, LinenLeNet5, ResNet18, TransformerEncoder
from tests.conformance.programs.family import Family, integers, normal

FAMILY = Family("networks")


def network(model, *shape):
    """A network in evaluation mode as a pure function, with parameters and an input."""
    model.eval()
    f, params = jaxeff.functional(model)
    return f, (params, np.random.RandomState(0).standard_normal(shape).astype(np.float32))


@FAMILY.built
def _mlp():
    return network(MLP((784, 100, 100, 10), rngs=nnx.Rngs(0)), 4, 784)


@FAMILY.built
def _mlp_with_batch_norm_and_tanh():
    model = MLP((16, 64, 64, 4), activation=jnp.tanh, batch_norm=True, rngs=nnx.Rngs(0))
    return network(model, 8, 16)


@FAMILY.built
def _lenet_5():
    return network(LeNet5(rngs=nnx.Rngs(0)), 2, 28, 28, 1)


@FAMILY.built
def _lenet_5_with_average_pools_on_colour_images():
    model = LeNet5(in_channels=3, size=32, padding="VALID", pool="avg", rngs=nnx.Rngs(0))
    return network(model, 2, 32, 32, 3)


@FAMILY.built
def _lenet_5_in_linen():
    model = LinenLeNet5()
    x = np.random.RandomState(0).standard_normal((2, 28, 28, 1)).astype(np.float32)
    return model.apply, (model.init(jax.random.key(0), x), x)


@FAMILY.built
def _resnet_18():
    return network(ResNet18(stem="cifar", rngs=nnx.Rngs(0)), 1, 32, 32, 3)


@FAMILY.built
def _resnet_18_with_the_imagenet_stem():
    return network(ResNet18(rngs=nnx.Rngs(0)), 1, 32, 32, 3)


@FAMILY.built
def _vgg_11():
    return network(VGG11(rngs=nnx.Rngs(0)), 1, 32, 32, 3)


@FAMILY.built
def _transformer_encoder():
    return network(TransformerEncoder(rngs=nnx.Rngs(0)), 2, 8, 8)


class _DecoderBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        mask = nn.make_causal_mask(x[..., 0])
        y = nn.MultiHeadDotProductAttention(num_heads=4)(nn.RMSNorm()(x), mask=mask)
        x = x + y
        gate = nn.silu(nn.Dense(64, use_bias=False)(nn.RMSNorm()(x)))
        return x + nn.Dense(32, use_bias=False)(gate)


class _LanguageModel(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(100, 32)
        x = embed(tokens)
        for _ in range(2):
            x = _DecoderBlock()(x)
        return embed.attend(nn.LayerNorm()(x))


def linen(model, *inputs):
    """A Linen model's application with its variables and inputs."""
    return model.apply, (model.init(jax.random.key(0), *inputs), *inputs)


@FAMILY.built
def _causal_language_model():
    return linen(_LanguageModel(), np.random.RandomState(0).randint(0, 100, (2, 12)))


class _InvertedResidual(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.relu6(nn.Conv(48, (1, 1), use_bias=False)(x))
        y = nn.relu6(nn.Conv(48, (3, 3), feature_group_count=48)(y))
        squeezed = nn.sigmoid(nn.Dense(48)(nn.relu(nn.Dense(12)(y.mean((1, 2))))))
        y = y * squeezed[:, None, None]
        return x + nn.Conv(x.shape[-1], (1, 1))(y)


@FAMILY.built
def _inverted_residual_with_squeeze_and_excitation():
    return linen(_InvertedResidual(), np.ones((1, 14, 14, 16), np.float32))


class _UNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        down = nn.relu(nn.Conv(8, (3, 3))(x))
        y = nn.relu(nn.Conv(16, (3, 3))(nn.max_pool(down, (2, 2), (2, 2))))
        y = nn.ConvTranspose(8, (2, 2), strides=(2, 2))(y)
        return nn.Conv(2, (1, 1))(nn.relu(nn.Conv(8, (3, 3))(jnp.concatenate([down, y], -1))))


@FAMILY.built
def _u_net():
    return linen(_UNet(), np.random.RandomState(1).rand(1, 16, 16, 3).astype(np.float32))


class _Autoencoder(nn.Module):
    @nn.compact
    def __call__(self, x):
        z = nn.Dense(4)(nn.elu(nn.Dense(32)(x)))
        return nn.sigmoid(nn.Dense(64)(nn.elu(nn.Dense(32)(z))))


@FAMILY.built
def _autoencoder():
    return linen(_Autoencoder(), np.random.RandomState(2).rand(4, 64).astype(np.float32))


class _VisionTransformer(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(32, (4, 4), strides=(4, 4))(x).reshape(x.shape[0], -1, 32)
        token = self.param("token", nn.initializers.zeros, (1, 1, 32))
        x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], 1)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x))
        x = x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
        return nn.Dense(10)(x[:, 0])


@FAMILY.built
def _vision_transformer():
    return linen(_VisionTransformer(), np.random.RandomState(3).rand(2, 16, 16, 3))


@FAMILY.program(
    normal(12, 8), integers(30, high=12), integers(30, high=12), normal(8, 16), normal(16, 4)
)
def _graph_network(nodes, senders, receivers, w1, w2):
    for w in (w1, w2):
        gathered = jax.ops.segment_sum(nodes[senders], receivers, 12)
        degree = jax.ops.segment_sum(jnp.ones(30), receivers, 12)
        nodes = jax.nn.relu((nodes + gathered / jnp.maximum(degree, 1)[:, None]) @ w)
    return nodes


@FAMILY.program(normal(8, 6), normal(4, 6, 10), normal(6, 4))
def _mixture_of_experts(x, experts, router):
    gates, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
    outputs = jnp.einsum("ni,eio->neo", x, experts)
    picked = jnp.take_along_axis(outputs, chosen[..., None], axis=1)
    return (gates[..., None] * picked).sum(1)


@FAMILY.program(normal(5, 3), normal(7, 3), normal(7, 2))
def _radial_basis_network(x, centres, w):
    distance = jnp.sum((x[:, None] - centres) ** 2, -1)
    return jnp.exp(-distance) @ w
