import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits

from jaxeff import data
from jaxeff.data._formats import _bilinear, frame


@pytest.mark.slow
def test_split_is_fixed_stratified_and_complete():
    digits, again = data.load("digits"), data.load("digits")
    np.testing.assert_array_equal(digits.train_images, again.train_images)
    assert digits.train_images.shape == (1437, 28, 28, 1)
    assert digits.test_images.shape == (360, 28, 28, 1)
    counts = np.bincount(load_digits().target)
    shares = np.bincount(digits.test_labels) / counts
    np.testing.assert_allclose(shares, 360 / 1797, atol=1 / counts.min())
    together = np.concatenate([digits.train_images, digits.test_images])
    expected = frame(load_digits().images)
    np.testing.assert_array_equal(_sorted_rows(together), _sorted_rows(expected))


def test_images_are_the_same_where_float64_is_on():
    images = load_digits().images
    expected = frame(images)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(frame(images), expected)
    resized = jax.image.resize(np.eye(8, dtype=np.float32), (20, 8), "bilinear")
    # A unit in the last place of the largest coordinate, which two roundings may differ by.
    np.testing.assert_allclose(_bilinear(8, 20), resized, atol=2 * np.spacing(np.float32(8)))


def test_frame_keeps_constants_and_has_a_black_border():
    framed = frame(np.stack([np.zeros((8, 8)), np.full((8, 8), 16.0), np.full((8, 8), 8.0)]))
    np.testing.assert_array_equal(framed[0], 0)
    np.testing.assert_array_equal(framed[1, 4:-4, 4:-4], 255)
    np.testing.assert_array_equal(framed[2, 4:-4, 4:-4], 128)
    assert not framed[:, :4].any()
    assert not framed[:, :, -4:].any()


def test_frame_keeps_orientation():
    image = np.zeros((1, 8, 8))
    image[0, 0, 6] = 16
    row, column = np.argwhere(frame(image)[0, ..., 0] == frame(image).max())[0]
    assert row < 14 < column


@pytest.mark.slow
def test_out_of_domain_patches_look_like_digits_but_for_content():
    ood, digits = data.load("digits-ood"), data.load("digits")
    for part in ("train_images", "test_images"):
        patches = getattr(ood, part)
        assert patches.shape == getattr(digits, part).shape
        assert patches.dtype == np.uint8
        assert not patches[:, :4].any()
        # Every patch is stretched to the full range of the digits.
        assert (patches.max((1, 2, 3)) > 128).all()
        assert len(np.unique(patches, axis=0)) > 0.95 * len(patches)
    assert set(np.unique(ood.test_labels)) == {0, 1}
    np.testing.assert_array_equal(ood.test_images, data.load("digits-ood").test_images)


@pytest.mark.slow
def test_train_and_test_patches_are_disjoint():
    ood = data.load("digits-ood")
    train = {image.tobytes() for image in ood.train_images}
    assert not train & {image.tobytes() for image in ood.test_images}


def _sorted_rows(images):
    flat = images.reshape(len(images), -1)
    return flat[np.lexsort(flat.T)]
