"""Weights that are written, and folders of Orbax: arrays come back bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.nn import MLP
from jaxeff.weights import WeightsError, save_weights

F, PARAMS = jaxeff.functional(MLP((3, 4, 2), rngs=nnx.Rngs(0)))
EMPTY = jax.tree.map(jnp.zeros_like, PARAMS)


def assert_same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert jax.tree.map(jnp.result_type, ours) == jax.tree.map(jnp.result_type, theirs)


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "new/model.npz", pytest.param("checkpoint", marks=pytest.mark.slow)],
)
def test_what_is_written_is_read(name, tmp_path):
    assert_same(jaxeff.load_weights(EMPTY, save_weights(PARAMS, tmp_path / name)).params, PARAMS)


def test_sixteen_bits_are_kept_or_refused(tmp_path):
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), PARAMS)
    assert_same(jaxeff.load_weights(half, save_weights(half, tmp_path / "a.safetensors"))[0], half)
    with pytest.raises(ValueError, match=r"npz has no bfloat16, as .* is: write .safetensors"):
        save_weights(half, tmp_path / "a.npz")
    assert not (tmp_path / "a.npz").exists()
    with pytest.raises(ValueError, match=r"no ending for a folder of Orbax, not in .gguf"):
        save_weights(half, tmp_path / "a.gguf")


@pytest.mark.slow
def test_what_others_write_is_read(tmp_path):
    """A state of NNX, with its level of variables, and the last step of a manager."""
    import orbax.checkpoint as ocp

    state = nnx.state(MLP((3, 4, 2), rngs=nnx.Rngs(0)))
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "nnx", state)
    assert_same(jaxeff.load_weights(EMPTY, tmp_path / "nnx").params, PARAMS)
    for name, items in (("one", ["default"]), ("two", ["params", "optimizer"])):
        with ocp.CheckpointManager(tmp_path / name) as manager:
            for step, params in ((9, EMPTY), (10, PARAMS)):
                saved = {each: ocp.args.StandardSave(params) for each in items}
                manager.save(step, args=ocp.args.Composite(**saved))
    assert_same(jaxeff.load_weights(EMPTY, tmp_path / "one").params, PARAMS)
    with pytest.raises(WeightsError, match=r"two has several items; give one of .*10.params"):
        jaxeff.load_weights(EMPTY, tmp_path / "two")
    assert_same(jaxeff.load_weights(EMPTY, tmp_path / "two/10/params").params, PARAMS)


@pytest.mark.slow
def test_a_folder_that_is_wrong_is_named(tmp_path):
    folder = save_weights(PARAMS, tmp_path / "mine")
    with pytest.raises(FileExistsError, match="mine is there already"):
        save_weights(PARAMS, folder)
    with pytest.raises(WeightsError, match="is a folder, but none that Orbax wrote"):
        jaxeff.load_weights(EMPTY, folder / "array_metadatas")
    (folder / "_METADATA").write_text("{")
    with pytest.raises(WeightsError, match="mine is damaged: JSONDecodeError"):
        jaxeff.load_weights(EMPTY, folder)


@pytest.mark.slow
def test_arrays_that_inflate_are_refused(tmp_path):
    """A folder of some kilobytes that says it is more than its budget, of which nothing is read."""
    folder = save_weights({"a": jnp.zeros(2**28 + 1, jnp.int8)}, tmp_path / "zeros")
    with pytest.raises(WeightsError, match="zeros inflates to 268,435,457 bytes, more than"):
        jaxeff.load_weights({"a": jnp.zeros(2)}, folder)
