"""The corruptions: shapes, range and order of severities, and what is known of single ones."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from jaxeff.data import CORRUPTIONS, corrupt

KEY = jax.random.key(0)
PHOTOGRAPHS = [photo.astype(np.float32) / 255 for photo in load_sample_images().images]
PATCHES = jnp.asarray(
    np.stack([p[i : i + 32, j : j + 32] for p in PHOTOGRAPHS for i in (64, 160, 256, 352)
              for j in (64, 160, 256, 352)])
)  # fmt: skip
GRAY = PATCHES[:8].mean(-1, keepdims=True)[:, :28, :28]
RANDOM = {
    "gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost",
    "fog", "elastic_transform",
}  # fmt: skip


# Frost darkens as it hides, glass is moved or blurred, and larger deformations are smoother: see
# below.
OTHERWISE = {"frost", "glass_blur", "elastic_transform"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_keeps_shape_and_range_and_grows_with_severity(name):
    distances = []
    for severity in (1, 2, 3, 4, 5):
        corrupted = jax.jit(lambda key, x, s=severity: corrupt(key, x, name, s))(KEY, PATCHES)
        assert corrupted.shape == PATCHES.shape
        assert corrupted.dtype == PATCHES.dtype
        assert corrupted.min() >= 0
        assert corrupted.max() <= 1
        distances.append(float(jnp.abs(corrupted - PATCHES).mean()))
    assert distances[0] > 1e-3
    if name not in OTHERWISE:
        # Motion's third and fourth kernels differ where both are zero in float32.
        steps = np.diff(distances)[[0, 1, 3]] if name == "motion_blur" else np.diff(distances)
        assert (steps > 0).all(), distances


@pytest.mark.slow
def test_glass_is_blurred_more_and_then_moved_twice():
    corrupted = [corrupt(KEY, PATCHES, "glass_blur", severity) for severity in (1, 2, 3, 4, 5)]
    edges = [float(jnp.abs(jnp.diff(images, axis=1)).mean()) for images in corrupted]
    assert edges[0] > edges[1] > edges[2]
    assert edges[3] > edges[4]
    once, twice = (
        float(jnp.abs(images - PATCHES).mean()) for images in (corrupted[2], corrupted[3])
    )
    assert twice > once


@pytest.mark.slow
def test_frost_hides_more_with_severity():
    def likeness(severity):
        corrupted = corrupt(KEY, PATCHES, "frost", severity).reshape(len(PATCHES), -1)
        pairs = zip(
            np.asarray(corrupted), np.asarray(PATCHES).reshape(len(PATCHES), -1), strict=True
        )
        return np.mean([np.corrcoef(a, b)[0, 1] for a, b in pairs])

    assert (np.diff([likeness(severity) for severity in (1, 2, 3, 4, 5)]) < 0).all()


@pytest.mark.slow
def test_displacements_get_rougher_with_severity():
    ramps = jnp.stack(jnp.meshgrid(jnp.linspace(0, 1, 32), jnp.linspace(0, 1, 32)), -1)
    ramps = jnp.broadcast_to(ramps[None], (8, 32, 32, 2))

    def roughness(severity):
        corrupted = corrupt(KEY, ramps, "elastic_transform", severity)[:, 10:22, 10:22]
        return np.abs(np.diff(corrupted, 2, axis=1)).mean()

    assert (np.diff([roughness(severity) for severity in (1, 2, 3, 4, 5)]) > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_gray_images_and_keys(name):
    corrupted = corrupt(KEY, GRAY, name, 5)
    assert corrupted.shape == GRAY.shape
    np.testing.assert_array_equal(corrupted, corrupt(KEY, GRAY, name, 5))
    other = corrupt(jax.random.key(1), GRAY, name, 5)
    assert np.array_equal(corrupted, other) == (name not in RANDOM)


@pytest.mark.slow
def test_noise_is_as_wide_as_it_says():
    middle = jnp.full((4, 64, 64, 1), 0.5)
    # Of n = 16384 values the deviation is known to 1 / sqrt(2 n) of itself: .6 %.
    gaussian = corrupt(KEY, middle, "gaussian_noise", 3) - middle
    np.testing.assert_allclose(gaussian.std(), 0.08, rtol=0.03)
    shot = corrupt(KEY, middle, "shot_noise", 1) - middle
    np.testing.assert_allclose(shot.std(), np.sqrt(0.5 / 500), rtol=0.03)
    impulse = corrupt(KEY, middle, "impulse_noise", 5)
    for value in (0, 1):  # a share of .035 each, known to sqrt(.035 / n) = .0015
        np.testing.assert_allclose((impulse == value).mean(), 0.035, atol=0.0075)


def test_contrast_and_brightness_are_their_formulas():
    low = corrupt(KEY, PATCHES, "contrast", 4)
    mean = PATCHES.mean((1, 2), keepdims=True)
    np.testing.assert_allclose(low, (PATCHES - mean) * 0.3 + mean, atol=1e-6)
    bright = corrupt(KEY, PATCHES, "brightness", 5)
    np.testing.assert_allclose(
        bright.max(-1), jnp.minimum(PATCHES.max(-1) + 0.3, 1), rtol=1e-5, atol=1e-6
    )
    black = corrupt(KEY, jnp.zeros((1, 4, 4, 3)), "brightness", 1)
    np.testing.assert_allclose(black, 0.05, rtol=1e-6)


@pytest.mark.slow
def test_blurs_keep_what_is_even():
    even = jnp.full((2, 16, 16, 3), 0.3)
    for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "pixelate"):
        np.testing.assert_allclose(corrupt(KEY, even, name, 5), even, atol=1e-5)


@pytest.mark.slow
def test_an_affine_deformation_moves_a_ramp_linearly():
    ramp = jnp.broadcast_to(jnp.linspace(0, 1, 32)[None, :, None, None], (1, 32, 32, 1))
    moved = corrupt(KEY, ramp, "elastic_transform", 1)[0, 12:20, 12:20, 0]  # no displacement field
    np.testing.assert_allclose(np.diff(moved, 2, axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(np.diff(moved, 2, axis=1), 0, atol=1e-5)
    assert np.abs(moved - ramp[0, 12:20, 12:20, 0]).max() > 1e-3


@pytest.mark.parametrize(("severity", "quality"), [(1, 80), (5, 40)])
def test_jpeg_is_about_what_a_file_holds(severity, quality):
    ours = np.asarray(corrupt(KEY, PATCHES, "jpeg_compression", severity))
    for image, corrupted in zip(np.asarray(PATCHES), ours, strict=True):
        file = io.BytesIO()
        exact = np.round(image * 255).astype(np.uint8)
        Image.fromarray(exact).save(file, "JPEG", quality=quality)
        theirs = np.asarray(Image.open(file), np.float64) / 255
        error = np.sqrt(((corrupted - theirs) ** 2).mean())
        # The library interpolates colours where pixels are repeated here.
        assert error < 0.6 * np.sqrt(((theirs - image) ** 2).mean()) + 0.004


def test_what_is_no_image_is_refused():
    with pytest.raises(ValueError, match="before they are normalized"):
        corrupt(KEY, 2 * PATCHES, "fog", 1)
    with pytest.raises(TypeError, match="divide bytes by 255"):
        corrupt(KEY, jnp.zeros((1, 8, 8, 1), jnp.uint8), "fog", 1)
