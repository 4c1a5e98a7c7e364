"""Which files the study of published weights reads, and its formats on a small decoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from experiments.beyond.pretrained.files import KNOWN, UNSEEN, read_files
from experiments.beyond.pretrained.formats import FORMATS, METHODS
from jaxeff.contrib import Decoder, DecoderConfig

OTHERS = (
    "float32",
    "int4 by 32, with offsets",
)  # what has no codes: floats, and grids with offsets


def test_files_are_those_of_the_folder(tmp_path):
    def write(name, content):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)

    for i in range(5):
        write(f"a{i}/net.py", b"import os\n" * 20 + b"%d" % i)
        write(f"a{i}/net.c", b"int main() { return 0; }\n" * 9)  # the same five times
        write(f"a{i}/font.AFM", b"StartFontMetrics 4.1\n" * 9 + b"%d" % i)
    write("short.py", b"x")
    write("page.html", b"<p>" * 99)
    (tmp_path / "link.py").symlink_to(tmp_path / "a0/net.py")
    (tmp_path / "folder.py").mkdir()
    known, unseen = read_files(str(tmp_path), 3)
    assert sorted(known.types) == ["c", "python", "python", "python"]
    assert list(unseen.types) == ["afm"] * 3
    assert known.tokens.shape == (4, 2048)
    assert bytes(unseen.tokens[0][:5].tolist()) == b"Start"
    again, _ = read_files(str(tmp_path), 3)
    np.testing.assert_array_equal(known.tokens, again.tokens)
    everything, _ = read_files(str(tmp_path), 99)
    assert len(everything.types) == 6
    halves = [everything.half(i, 2) for i in range(2)]
    # Full batches of two, of three files each.
    assert [len(half.types) for half in halves] == [2, 2]
    assert not {t.tobytes() for t in halves[0].tokens} & {t.tobytes() for t in halves[1].tokens}
    empty, none = read_files(str(tmp_path / "folder.py"), 3)
    assert len(empty.types) == len(none.types) == 0


def test_no_type_is_seen_and_unseen():
    assert not set(UNSEEN) & {*KNOWN, *KNOWN.values()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in OTHERS])
def test_formats_keep_tables_as_codes(name):
    config = DecoderConfig(vocabulary=96, width=64, hidden=64, depth=1, heads=2, key_heads=1)
    f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(0)))
    tokens = jnp.array([[3, 1, 4, 1, 5]])
    g = jaxeff.integer(f, FORMATS[name], dynamic=True)
    codes = g.convert(params, tokens)
    kept = [leaf for leaf in jax.tree.leaves(codes) if leaf.dtype == jnp.float32]
    # Norms and steps alone: neither the table nor a layer is there in float too.
    assert max(leaf.size for leaf in kept) <= 2 * config.vocabulary
    rounded = jax.jit(jaxeff.quantized(f, FORMATS[name]))(params, tokens)
    found = jax.jit(g)(codes, tokens)
    exact = jax.jit(f)(params, tokens)
    assert np.abs(found - rounded).max() < 0.2 * np.abs(exact).max()
    assert np.abs(found - exact).max() > 0


@pytest.mark.slow
def test_formats_of_gguf_are_those_of_the_library():
    """Two implementations of the OCP standard give the same values, in as many bits."""
    pytest.importorskip("gguf")
    config = DecoderConfig(vocabulary=96, width=64, hidden=64, depth=1, heads=2, key_heads=1)
    f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(0)))
    tokens = jnp.array([[3, 1, 4, 1, 5]])
    theirs, spec, bits = METHODS["GGUF MXFP4"](f, params, tokens)
    assert spec == {}
    _, ours, own_bits = METHODS["MXFP4"](f, params, tokens)
    # The table is rounded by row here and by 32 there: its own values decide nothing.
    layers = {"*:linear": ours["*:linear"], "embed": None, "embed#1": None}
    table = {**theirs, "embed": params["embed"]}
    np.testing.assert_allclose(
        jaxeff.quantized(f, layers)(params, tokens), f(table, tokens), rtol=2e-5, atol=2e-5
    )
    table_bits = 96 * 64 * (8 + 16 / 32), 96 * 64 * 8 + 96 * 32
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert bits * size - table_bits[0] == pytest.approx(own_bits * size - table_bits[1])
