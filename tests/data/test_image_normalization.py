import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import data


@pytest.mark.slow
def test_digits_become_standard():
    images = data.normalize(data.load("digits").train_images, "digits")
    assert images.dtype == jnp.float32
    # The constants are rounded to four decimals: half a unit over a standard deviation of .2774.
    assert abs(float(images.mean())) < 5e-5 / 0.2774 + 1e-5
    assert abs(float(images.std()) - 1) < 5e-5 / 0.2774 + 1e-5


def test_float_images_are_taken_as_scaled_and_it_jits():
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    scaled = jnp.asarray(images / 255, jnp.float32)
    ours = jax.jit(data.normalize, static_argnums=1)(scaled, "cifar-10")
    expected = (images / 255 - [0.4914, 0.4822, 0.4465]) / [0.2470, 0.2435, 0.2616]
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    np.testing.assert_allclose(data.normalize(images, "cifar-10"), expected, rtol=1e-5)


def test_bad_input():
    with pytest.raises(data.DataError, match="no normalisation constants for 'digits-ood'"):
        data.normalize(np.zeros((1, 28, 28, 1), np.uint8), "digits-ood")
    with pytest.raises(data.DataError, match=r"1 channel\(s\) last, found shape \(2, 28, 28\)"):
        data.normalize(np.zeros((2, 28, 28), np.uint8), "mnist")
    with pytest.raises(TypeError, match="uint8 or floating images, found int32"):
        data.normalize(np.zeros((2, 28, 28, 1), np.int32), "mnist")
