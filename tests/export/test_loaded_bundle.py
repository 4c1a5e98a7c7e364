"""`load`: what it computes is what `Bundle.run` does, without JAX; what it refuses."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
import pytest

import jaxeff
from jaxeff.nn import small_classifier


class Sides(NamedTuple):
    """Two arrays with names."""

    left: jax.Array
    right: jax.Array


def _nested(w: jax.Array, x: dict, sides: Sides, pair: list) -> dict:
    return {
        "y": jnp.maximum(x["a"] @ w, 0),
        "z": (x["b"].sum(), None, [sides.left - sides.right]),
        "half": pair[0].astype(jnp.bfloat16),
        "flag": pair[1] > 0,
    }


def _inputs() -> tuple:
    x = {"b": np.arange(4, dtype=np.int32), "a": -np.ones((2, 3), np.float32)}
    return x, Sides(np.float32([1, 2]), np.float32([3, 5])), [np.float32(2.5), np.zeros(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a function of nested arguments and results."""
    path = tmp_path_factory.mktemp("bundles") / "nested"
    x, sides, (number, row) = _inputs()
    arguments = (jnp.eye(3), x, sides, [number, row.astype(np.float32)])
    jaxeff_export.deploy(_nested, arguments, path=path)
    return path


def test_results_are_those_of_bundle_run(folder: Path) -> None:
    x, sides, (number, row) = _inputs()
    inputs = x, sides, [number, row.astype(np.float32)]
    ours = jaxeff_export.load(folder).run(*inputs)
    theirs = jaxeff_export.Bundle.load(folder).run(*inputs)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_gaussians_go_in_and_come_out(tmp_path: Path) -> None:
    moving = jaxeff.Gaussian(np.ones((2, 3), np.float32), np.full((2, 3), 0.5, np.float32))

    def f(w: jax.Array, x: jaxeff.Gaussian) -> jaxeff.Gaussian:
        return jaxeff.Gaussian(x.mean @ w, x.var @ w**2)

    jaxeff_export.deploy(f, (2 * jnp.eye(3), moving), path=tmp_path / "g")
    result = jaxeff_export.load(tmp_path / "g").run(moving)
    assert isinstance(result, jaxeff.Gaussian)
    np.testing.assert_array_equal(result.mean, 2 * moving.mean)
    np.testing.assert_array_equal(result.var, 4 * moving.var)


def test_any_batch_and_many_threads(tmp_path: Path) -> None:
    arguments = (jnp.eye(3) * 3, jnp.ones((2, 3)))
    jaxeff_export.deploy(lambda w, x: x @ w, arguments, path=tmp_path / "b", any_batch=True)
    model = jaxeff_export.load(tmp_path / "b")
    batches = [np.full((n, 3), n, np.float32) for n in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        for batch, result in zip(batches, pool.map(model.run, batches), strict=True):
            np.testing.assert_array_equal(result, 3 * batch)
    with pytest.raises(jaxeff_export.SignatureError, match="at least 1"):
        model.run(np.ones((0, 3), np.float32))


def test_nan_of_codes_is_refused(tmp_path: Path) -> None:
    f, params, (x, _) = small_classifier()
    q = jaxeff.compression.ptq(f, params, x[:20])
    jaxeff_export.deploy(q.f, (q.params, x[:2]), path=tmp_path / "q")
    model, data = jaxeff_export.load(tmp_path / "q"), np.array(x[:2])
    np.testing.assert_array_equal(
        model.run(data), jaxeff_export.Bundle.load(tmp_path / "q").run(data)
    )
    data[0] = np.nan
    with pytest.raises(jaxeff_export.SignatureError, match="holds NaN"):
        model.run(data)


def test_refusals_name_the_input(folder: Path) -> None:
    model = jaxeff_export.load(folder)
    x, sides, (number, row) = _inputs()
    pair = [number, row.astype(np.float32)]
    with pytest.raises(jaxeff_export.SignatureError, match=r"x\['b'\] is int64\[4\]"):
        model.run({**x, "b": np.arange(4)}, sides, pair)
    with pytest.raises(jaxeff_export.SignatureError, match=r"x\['c'\] is not expected"):
        model.run({**x, "c": row}, sides, pair)
    with pytest.raises(jaxeff_export.SignatureError, match=r"sides\.left is missing"):
        model.run(x, None, pair)
    with pytest.raises(jaxeff_export.SignatureError, match="2 inputs were given, 3 are expected"):
        model.run(x, sides)


def test_damaged_bundles_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(jaxeff_export.bundle.files.BundleError, match="no bundle"):
        jaxeff_export.load(tmp_path)
    shutil.copytree(folder, tmp_path / "copy")
    library = tmp_path / "copy" / "library.so"
    library.write_bytes(library.read_bytes()[:-1] + b"?")
    with pytest.raises(jaxeff_export.BundleError, match=r"library\.so is damaged"):
        jaxeff_export.load(tmp_path / "copy")


_RUN = """
import sys
import numpy as np
import jaxeff_export

x = {"b": np.arange(4, dtype=np.int32), "a": -np.ones((2, 3), np.float32)}
sides = [np.float32([1, 2]), np.float32([3, 5])]
model = jaxeff_export.load(sys.argv[1])
sides = __import__("collections").namedtuple("Sides", "left right")(*sides)
y = model.run(x, sides, [np.float32(2.5), np.zeros(3, np.float32)])
assert y["z"][0] == 6
print(*sorted({"jax", "flax", "tvm", "scipy", "jaxlib"} & sys.modules.keys()))
import tvm                                     # the compiler, later in the same process
from tvm.target import codegen
assert len(codegen.llvm_get_targets())
jaxeff_export.Bundle.load(sys.argv[1]).check()
"""


@pytest.mark.process
def test_neither_jax_nor_a_compiler_is_imported(folder: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _RUN, str(folder)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0] == ""


def test_a_bundle_written_over_another_is_run_as_it_is_now(tmp_path, monkeypatch):
    """The first one is still loaded; of one name in two working folders neither is the other."""

    def deployed(scale):
        arguments = jnp.eye(3), jnp.ones((2, 3))
        return jaxeff_export.deploy(lambda w, x: scale * (x @ w), arguments, path="net")

    x, loaded = np.ones((2, 3), np.float32), []
    for place, scale in (("a", 1.0), ("a", 2.0), ("b", 3.0)):
        (tmp_path / place).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / place)
        loaded.append((scale, deployed(scale), jaxeff_export.load("net")))
        for expected, *bundles in loaded:
            for bundle in bundles:
                np.testing.assert_array_equal(bundle.run(x), expected * x)
