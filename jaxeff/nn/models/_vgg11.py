"""VGG-11 (arXiv 1409.1556, configuration A) for images that five poolings bring to 1×1 or more.

Klein's thesis runs it on 32×32 CIFAR-10 images with the head of the 224×224 network: the last
feature map is brought to 7×7 and flattened to 25,088 features, which repeats each of 512 features
49 times. That head and 1000 outputs are what its 132.86 M parameters and 276.4 M multiply-adds
count; with ten outputs the net has 128.81 M and 272.3 M. ``head=1`` leaves the repetition out.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxeff.nn.layers import avg_pool

STAGES = (1, 1, 2, 2, 2)
"""Convolutions before each pooling."""
WIDTHS = (64, 128, 256, 256, 512, 512, 512, 512)


class VGG11(nnx.Module):
    """``conv1`` to ``conv8`` (with ``bn1`` to ``bn8`` on request), ``fc1``, ``fc2``, ``fc3``.

    ``drop1`` and ``drop2`` follow ``fc1`` and ``fc2``: they need the model's train mode, or
    ``model.eval()`` to switch them off.
    """

    # 8 parameters: sizes that an architecture leaves open, as layers of Flax take theirs.
    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        *,
        batch_norm: bool = False,
        head: int = 7,
        dropout: float = 0.5,
        widths: tuple[int, int, int, int, int, int, int, int] = WIDTHS,
        hidden: int = 4096,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          num_classes: Number of outputs.
          in_channels: Channels of the images.
          batch_norm: Whether to normalize before each convolution's activation.
          head: Side of the feature map that ``fc1`` sees.
          dropout: Dropout rate after ``fc1`` and ``fc2``.
          widths: Channels of the eight convolutions.
          hidden: Units of ``fc1`` and of ``fc2``.
          rngs: Keys for the initial parameters and for dropout.
        """
        self.batch_norm = batch_norm
        self.head = head
        channels = in_channels
        # Without batch norm, eight layers keep their variance by this scale: He et al., eq. 10.
        init = nnx.initializers.he_normal()
        for i, width in enumerate(widths, 1):
            conv = nnx.Conv(channels, width, (3, 3), padding=1, kernel_init=init, rngs=rngs)
            setattr(self, f"conv{i}", conv)
            if batch_norm:
                bn = nnx.BatchNorm(width, momentum=0.9, epsilon=1e-5, rngs=rngs)
                setattr(self, f"bn{i}", bn)
            channels = width
        # 103 of the network's 129 million parameters are here: 25,088 features times 4,096.
        self.fc1 = nnx.Linear(channels * head * head, hidden, kernel_init=init, rngs=rngs)
        self.fc2 = nnx.Linear(hidden, hidden, kernel_init=init, rngs=rngs)
        self.fc3 = nnx.Linear(hidden, num_classes, rngs=rngs)
        # Without dropout there is nothing to draw, so the state holds no keys.
        draws = rngs if dropout else None
        self.drop1 = nnx.Dropout(dropout, rngs=draws)
        self.drop2 = nnx.Dropout(dropout, rngs=draws)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch classes"]:
        """Returns the logits.

        Raises:
          ValueError: The last feature map can't be brought to the head's size evenly.
        """
        i = 0
        for convolutions in STAGES:
            for _ in range(convolutions):
                i += 1
                x = getattr(self, f"conv{i}")(x)
                x = jax.nn.relu(getattr(self, f"bn{i}")(x) if self.batch_norm else x)
            x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        x = _resize_pool(x, self.head)
        x = x.reshape(*x.shape[:-3], -1)
        x = self.drop1(jax.nn.relu(self.fc1(x)))
        x = self.drop2(jax.nn.relu(self.fc2(x)))
        return self.fc3(x)


def _resize_pool(x: jax.Array, size: int) -> jax.Array:
    """Pools by averages to ``size``×``size``, adaptively; one size must divide the other."""
    height, width, channels = x.shape[-3:]
    if (height, width) == (size, size):
        return x
    if height == width and height % size == 0:
        window = (height // size, width // size)
        return avg_pool(x, window, window)
    if height == width and size % height == 0:
        # Each output cell averages a single input cell: a repetition.
        k = size // height
        x = x.reshape(*x.shape[:-3], height, 1, width, 1, channels)
        x = jnp.broadcast_to(x, (*x.shape[:-5], height, k, width, k, channels))
        return x.reshape(*x.shape[:-5], size, size, channels)
    raise ValueError(
        f"VGG-11 can't bring a {height}×{width} feature map to {size}×{size}: "
        "choose a head size that divides it or is a multiple of it."
    )
