"""A function in batches gives what it gives at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.uncertainty import in_batches


@pytest.mark.parametrize("batch", [1, 4, 7, 20])
@pytest.mark.parametrize("axis", [0, -2])
def test_batches_are_joined(batch, axis):
    x = jax.random.normal(jax.random.key(0), (7, 3))
    sizes = []

    def f(part):
        sizes.append(len(part))
        outputs = jnp.stack([part, 2 * part])  # [samples, batch, features]
        return {"all": outputs if axis == -2 else outputs.swapaxes(0, 1)}

    joined = in_batches(f, x, batch, axis=axis)
    assert max(sizes) <= batch
    np.testing.assert_array_equal(joined["all"], f(x)["all"])


def test_no_inputs_are_refused():
    with pytest.raises(ValueError, match="no inputs"):
        in_batches(lambda x: x, jnp.zeros((0, 3)))


def test_several_inputs_are_cut_alike():
    inputs = {"a": jnp.arange(7.0), "b": jnp.arange(14.0).reshape(7, 2)}
    joined = in_batches(lambda part: part["a"] + part["b"].sum(1), inputs, 3)
    np.testing.assert_array_equal(joined, inputs["a"] + inputs["b"].sum(1))
    with pytest.raises(ValueError, match=r"as many in each array, not \[7, 6\]"):
        in_batches(lambda part: part["a"], inputs | {"b": jnp.zeros(6)})
