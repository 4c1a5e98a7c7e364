"""Long chains of scalars over positions read what belongs to their channel, in any vectors.

Where a processor has vectors of 16 floats, 8 channels of two positions fill one: LLVM 22 has read
the second eight from behind the first (`_wraps_in_a_vector` in the schedules).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxeff_export import deploy


def quotient(above, below):
    """A quotient that is zero where nothing can be divided: a branch makes a chain long."""
    none = jnp.abs(below) < 1e-30
    return jnp.where(none, 0.0, above / jnp.where(none, 1.0, below))


def normalized(x, total, scale, deviation):
    total, scale, deviation = (
        v[:, None, None] for v in (total / x[0, ..., 0].size, scale, deviation)
    )
    return quotient(quotient(x, total) * scale, deviation)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [2, 4, 8, 16, 6])
def test_channels_keep_their_values(channels):
    draw = np.random.RandomState(0)
    of_channels = [draw.uniform(0.5, 1.5, (2, channels)).astype(np.float32) for _ in range(3)]
    x = draw.uniform(0.5, 1.5, (2, 8, 8, channels)).astype(np.float32)
    ours = deploy(normalized, (x, *of_channels), parameters=0).run(x, *of_channels)
    np.testing.assert_allclose(ours, jax.jit(normalized)(x, *of_channels), rtol=1e-5)
