import jax
import jax.numpy as jnp
import numpy as np

from jaxeff import data


def test_every_image_is_a_shifted_and_perhaps_mirrored_copy():
    pad, size = 2, 6
    images = jnp.arange(1, 40 * size * size * 2 + 1).reshape(40, size, size, 2)
    augmented = jax.jit(lambda key: data.augment(key, images, pad=pad))(jax.random.key(0))
    assert augmented.shape == images.shape
    assert augmented.dtype == images.dtype
    seen = set()
    padded = np.pad(np.asarray(images), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    for source, result in zip(padded, np.asarray(augmented), strict=True):
        matches = [
            (row, column, mirrored)
            for row in range(2 * pad + 1)
            for column in range(2 * pad + 1)
            for mirrored in (False, True)
            if np.array_equal(
                source[row : row + size, column : column + size][:, :: -1 if mirrored else 1],
                result,
            )
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert {match[2] for match in seen} == {False, True}
    assert {match[0] for match in seen} == set(range(2 * pad + 1))


def test_without_pad_and_flip_nothing_changes():
    images = jnp.ones((3, 4, 4, 1)).cumsum(1)
    same = data.augment(jax.random.key(1), images, pad=0, flip=False)
    np.testing.assert_array_equal(same, images)
