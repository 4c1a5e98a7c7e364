"""Networks that answer for every cell or pixel: a detector of objects, and a small U-Net.

```python
import jax.numpy as jnp
from flax import nnx

import jaxeff
from jaxeff.nn import CellDetector, UNet, cell_targets

f, params = jaxeff.functional(CellDetector(3, boxes=True, rngs=nnx.Rngs(0)))
logits, boxes = f(params, jnp.ones((2, 48, 64, 1)))         # [2, 6, 8, 4] and [2, 6, 8, 4]
truth = jnp.array([[4.0, 10.0, 20.0, 22.0], [0.0, 0.0, 0.0, 0.0]])
cells, corners = cell_targets(truth, jnp.array([2, -1]), (6, 8))   # one object, one place unused
g, weights = jaxeff.functional(UNet(4, rngs=nnx.Rngs(0)))
pixels = g(weights, jnp.ones((2, 48, 64, 1)))               # [2, 48, 64, 4]
```

Both are fully convolutional: images may have any size (of the U-Net: a multiple of 4 pixels).
Coordinates are pixels, `(top, left, bottom, right)`, those of a pixel's upper left corner.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxeff import core

WIDE = nnx.initializers.he_normal()
"""Keeps variances behind ReLU as they are: He et al. 2015, arXiv 1502.01852, equation 10."""
CELL = 8
"""Pixels along each side of a cell: three convolutions of stride 2."""


class CellDetector(nnx.Module):
    """``conv1`` to ``conv4`` and ``head``: what is centred in each cell of 8×8 pixels.

    An object is what its centre's cell says it is, so objects in neighbouring cells are told apart
    and none needs an anchor. So does FOMO (Edge Impulse 2022), which cuts a classifier off at an
    eighth of its resolution; with ``boxes``, each cell tells an object's corners as well, relative
    to its own centre (as FCOS does, Tian et al. 2019, arXiv 1904.01355).
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 1,
        widths: Sequence[int] = (8, 16, 32, 32),
        *,
        boxes: bool = False,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
            num_classes: Classes of objects; the background is one more, the first.
            in_channels: Channels of the images.
            widths: Channels of the four convolutions.
            boxes: Whether cells tell corners, too.
            rngs: Keys for the initial parameters.

        Raises:
            ValueError: Other than four widths.
        """
        if len(widths) != 4:
            raise ValueError(f"CellDetector: widths must be four numbers, not {tuple(widths)}")
        # The fourth convolution lets a cell see objects of three cells, at a step of one.
        for i, (inner, outer) in enumerate(zip((in_channels, *widths[:3]), widths, strict=True), 1):
            strides = 1 if i == 4 else 2
            layer = nnx.Conv(inner, outer, (3, 3), strides, kernel_init=WIDE, rngs=rngs)
            setattr(self, f"conv{i}", layer)
        self.head = nnx.Conv(widths[3], 1 + num_classes, (1, 1), rngs=rngs)
        self.corners = nnx.Conv(widths[3], 4, (1, 1), rngs=rngs) if boxes else None

    def __call__(self, x: Float[Array, "batch height width channels"]) -> Any:
        """Returns logits ``[batch, rows, columns, 1 + classes]``, or a pair of them and of boxes.

        Boxes ``[batch, rows, columns, 4]`` are linear in what the last layer returns.
        """
        for i in range(1, 5):
            x = jax.nn.relu(getattr(self, f"conv{i}")(x))
        if self.corners is None:
            return self.head(x)
        # A unit of the layer is a cell, so that its outputs are of the order of one.
        return self.head(x), _centers(x.shape[1:3])[None] + CELL * self.corners(x)


def _centers(shape: tuple[int, ...]) -> Float[Array, "rows columns 4"]:
    """Computes the middle of each cell, as a box without extent."""
    rows, columns = (CELL * (jnp.arange(size, dtype=jnp.float32) + 0.5) for size in shape)
    middle = jnp.stack(jnp.meshgrid(rows, columns, indexing="ij"), -1)
    return jnp.concatenate([middle, middle], -1)


@core.validate(
    boxes=core.real_array(2), labels=core.integer_array(1), shape=core.static_integers(1)
)
def cell_targets(
    boxes: Float[Array, "objects 4"], labels: Int[Array, " objects"], shape: tuple[int, int]
) -> tuple[Int[Array, "rows columns"], Float[Array, "rows columns 4"]]:
    """Says what each cell of `CellDetector` should tell of an image's objects; jits and vmaps.

    Args:
        boxes: Corners `(top, left, bottom, right)` in pixels.
        labels: Classes from 0; below zero where there is no object, so that images of fewer objects
            have arrays of one shape.
        shape: Rows and columns of cells.

    Returns:
        Labels of cells, one more than an object's class and 0 for the background, and the boxes,
        zero where there is no object. Of objects centred in one cell the last counts; those centred
        outside of the image are left out.

    Raises:
        ValueError: Boxes have other than four coordinates, or other than one label each.
    """
    if jnp.shape(boxes) != (*jnp.shape(labels), 4) or len(shape) != 2:
        raise ValueError(
            "cell_targets: boxes must be [objects, 4], labels [objects] and shape (rows, columns), "
            f"not {jnp.shape(boxes)}, {jnp.shape(labels)} and {shape}"
        )
    boxes, labels = jnp.asarray(boxes), jnp.asarray(labels)
    middle = jnp.floor((boxes[:, :2] + boxes[:, 2:]) / (2 * CELL)).astype(int)
    inside = (labels >= 0) & (middle >= 0).all(1) & (middle < jnp.array(shape)[None]).all(1)
    # A maximum, since the order in which a scatter writes to one place isn't defined.
    order = jnp.where(inside, jnp.arange(len(labels)), -1)
    place = jnp.full(shape, -1).at[middle[:, 0], middle[:, 1]].max(order, mode="drop")
    taken = place >= 0
    corners = jnp.where(taken[..., None], boxes[place], 0)
    return jnp.where(taken, labels[place] + 1, 0), corners


class UNet(nnx.Module):
    """``down1``, ``down2``, ``deep``, ``up2``, ``join2``, ``up1``, ``join1``, ``head``.

    Ronneberger, Fischer, Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation",
    MICCAI 2015, arXiv 1505.04597, at three resolutions, with one convolution where the paper has
    two, and padded so that outputs have the size of images.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 1,
        widths: Sequence[int] = (8, 16, 32),
        *,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
            num_classes: Classes of a pixel, the background being one.
            in_channels: Channels of the images.
            widths: Channels at the three resolutions.
            rngs: Keys for the initial parameters.

        Raises:
            ValueError: Other than three widths.
        """
        if len(widths) != 3:
            raise ValueError(f"UNet: widths must be three numbers, not {tuple(widths)}")
        fine, middle, coarse = widths
        self.down1 = nnx.Conv(in_channels, fine, (3, 3), kernel_init=WIDE, rngs=rngs)
        self.down2 = nnx.Conv(fine, middle, (3, 3), kernel_init=WIDE, rngs=rngs)
        self.deep = nnx.Conv(middle, coarse, (3, 3), kernel_init=WIDE, rngs=rngs)
        self.up2 = nnx.ConvTranspose(coarse, middle, (2, 2), strides=(2, 2), rngs=rngs)
        self.join2 = nnx.Conv(2 * middle, middle, (3, 3), kernel_init=WIDE, rngs=rngs)
        self.up1 = nnx.ConvTranspose(middle, fine, (2, 2), strides=(2, 2), rngs=rngs)
        self.join1 = nnx.Conv(2 * fine, fine, (3, 3), kernel_init=WIDE, rngs=rngs)
        self.head = nnx.Conv(fine, num_classes, (1, 1), rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width classes"]:
        """Returns the logits of each pixel.

        Raises:
            ValueError: A side of the images is no multiple of 4.
        """
        if x.shape[1] % 4 or x.shape[2] % 4:
            raise ValueError(f"UNet: sides must be multiples of 4, not {x.shape[1:3]}: pad images")
        fine = jax.nn.relu(self.down1(x))
        middle = jax.nn.relu(self.down2(_halved(fine)))
        deep = jax.nn.relu(self.deep(_halved(middle)))
        middle = jax.nn.relu(self.join2(jnp.concatenate([middle, self.up2(deep)], -1)))
        fine = jax.nn.relu(self.join1(jnp.concatenate([fine, self.up1(middle)], -1)))
        return self.head(fine)


def _halved(x: Array) -> Array:
    return nnx.max_pool(x, (2, 2), strides=(2, 2))
