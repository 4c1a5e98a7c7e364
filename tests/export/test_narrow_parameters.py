"""Parameters of 4 and 16 bits, and pruned: counted, stored and computed as such."""

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
import pytest
from jaxeff_export.importer import UnsupportedOpError

import jaxeff
from jaxeff.compression import Int, calibrate, integer
from jaxeff.pruning.sparsity import NofM, wanda

KEYS = jax.random.split(jax.random.key(0), 4)
PARAMS = {
    "a": {
        "w": jax.random.randint(KEYS[0], (64, 48), -8, 8).astype(jnp.int4),
        "s": jax.random.uniform(KEYS[1], (1, 48)),
    },
    "b": {"w": jax.random.normal(KEYS[2], (48, 32)).astype(jnp.bfloat16)},
    "c": jax.random.randint(KEYS[3], (32, 48), 0, 16).astype(jnp.uint4),
}


def f(params, x):
    h = jax.nn.relu(x @ (params["a"]["w"].astype(jnp.float32) * params["a"]["s"]))
    moved = params["c"].reshape(48, 32)[::-1].T[:, 1:].astype(jnp.float32)
    return h @ params["b"]["w"].astype(jnp.float32) + (h[:, 1:] @ moved.T)


def stored_bytes(folder):
    return sum((folder / name).stat().st_size for name in ("parameters.npz", "derived.npz"))


def test_bytes_are_counted():
    x = jnp.ones((1, 64))
    summary = jaxeff.summary(f, PARAMS, x)
    expected = 64 * 48 / 2 + 48 * 4 + 48 * 32 * 2 + 48 * 32 / 2
    assert f"{expected:,.0f} bytes of parameters" in str(summary)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 40])
def test_bundles_hold_the_bits(rows, tmp_path):
    x = jax.random.normal(jax.random.key(5), (rows, 64))
    bundle = jaxeff_export.deploy(f, (PARAMS, x), path=tmp_path / "b")
    assert bundle.check()
    np.testing.assert_allclose(bundle.run(x), jax.jit(f)(PARAMS, x), rtol=1e-5, atol=1e-3)
    bits = 64 * 48 / 2 + 48 * 4 + 48 * 32 * 2 + 48 * 32 / 2
    # The npz has a header for each array, and codes of four bits in bytes compress to theirs.
    assert stored_bytes(tmp_path / "b") < 1.02 * bits + 1500
    loaded = jaxeff_export.Bundle.load(tmp_path / "b")
    np.testing.assert_array_equal(loaded.run(x), bundle.run(x))


@pytest.mark.slow
def test_bfloat16_stays_in_half_the_bytes(tmp_path):
    def dense(params, x):
        return x @ params.astype(jnp.float32)

    x = jax.random.normal(jax.random.key(5), (2, 64))
    size = {}
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        w = jax.random.normal(jax.random.key(6), (64, 256)).astype(dtype)
        name = jnp.dtype(dtype).name
        bundle = jaxeff_export.deploy(dense, (w, x), path=tmp_path / name)
        np.testing.assert_allclose(bundle.run(x), dense(w, x), rtol=1e-5, atol=1e-5)
        size[name] = stored_bytes(tmp_path / name)
    assert size["float32"] >= 64 * 256 * 4
    assert max(size["bfloat16"], size["float16"]) < 64 * 256 * 2 + 1000


@pytest.mark.slow
def test_integers_become_four_bits_as_in_jax():
    codes = jnp.arange(-128, 128, dtype=jnp.int8).reshape(16, 16)

    def wrapped(params, x):
        signed, unsigned = params["c"].astype(jnp.int4), params["c"].astype(jnp.uint4)
        return signed.astype(jnp.float32) * x, unsigned.astype(jnp.int32)

    x = jnp.ones((16, 1))
    bundle = jaxeff_export.deploy(wrapped, ({"c": codes}, x))
    for ours, theirs in zip(bundle.run(x), jax.jit(wrapped)({"c": codes}, x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_rows_of_a_table_and_constants_of_four_bits():
    counts = {jnp.int4: np.arange(-8, 8), jnp.uint4: np.arange(16)}
    tables = [jnp.asarray(c.reshape(4, 4).astype(dtype)) for dtype, c in counts.items()]
    # MLIR prints few constants as numbers, and many as the halves of bytes.
    few = [c[:4].astype(dtype) for dtype, c in counts.items()]
    many = [np.resize(c, (100, 4)).astype(dtype) for dtype, c in counts.items()]

    def looked_up(params, at):
        # Beyond the table are the numbers that `take` fills with: compared, selected, constants.
        rows = [
            jax.lax.pad(jnp.take(t, at, axis=0), t[0, 0], ((0, 1, 0), (0, 0, 0))) for t in params
        ]
        found = [*rows, *map(jnp.asarray, few), *(jnp.asarray(m)[at] for m in many)]
        return [a.astype(jnp.float32) for a in found]

    at = jnp.array([3, 0, 9])
    bundle = jaxeff_export.deploy(looked_up, (tables, at))
    for ours, theirs in zip(bundle.run(at), jax.jit(looked_up)(tables, at), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_codes_beside_four_bits_keep_their_grids():
    f = lambda params, x: x @ params["w"] + params["b"].astype(jnp.float32)  # noqa: E731
    params = {"w": jnp.ones((8, 4)) / 3, "b": jnp.arange(4, dtype=jnp.int4)}
    x = jax.random.normal(KEYS[0], (2, 8))
    dot = {"w": Int(8)}
    h = integer(f, calibrate(f, params, [x], dot).spec).coded(params, x)
    (q,) = h.encode(x)
    # Unconverted, so that the leaf of four bits is a parameter of the bundle.
    bundle = jaxeff_export.deploy(h, (params, q))
    np.testing.assert_array_equal(bundle.run(q), jax.jit(h)(params, q))
    (given,), (made,) = h.code_grids
    assert (bundle.artifact.inputs[-1].grid, bundle.artifact.outputs[0].grid) == (given, made)


def test_what_has_no_form_is_refused_by_name():
    x = jnp.ones((1, 64))

    def doubled(params, x):
        return x @ (params["a"]["w"] + params["a"]["w"]).astype(jnp.float32)

    with pytest.raises(UnsupportedOpError, match="computes in four bits; convert to int8"):
        jaxeff_export.deploy(doubled, (PARAMS, x))

    def rounded(params, x):
        return (x @ params["a"]["s"].T).astype(jnp.int4).astype(jnp.float32)

    with pytest.raises(UnsupportedOpError, match="made of int8, not of float32"):
        jaxeff_export.deploy(rounded, ({"a": {"s": jnp.ones((48, 64))}}, x))
    with pytest.raises(UnsupportedOpError, match="no arrays of four bits; take int8"):
        jaxeff_export.deploy(lambda params, w: w.astype(jnp.float32) * params, (1.0, PARAMS["c"]))


@pytest.mark.slow
def test_two_of_four_weights_are_stored_in_little_more_than_values_and_places(tmp_path):
    def dense(params, x):
        return x @ params["fc"]["kernel"]

    params = {"fc": {"kernel": jax.random.normal(KEYS[0], (512, 256)) / 32}}
    x = jax.random.normal(KEYS[1], (2, 512))
    _, sparse, _ = wanda(dense, params, x, {"fc": NofM(2, 4)})
    eight = {"fc": Int(8, activations=False)}
    bits = {}
    for name, given in (("dense", params), ("sparse", sparse)):
        bundle = jaxeff_export.deploy(dense, (given, x), path=tmp_path / name)
        assert bundle.check()
        g = integer(dense, eight)
        jaxeff_export.deploy(g, (g.convert(given, x), x), path=tmp_path / f"{name}8")
        for at in (name, f"{name}8"):
            bits[at] = 8 * stored_bytes(tmp_path / at) / (512 * 256)
    # Half of the values, and two bits for the place of each: 17 and 5 bits a weight.
    assert bits["dense"] > 32
    assert bits["sparse"] < 17 * 1.06
    assert bits["sparse8"] < min(5 * 1.2, bits["dense8"] - 1)
