"""A classification data set held in memory: images, labels and how many classes there are."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt8


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with their labels, as host (NumPy) arrays.

    Attributes:
        name: The name it was loaded under, as `jaxeff.data.normalize` takes it.
        train_images: uint8, ``[n, height, width, channels]``, 0 (black) to 255.
        train_labels: int32, ``[n]``, from 0 to ``num_classes - 1``.
        test_images: uint8, ``[m, height, width, channels]``.
        test_labels: int32, ``[m]``.
        num_classes: Number of classes.
    """

    name: str
    train_images: UInt8[np.ndarray, "train height width channels"]
    train_labels: Int[np.ndarray, " train"]
    test_images: UInt8[np.ndarray, "test height width channels"]
    test_labels: Int[np.ndarray, " test"]
    num_classes: int

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""
        height, width, channels = self.train_images.shape[1:]
        return height, width, channels

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, train={len(self.train_labels)}, test={len(self.test_labels)}, "
            f"image={self.image_shape}, classes={self.num_classes})"
        )
