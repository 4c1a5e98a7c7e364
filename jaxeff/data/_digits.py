"""Embedded data, so that everything runs with no network: scikit-learn's digits, and an OOD set.

``digits`` is scikit-learn's copy of the UCI optical digits test set: 1,797 images of 8 x 8 pixels
with values 0 to 16. Its split is fixed and stratified: 1,437 to train, 360 to test. The images are
framed as MNIST frames its digits, so that LeNet-5 takes them unchanged: scaled to 0 to 255,
resized bilinearly to 20 x 20 and centred in a black 28 x 28 image.

``digits-ood`` is what a classifier of digits should not know: grey patches of the two photographs
that scikit-learn bundles (a temple and a flower), of 32 x 32 pixels, averaged to 8 x 8, stretched
to the full range 0 to 16, and from there on treated exactly as the digits are. Resolution, frame,
range and grey levels are those of the digits, so only the content tells the two apart. Its labels
say which photograph. Training patches come from the left half of a photograph, test patches from
the right half. It is a substitute, and ours: for comparable numbers use MNIST and Fashion-MNIST.

Sharp edge: the digits of one writer fall into both parts of the split, as in most uses of this set,
so its test accuracy flatters.
"""

import jax
import numpy as np
from jaxtyping import UInt8

from jaxeff.data._dataset import Dataset

TEST_SIZE = 360
PHOTOGRAPHS = ("china.jpg", "flower.jpg")

_PATCH, _STRIDE, _LEVELS = 32, 8, 16
_SEED = 0


def digits() -> Dataset:
    """Loads scikit-learn's digits in MNIST's frame: 1,437 + 360 images of 28 x 28."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    train_images, test_images, train_labels, test_labels = train_test_split(
        bunch.images,
        bunch.target.astype(np.int32),
        test_size=TEST_SIZE,
        stratify=bunch.target,
        random_state=_SEED,
    )
    return Dataset(
        "digits", frame(train_images), train_labels, frame(test_images), test_labels, num_classes=10
    )


def digits_ood() -> Dataset:
    """Makes patches of scikit-learn's photographs look like digits: 1,437 + 360 images."""
    from sklearn.datasets import load_digits, load_sample_image

    sizes = {"train": len(load_digits().target) - TEST_SIZE, "test": TEST_SIZE}
    # A fixed seed: whoever names this data set has the same images.
    rng = np.random.default_rng(_SEED)
    parts = {}
    for half, (part, size) in enumerate(sizes.items()):
        patches, labels = [], []
        for label, photograph in enumerate(PHOTOGRAPHS):
            grey = load_sample_image(photograph).astype(np.float64).mean(-1)
            # Training and test patches come from different halves, so that none of them overlap.
            middle = grey.shape[1] // 2
            found = _patches(grey[:, middle:] if half else grey[:, :middle])
            count = (size + label) // len(PHOTOGRAPHS)  # the parts add up to an odd size too
            patches.append(found[rng.choice(len(found), count, replace=False)])
            labels.append(np.full(count, label, np.int32))
        order = rng.permutation(size)
        parts[part] = (frame(np.concatenate(patches)[order]), np.concatenate(labels)[order])
    return Dataset("digits-ood", *parts["train"], *parts["test"], num_classes=len(PHOTOGRAPHS))


def frame(images: np.ndarray) -> UInt8[np.ndarray, "n 28 28 1"]:
    """Brings ``[n, 8, 8]`` images of values 0 to 16 to MNIST's frame (uint8, 20 x 20 in 28 x 28).

    Args:
        images: ``[n, 8, 8]``, 0 to 16.

    Returns:
        uint8 ``[n, 28, 28, 1]``.
    """
    scaled = np.asarray(images, np.float32) * (255 / _LEVELS)
    # Host arithmetic in two small matrix products: the same bytes whatever device JAX runs on.
    resize = _bilinear(images.shape[1], 20)
    resized = np.clip(np.rint(resize @ scaled @ resize.T), 0, 255).astype(np.uint8)
    return np.pad(resized, ((0, 0), (4, 4), (4, 4)))[..., None]


def _bilinear(size: int, new_size: int) -> np.ndarray:
    """Computes the matrix of a bilinear resize, pixels centred at half integers.

    Its shape is ``[new_size, size]``.
    """
    # On the host even where an accelerator is JAX's default, whose rounding may differ.
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return np.asarray(jax.image.resize(np.eye(size), (new_size, size), "bilinear"))


def _patches(grey: np.ndarray) -> np.ndarray:
    """Cuts patches on a grid, as 8 x 8 block means in 17 levels, without flat ones (sky)."""
    windows = np.lib.stride_tricks.sliding_window_view(grey, (_PATCH, _PATCH))
    # Axes: patch, block row, pixel in it, block column, pixel in it.
    windows = windows[::_STRIDE, ::_STRIDE].reshape(-1, 8, _PATCH // 8, 8, _PATCH // 8)
    blocks = windows.mean((2, 4))
    low, high = blocks.min((1, 2), keepdims=True), blocks.max((1, 2), keepdims=True)
    # Stretched to the full range, a flat patch would be mere rounding noise.
    blocks, low, high = (a[(high - low)[:, 0, 0] >= _LEVELS] for a in (blocks, low, high))
    return np.rint((blocks - low) / (high - low) * _LEVELS)
