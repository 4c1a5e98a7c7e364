"""Checkpoints: every dtype comes back bit for bit; damage and mismatch are named."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

from jaxeff.store import CheckpointError, load_metadata, load_pytree, save_pytree
from jaxeff.store import _checkpoint as checkpoints


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(x) == jax.random.key_impl(y)
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.slow
def test_a_training_state_comes_back(tmp_path):
    params = {"fc1": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}, "scale": jnp.float32(2)}
    tree = {
        "params": params,
        "opt": optax.adam(1e-3).init(params),
        "half": jnp.arange(3, dtype=jnp.bfloat16),
        "f8": jnp.ones(2, jnp.float8_e4m3fn),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 2),
        "empty": jnp.zeros((0, 4)),
        "flag": jnp.array(True),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    }
    path = tmp_path / "new" / "run.safetensors"
    save_pytree(path, tree, {"epoch": 3, "note": "ä"})
    same(load_pytree(path, like=tree), jax.tree.map(jnp.asarray, tree))
    shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree))
    same(load_pytree(path, like=shapes), jax.tree.map(jnp.asarray, tree))
    assert load_metadata(path) == {"epoch": 3, "note": "ä"}
    assert [p.name for p in path.parent.iterdir()] == ["run.safetensors"]


def test_nested_dicts_need_no_template(tmp_path):
    tree = {"b": {"kernel": jnp.ones((2, 3))}, "a": jnp.arange(3)}
    save_pytree(tmp_path / "t", tree)
    same(load_pytree(tmp_path / "t"), tree)


@settings(deadline=None, max_examples=25)
@given(
    array=hnp.arrays(
        st.sampled_from([np.float32, np.float16, np.int32, np.uint8, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
def test_any_array_comes_back_bit_for_bit(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("t") / "t"
    save_pytree(path, [array])
    (back,) = load_pytree(path, like=[array])
    assert np.asarray(back).tobytes() == array.tobytes()
    assert back.shape == array.shape


def test_every_flipped_byte_and_every_cut_is_noticed(tmp_path):
    path = tmp_path / "t.safetensors"
    tree = {"w": jnp.arange(5.0)}
    save_pytree(path, tree, {"epoch": 1})
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.choice(len(good), 60, replace=False):
        bad = bytearray(good)
        bad[position] ^= 0x10
        path.write_bytes(bad)
        with pytest.raises(CheckpointError, match=r"t\.safetensors"):
            load_pytree(path, like=tree)
    for length in (0, 4, 20, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointError, match=r"t\.safetensors is damaged"):
            load_pytree(path)


def test_a_flipped_payload_byte_is_damage(tmp_path):
    path = tmp_path / "t.safetensors"
    save_pytree(path, {"w": jnp.arange(5.0)})
    bad = bytearray(path.read_bytes())
    bad[-1] ^= 1
    path.write_bytes(bad)
    with pytest.raises(CheckpointError, match="checksum differs"):
        load_pytree(path)


HEADER = {"format": 1, "dtypes": {"x": "float32"}, "keys": {}, "metadata": {}}
ONE = {"x": np.ones(3, np.float32)}
CLASH = {"a": np.ones(3, np.float32), "a/b": np.ones(3, np.float32)}


@pytest.mark.parametrize(
    ("text", "arrays"),
    [
        *((text, ONE) for text in ("", "{", "[]", "{}", "null", "[" * 100_000)),
        (json.dumps(HEADER)[:-3] + '{"a": ' * 9_000 + "1" + "}" * 9_002, ONE),
        *(
            (json.dumps(HEADER | change), ONE)
            for change in (
                {"format": [[1]]},
                {"dtypes": {}},
                {"dtypes": {"y": "float32"}},
                {"dtypes": ["x"]},
                {"dtypes": None},
                {"dtypes": {"x": "foo"}},
                {"dtypes": {"x": 4}},
                {"dtypes": {"x": None}},
                {"dtypes": {"x": "O"}},
                {"dtypes": {"x": "float64"}},
                {"dtypes": {"x": "bfloat16"}},
                {"dtypes": {"x": "int32"}},
                {"dtypes": {"x": "datetime64[s]"}},
                {"dtypes": {"x": "f4,f4"}},
                {"keys": {"x": "nope"}},
                {"keys": {"x": "threefry2x32"}},
                {"keys": {"x": 3}},
                {"keys": {"y": "threefry2x32"}},
                {"keys": []},
                {"keys": None},
                {"metadata": []},
            )
        ),
        (json.dumps(HEADER | {"dtypes": dict.fromkeys(CLASH, "float32")}), CLASH),
        (json.dumps(HEADER | {"dtypes": dict.fromkeys(sorted(CLASH)[::-1], "float32")}), CLASH),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_forged_headers_are_refused_and_the_file_named(tmp_path, text, arrays):
    """Their checksums match: whoever writes a file can write that too."""
    path = tmp_path / "forged.safetensors"
    save_file(arrays, path, metadata={"jaxeff": checkpoints._digest(text, arrays) + text})
    with pytest.raises(CheckpointError, match=r"forged\.safetensors") as refused:
        load_pytree(path)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"w": jnp.ones(3), "b": jnp.ones(1)}, r"has no 'b' \(expected float32\[1\]\)"),
        ({"w": jnp.ones(4)}, r"'w' is float32\[3\], expected float32\[4\]"),
        ({"w": jnp.ones(3, jnp.int32)}, r"'w' is float32\[3\], expected int32\[3\]"),
        ({}, r"it has 'w', which is not"),
    ],
)
def test_another_model_is_named(tmp_path, like, message):
    save_pytree(tmp_path / "t", {"w": jnp.ones(3)})
    with pytest.raises(CheckpointError, match=message):
        load_pytree(tmp_path / "t", like=like)


def test_foreign_and_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_pytree(tmp_path / "none")
    save_file({"w": np.ones(3)}, tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="not one of jaxeff's"):
        load_pytree(tmp_path / "foreign")


def test_a_failed_write_keeps_the_file_and_leaves_nothing(tmp_path):
    path = tmp_path / "t"
    save_pytree(path, {"w": jnp.ones(3)})
    before = path.read_bytes()
    with pytest.raises(TypeError, match="'w' is a str"):
        save_pytree(path, {"w": "text"})
    with pytest.raises(TypeError):
        save_pytree(path, {"w": jnp.ones(3)}, {"bad": object()})
    with pytest.raises(ValueError, match="path 'a/b'"):
        save_pytree(path, {"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
