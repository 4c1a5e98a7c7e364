"""A variational autoencoder of flattened images (arXiv 1312.6114), for interpolating between them.

Dirty-MNIST decodes mixtures of codes with one of 784-512-256 and 32 latent dimensions.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxeff.nn.models._small import count_layers


class VAE(nnx.Module):
    """Dense ReLU layers ``enc1``, …, heads ``mean`` and ``log_var``, and ``dec1``, … back.

    Pixels are Bernoulli: the decoder gives their logits.
    """

    def __init__(
        self, widths: Sequence[int] = (784, 512, 256), latents: int = 32, *, rngs: nnx.Rngs
    ):
        """Builds the layers.

        Args:
          widths: Pixels of an image, then features of the encoder's layers; the decoder's are
            these in reverse.
          latents: Dimensions of the code.
          rngs: Keys for the initial parameters.

        Raises:
          ValueError: Fewer than two widths.
        """
        self.depth = count_layers("VAE needs the input's and a hidden width", widths)
        # The decoder mirrors the encoder, so it has one layer more: from the code to the last
        # width.
        back = (latents, *reversed(widths))
        for i in range(1, self.depth + 1):
            setattr(self, f"enc{i}", nnx.Linear(widths[i - 1], widths[i], rngs=rngs))
        self.mean = nnx.Linear(widths[-1], latents, rngs=rngs)
        self.log_var = nnx.Linear(widths[-1], latents, rngs=rngs)
        for i in range(1, self.depth + 2):
            setattr(self, f"dec{i}", nnx.Linear(back[i - 1], back[i], rngs=rngs))

    def encode(
        self, x: Float[Array, "batch ..."]
    ) -> tuple[Float[Array, "batch latents"], Float[Array, "batch latents"]]:
        """Returns mean and log-variance of the codes of images with values 0 to 1."""
        x = x.reshape(x.shape[0], -1)
        for i in range(1, self.depth + 1):
            x = jax.nn.relu(getattr(self, f"enc{i}")(x))
        return self.mean(x), self.log_var(x)

    def decode(self, z: Float[Array, "batch latents"]) -> Float[Array, "batch pixels"]:
        """Returns the logits of the pixels."""
        for i in range(1, self.depth + 1):
            z = jax.nn.relu(getattr(self, f"dec{i}")(z))
        return getattr(self, f"dec{self.depth + 1}")(z)

    def __call__(
        self, key: Key[Array, ""], x: Float[Array, "batch ..."]
    ) -> tuple[
        Float[Array, "batch pixels"], Float[Array, "batch latents"], Float[Array, "batch latents"]
    ]:
        """Returns the logits of pixels decoded from one drawn code each, and the codes' moments."""
        mean, log_var = self.encode(x)
        # Reparameterised (Kingma and Welling, section 2.4), so that gradients reach both heads. The
        # network gives log variances: any real number is one.
        z = mean + jnp.exp(log_var / 2) * jax.random.normal(key, mean.shape, mean.dtype)
        return self.decode(z), mean, log_var


def negative_evidence_bound(
    logits: Float[Array, "batch pixels"],
    mean: Float[Array, "batch latents"],
    log_var: Float[Array, "batch latents"],
    x: Float[Array, "batch ..."],
) -> Float[Array, ""]:
    """Computes binary cross entropy plus KL divergence from a standard normal, in nats per image.

    Args:
        logits: What the decoder gave.
        mean: Means of the codes.
        log_var: Log-variances of the codes.
        x: The images, values 0 to 1.

    Returns:
        The mean over the batch.
    """
    pixels = x.reshape(logits.shape)
    # -x log s(l) - (1 - x) log(1 - s(l)) = softplus(l) - x l: no logarithm of a rounded sigmoid.
    cross_entropy = (jax.nn.softplus(logits) - pixels * logits).sum(-1)
    # In closed form: Kingma and Welling, appendix B.
    divergence = 0.5 * (mean**2 + jnp.exp(log_var) - 1 - log_var).sum(-1)
    return (cross_entropy + divergence).mean()
