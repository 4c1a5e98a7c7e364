"""Small networks: MLP and LeNet-5, their twins in Linen, and one for examples.

`small_classifier` gives a network and images for examples, which compile and train in seconds:

```python
import jaxeff
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
jaxeff.summary(f, params, x)
```
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxeff.core import functional, static_integer, validate
from jaxeff.nn.layers import avg_pool


class SmallCNN(nnx.Module):
    """``conv1``, ReLU, 2×2 average pooling, ``fc1``, ReLU, ``fc2``, for images of 28×28 pixels."""

    def __init__(self, *, rngs: nnx.Rngs):
        """Builds the layers.

        Args:
          rngs: Keys for the initial parameters.
        """
        # A stride of 4 leaves 7×7 positions, 3×3 after pooling: 36 features, quick to compile.
        self.conv1 = nnx.Conv(1, 4, (5, 5), strides=4, rngs=rngs)
        self.fc1 = nnx.Linear(36, 32, rngs=rngs)
        self.fc2 = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x: Float[Array, "batch 28 28 1"]) -> Float[Array, "batch 10"]:
        """Returns the logits."""
        x = avg_pool(jax.nn.relu(self.conv1(x)), (2, 2), strides=(2, 2))
        return self.fc2(jax.nn.relu(self.fc1(x.reshape(x.shape[0], -1))))


@validate(examples=static_integer())
def small_classifier(
    examples: int = 256,
) -> tuple[
    Callable[..., Any],
    dict[str, Any],
    tuple[Float[Array, "examples 28 28 1"], Int[Array, " examples"]],
]:
    """Makes an untrained network of 1,618 parameters and loads some of scikit-learn's digits.

    Args:
      examples: Number of images, at most 1,437.

    Returns:
      The function, its parameters, and normalized images with their labels.
    """
    from jaxeff import data  # scikit-learn comes with it

    f, params = functional(SmallCNN(rngs=nnx.Rngs(0)))
    digits = data.load("digits")
    images = data.normalize(digits.train_images[:examples], "digits")
    return f, params, (images, jnp.asarray(digits.train_labels[:examples]))


class MLP(nnx.Module):
    """Dense layers ``fc1``, ``fc2``, …, each but the last followed by the activation.

    With batch norm, ``bn1``, ``bn2``, … stand between a dense layer and its activation.

    `MLP` has dense layers with an activation between them. The nets of Klein's thesis are ``(784,
    100, 100, 10)`` (probabilistic forward pass), three hidden layers of 64 with batch norm (walking
    noise) and ``(1, 50, 50, 1)`` (noisy sine).
    """

    def __init__(
        self,
        widths: Sequence[int],
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        batch_norm: bool = False,
        *,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          widths: Features of the input, of every hidden layer and of the output.
          activation: Elementwise function between the layers.
          batch_norm: Whether to normalize before each activation.
          rngs: Keys for the initial parameters.

        Raises:
          ValueError: Fewer than two widths.
        """
        self.depth = count_layers("MLP needs the input's and the output's width", widths)
        self.activation = activation
        self.batch_norm = batch_norm
        for i in range(1, len(widths)):
            setattr(self, f"fc{i}", nnx.Linear(widths[i - 1], widths[i], rngs=rngs))
            if batch_norm and i < self.depth:
                bn = nnx.BatchNorm(widths[i], momentum=0.9, epsilon=1e-5, rngs=rngs)
                setattr(self, f"bn{i}", bn)

    def __call__(self, x: Float[Array, "batch ..."]) -> Float[Array, "batch out"]:
        """Returns the outputs; inputs of more than two axes are flattened after the first."""
        if x.ndim > 2:
            x = x.reshape(x.shape[0], -1)
        for i in range(1, self.depth):
            x = getattr(self, f"fc{i}")(x)
            if self.batch_norm:
                x = getattr(self, f"bn{i}")(x)
            x = self.activation(x)
        return getattr(self, f"fc{self.depth}")(x)


def count_layers(needs: str, widths: Sequence[int]) -> int:
    """Counts the layers between widths."""
    if len(widths) < 2:
        raise ValueError(f"{needs}, got {tuple(widths)}.")
    return len(widths) - 1


POOLS = {"max": nnx.max_pool, "avg": avg_pool}


def lenet5_features(size: int, padding: str) -> int:
    """Computes the number of features before ``fc1`` for square images of ``size`` pixels."""
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"LeNet-5 takes padding 'SAME' or 'VALID' for conv1, not {padding!r}.")
    # A 5×5 convolution without padding takes 4 pixels off, a pooling halves, rounding down.
    side = ((size if padding == "SAME" else size - 4) // 2 - 4) // 2
    if side < 1:
        raise ValueError(f"LeNet-5 with padding {padding!r} can't take {size}×{size} images.")
    return 16 * side * side


class LeNet5(nnx.Module):
    """``conv1``, ``conv2``, ``fc1``, ``fc2``, ``fc3``, with optional ``bn1`` to ``bn4``.

    `LeNet5` is that of the thesis: 6 and 16 filters of 5×5, then 120, 84 and the classes.

    | images | padding of conv1 | features before ``fc1`` | used for |
    |---|---|---|---|
    | 28×28×1 | ``"SAME"`` (2 pixels) | 400 | probabilistic forward pass on MNIST |
    | 32×32×3 | ``"VALID"`` | 400 | noise and hardening on CIFAR-10 |
    | 28×28×1 | ``"VALID"`` | 256 | walking noise and Dirty-MNIST |
    """

    # 8 parameters: sizes that an architecture leaves open, as layers of Flax take theirs.
    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 1,
        *,
        size: int = 28,
        padding: Literal["SAME", "VALID"] = "SAME",
        batch_norm: bool = False,
        pool: Literal["max", "avg"] = "max",
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          num_classes: Number of outputs.
          in_channels: Channels of the images.
          size: Height and width of the images in pixels.
          padding: Padding of ``conv1``; ``conv2`` has none.
          batch_norm: Whether to normalize before each activation.
          pool: The kind of 2×2 pooling after each convolution's activation.
          activation: Elementwise function after every layer but the last.
          rngs: Keys for the initial parameters.

        Raises:
          ValueError: Unknown padding or pooling, or images that are too small.
        """
        if pool not in POOLS:
            raise ValueError(f"LeNet-5 pools by {sorted(POOLS)}, not {pool!r}.")
        features = lenet5_features(size, padding)
        self.pool = pool
        self.activation = activation
        self.batch_norm = batch_norm
        self.conv1 = nnx.Conv(in_channels, 6, (5, 5), padding=padding, rngs=rngs)
        self.conv2 = nnx.Conv(6, 16, (5, 5), padding="VALID", rngs=rngs)
        self.fc1 = nnx.Linear(features, 120, rngs=rngs)
        self.fc2 = nnx.Linear(120, 84, rngs=rngs)
        self.fc3 = nnx.Linear(84, num_classes, rngs=rngs)
        if batch_norm:
            for i, width in enumerate((6, 16, 120, 84), 1):
                bn = nnx.BatchNorm(width, momentum=0.9, epsilon=1e-5, rngs=rngs)
                setattr(self, f"bn{i}", bn)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch classes"]:
        """Returns the logits."""
        for i, conv in enumerate((self.conv1, self.conv2), 1):
            x = self._activate(i, conv(x))
            x = POOLS[self.pool](x, (2, 2), strides=(2, 2))
        # Axes before the image's three are kept, however many a transform has put there.
        x = x.reshape(*x.shape[:-3], -1)
        for i, fc in enumerate((self.fc1, self.fc2), 3):
            x = self._activate(i, fc(x))
        return self.fc3(x)

    def _activate(self, i: int, x: jax.Array) -> jax.Array:
        return self.activation(getattr(self, f"bn{i}")(x) if self.batch_norm else x)


class LinenMLP(nn.Module):
    """The Linen twin of `jaxeff.nn.MLP`, without batch norm.

    `LinenMLP` and `LinenLeNet5` are their twins in Linen: the same layers under the same names. The
    jaxprs of Linen and NNX models differ, and programs are read from both. Parameters of a twin
    have the paths and shapes of the NNX model's: either set fits both.

    Attributes:
      widths: Features of the input, of every hidden layer and of the output.
      activation: Elementwise function between the layers.
    """

    widths: Sequence[int]
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the outputs; inputs of more than two axes are flattened after the first."""
        if x.ndim > 2:
            x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.widths[1:-1], 1):
            x = self.activation(nn.Dense(width, name=f"fc{i}")(x))
        return nn.Dense(self.widths[-1], name=f"fc{len(self.widths) - 1}")(x)


class LinenLeNet5(nn.Module):
    """The Linen twin of `jaxeff.nn.LeNet5`.

    Attributes:
      num_classes: Number of outputs.
      size: Height and width of the images in pixels.
      padding: Padding of ``conv1``, ``"SAME"`` or ``"VALID"``.
      batch_norm: Whether to normalize before each activation.
    """

    num_classes: int = 10
    size: int = 28
    padding: str = "SAME"
    batch_norm: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Returns the logits; ``train`` selects batch statistics and needs mutable state."""

        def activate(i: int, x: jax.Array) -> jax.Array:
            if self.batch_norm:
                # As the NNX model has them; Flax's own default momentum is another.
                norm = nn.BatchNorm(not train, momentum=0.9, epsilon=1e-5, name=f"bn{i}")
                x = norm(x)
            return jax.nn.relu(x)

        # Shapes are inferred from the images, so nothing else would refuse another size.
        lenet5_features(self.size, self.padding)  # refuses what the NNX model refuses
        x = activate(1, nn.Conv(6, (5, 5), padding=self.padding, name="conv1")(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = activate(2, nn.Conv(16, (5, 5), padding="VALID", name="conv2")(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(*x.shape[:-3], -1)
        x = activate(3, nn.Dense(120, name="fc1")(x))
        x = activate(4, nn.Dense(84, name="fc2")(x))
        return nn.Dense(self.num_classes, name="fc3")(x)
