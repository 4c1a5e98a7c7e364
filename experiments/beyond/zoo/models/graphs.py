"""A graph network (message passing over edges) and a variational autoencoder without its draw."""

import jax
import jax.numpy as jnp
from flax import nnx


class GraphNet(nnx.Module):
    """Two rounds of messages along edges, summed at their receivers, and a mean over nodes."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.embed = nnx.Linear(4, 8, rngs=rngs)
        self.messages = nnx.List([nnx.Linear(16, 8, rngs=rngs) for _ in range(2)])
        self.updates = nnx.List([nnx.Linear(16, 8, rngs=rngs) for _ in range(2)])
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, nodes: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        """Returns a vector for each node."""
        x = self.embed(nodes)
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = nnx.relu(message(jnp.concatenate([x[senders], x[receivers]], -1)))
            heard = jax.ops.segment_sum(sent, receivers, len(nodes))
            x = x + nnx.relu(update(jnp.concatenate([x, heard], -1)))
        return self.head(x)


class Autoencoder(nnx.Module):
    """The mean code of a convolutional VAE, decoded by transposed convolutions."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.conv1 = nnx.Conv(1, 8, (3, 3), strides=2, rngs=rngs)
        self.conv2 = nnx.Conv(8, 8, (3, 3), strides=2, rngs=rngs)
        self.mean = nnx.Linear(32, 6, rngs=rngs)
        self.log_var = nnx.Linear(32, 6, rngs=rngs)
        self.widen = nnx.Linear(6, 32, rngs=rngs)
        self.up1 = nnx.ConvTranspose(8, 8, (4, 4), strides=(2, 2), rngs=rngs)
        self.up2 = nnx.ConvTranspose(8, 1, (4, 4), strides=(2, 2), rngs=rngs)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the logits of pixels, and the log-variances of the code."""
        x = nnx.relu(self.conv2(nnx.relu(self.conv1(x))))
        x = x.reshape(x.shape[0], -1)
        y = nnx.relu(self.widen(self.mean(x))).reshape(-1, 2, 2, 8)
        return self.up2(nnx.relu(self.up1(y))), self.log_var(x)
