"""Reference networks of MLPerf Tiny (arXiv 2106.07597); its image classifier is `ResNet8`.

| network | input | parameters, with running statistics | multiply-adds |
|---|---|---|---|
| `DSCNN` | 49 frames of 10 cepstra | 24,908 | 2.66 M |
| `MobileNetV1` | 96×96×3 | 221,794 | 7.49 M |
| `DenseAutoencoder` | 5 frames of 128 bands | 269,992 | 0.26 M |

Layers are those of the published Keras models in order, biases before batch norm too, so that their
weights fit. They return logits; a benchmark's results are their softmax.
"""

from flax import nnx
from jaxtyping import Array, Float

from jaxeff.core import static_integer, validate
from jaxeff.nn.layers import bn

MOBILE_BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    *[(512, 1)] * 5, (1024, 2), (1024, 1),
)  # fmt: skip
"""Channels and stride of each pair of convolutions, at full width (arXiv 1704.04861, table 1)."""


class Separable(nnx.Module):
    """``depthwise`` 3×3 and ``bn1``, then ``pointwise`` and ``bn2``."""

    def __init__(self, channels: int, width: int, stride: int, *, rngs: nnx.Rngs):
        """Builds the layers.

        Args:
          channels: Channels of the input.
          width: Channels of the output.
          stride: Stride of the depthwise convolution.
          rngs: Keys for the initial parameters.
        """
        self.depthwise = nnx.Conv(
            channels, channels, (3, 3), stride, feature_group_count=channels, rngs=rngs
        )
        self.bn1 = bn(channels, rngs=rngs)
        self.pointwise = nnx.Conv(channels, width, (1, 1), rngs=rngs)
        self.bn2 = bn(width, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch out_height out_width out_channels"]:
        """Returns what is activated twice."""
        x = nnx.relu(self.bn1(self.depthwise(x)))
        return nnx.relu(self.bn2(self.pointwise(x)))


class DSCNN(nnx.Module):
    """The keyword spotter: ``conv1`` 10×4 and ``bn1``, separable ``blocks``, and ``fc``."""

    @validate(num_classes=static_integer(), width=static_integer(), blocks=static_integer())
    def __init__(self, num_classes: int = 12, *, width: int = 64, blocks: int = 4, rngs: nnx.Rngs):
        """Builds the layers.

        Args:
          num_classes: Number of outputs.
          width: Channels.
          blocks: Number of pairs of a depthwise and a pointwise convolution.
          rngs: Keys for the initial parameters.
        """
        # Keras' "same" padding, more at the end, as all convolutions here have it.
        self.conv1 = nnx.Conv(1, width, (10, 4), 2, rngs=rngs)
        self.bn1 = bn(width, rngs=rngs)
        self.blocks = nnx.List([Separable(width, width, 1, rngs=rngs) for _ in range(blocks)])
        self.fc = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, x: Float[Array, "batch frames cepstra 1"]) -> Float[Array, "batch classes"]:
        """Returns the logits."""
        x = nnx.relu(self.bn1(self.conv1(x)))
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((-3, -2)))


class MobileNetV1(nnx.Module):
    """The classifier of persons: ``conv1`` and ``bn1``, 13 separable ``blocks``, and ``fc``."""

    @validate(num_classes=static_integer(), in_channels=static_integer(), base=static_integer())
    def __init__(
        self, num_classes: int = 2, in_channels: int = 3, *, base: int = 8, rngs: nnx.Rngs
    ):
        """Builds the layers.

        Args:
          num_classes: Number of outputs.
          in_channels: Channels of the images.
          base: Channels of the first convolution: 32 at full width, 8 at a quarter of it.
          rngs: Keys for the initial parameters.
        """
        # Half of the image at once: all later layers are small.
        self.conv1 = nnx.Conv(in_channels, base, (3, 3), 2, rngs=rngs)
        self.bn1 = bn(base, rngs=rngs)
        # No pooling: strides of two halve the image, five times in all.
        channels, blocks = base, []
        for full, stride in MOBILE_BLOCKS:
            # A quarter of the channels, as a quarter of 32 is 8.
            width = full * base // 32
            blocks.append(Separable(channels, width, stride, rngs=rngs))
            channels = width
        self.blocks = nnx.List(blocks)
        self.fc = nnx.Linear(channels, num_classes, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch classes"]:
        """Returns the logits."""
        x = nnx.relu(self.bn1(self.conv1(x)))
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((-3, -2)))


class DenseAutoencoder(nnx.Module):
    """The reconstruction of sounds: ``fc0`` to ``fc8``, ``bn0`` to ``bn8``, and ``out``.

    How far it is from the sound says how odd that is: the mean of squared differences.
    """

    @validate(features=static_integer(), width=static_integer(), code=static_integer())
    def __init__(self, features: int = 640, *, width: int = 128, code: int = 8, rngs: nnx.Rngs):
        """Builds the layers.

        Args:
          features: Number of inputs, and of outputs.
          width: Units of eight of the hidden layers.
          code: Units of the one in the middle.
          rngs: Keys for the initial parameters.
        """
        channels = features
        # Four layers, the narrow one, and four more.
        for i, units in enumerate((*[width] * 4, code, *[width] * 4)):
            setattr(self, f"fc{i}", nnx.Linear(channels, units, rngs=rngs))
            setattr(self, f"bn{i}", bn(units, rngs=rngs))
            channels = units
        self.out = nnx.Linear(width, features, rngs=rngs)

    def __call__(self, x: Float[Array, "batch features"]) -> Float[Array, "batch features"]:
        """Returns the reconstruction."""
        for i in range(9):
            x = nnx.relu(getattr(self, f"bn{i}")(getattr(self, f"fc{i}")(x)))
        return self.out(x)
