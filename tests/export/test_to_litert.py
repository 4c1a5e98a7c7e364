"""LiteRT files compute what JAX computes, in LiteRT's interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxeff_export import LitertError, MissingExtraError, to_litert
from jaxeff_export.litert_files._to_litert import evaluate_known as write

import jaxeff
from jaxeff import Gaussian, Int
from jaxeff.nn import small_classifier


def run(path, file, *xs):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(path))
    found = interpreter.get_signature_runner()(**dict(zip(file.inputs, xs, strict=True)))
    return [found[name] for name in file.outputs]


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["plain", "moments"])
def test_models(transform, tmp_path):
    pytest.importorskip("litert_converter")
    f, params, (x, _) = small_classifier(4)
    if transform == "moments":
        params = jax.tree.map(lambda w: Gaussian(w, (0.05 * w) ** 2), params)
        f = jaxeff.moments(f)
    file = to_litert(f, (params, x), tmp_path / "net.tflite")
    found = run(tmp_path / "net.tflite", file, np.asarray(x))
    for ours, want in zip(found, jax.tree.leaves(jax.jit(f)(params, x)), strict=True):
        np.testing.assert_allclose(ours, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("setting", [{}, {"symmetric": "weights"}, {"bits": 4}])
def test_quantized_weights_are_integers(setting, tmp_path):
    pytest.importorskip("litert_converter")
    rng = np.random.default_rng(0)
    params = {"in": rng.normal(size=(64, 96)), "out": rng.normal(size=(96, 64))}
    params = jax.tree.map(lambda w: w.astype(np.float32), params)
    x = rng.normal(size=(3, 64)).astype(np.float32)
    f = lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"]  # noqa: E731
    g = jaxeff.quantized(f, {"*:linear": Int(**{"bits": 8, "activations": False, **setting})})
    file = to_litert(g, (params, x), tmp_path / "q.tflite")
    assert file.path.stat().st_size < 2 * 64 * 96 + 6000  # a byte each
    (found,) = run(file.path, file, x)
    want = jax.jit(g)(params, x)
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-5 * np.abs(want).max())


def looping(w, x):
    """A recurrent cell, backwards, whose states are kept, too."""
    return jax.lax.scan(lambda h, row: (jnp.tanh(h @ w + row),) * 2, x[0], x, reverse=True)


def adding(w, x):
    """Sums of rows by place, two of which are out of bounds."""
    return jax.ops.segment_sum(x[:, 0] @ w, jnp.array([2, 0, 2, -7, 9]), 4)


def taking(w, x):
    """Rows and entries, some of which are beyond the array."""
    at = jnp.array([1, 9, -1, -9])
    return x[at], x[at, 0, at], jnp.take(x, at, 0)


@pytest.mark.slow
@pytest.mark.parametrize("f", [looping, adding, taking])
def test_loops_and_sums_of_segments_are_written_in_another_way(f, tmp_path):
    pytest.importorskip("litert_converter")
    w, x = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(3, 3), (5, 2, 3)]))
    file = to_litert(f, (w, x), tmp_path / "f.tflite")
    found = run(file.path, file, np.asarray(x))
    for ours, want in zip(found, jax.tree.leaves(jax.jit(f)(w, x)), strict=True):
        np.testing.assert_allclose(ours, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("f", "named"),
    [
        (lambda w, x: jax.lax.scan(lambda h, _: (h @ w, None), x, length=200)[0], "200 steps"),
        (lambda w, x: jax.lax.while_loop(lambda h: h.sum() < 9, lambda h: h @ w, x), "`while`"),
        (lambda w, x: x.at[jnp.arange(3), jnp.arange(3)].add(w[0]), "whole rows"),
    ],
)
def test_what_has_no_other_way_is_named(f, named, tmp_path):
    closed = jax.make_jaxpr(f)(jnp.eye(3), jnp.eye(3))
    with pytest.raises(LitertError, match=named) as refusal:
        jax.eval_shape(lambda *given: write(closed, given, lambda v, _: v), *closed.in_avals)
    assert "to_onnx" in str(refusal.value)


@pytest.mark.slow
def test_several_arguments_and_results(tmp_path):
    pytest.importorskip("litert_converter")
    a, b = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    file = to_litert(lambda w, p: {"b": p["a"] * w, "a": p["b"] - w}, (2.0, {"a": a, "b": b}),
                     tmp_path / "f.tflite")  # fmt: skip
    assert (file.inputs, file.outputs) == (("x0", "x1"), ("y0", "y1"))
    found = run(tmp_path / "f.tflite", file, a, b)
    np.testing.assert_array_equal(found[0], b - 2)
    np.testing.assert_array_equal(found[1], a * 2)


@pytest.mark.slow
def test_arguments_that_nothing_reads_stay(tmp_path):
    pytest.importorskip("litert_converter")
    a, b, c = (np.full(2, n, np.float32) for n in (1, 2, 3))
    file = to_litert(lambda w, a, b, c: 2 * b - c, (0, a, b, c), tmp_path / "f.tflite")
    (found,) = run(tmp_path / "f.tflite", file, a, b, c)
    np.testing.assert_array_equal(found, 2 * b - c)


@pytest.mark.slow
def test_what_the_converter_refuses_is_an_error(tmp_path):
    pytest.importorskip("litert_converter")
    with pytest.raises(LitertError, match="refuses the function"):
        to_litert(lambda w, x: jnp.linalg.qr(x)[0], (0, np.eye(3, dtype=np.float32)),
                  tmp_path / "f.tflite")  # fmt: skip
    assert not (tmp_path / "f.tflite").exists()


@pytest.mark.slow
def test_a_file_that_the_interpreter_refuses_is_not_written(tmp_path):
    pytest.importorskip("litert_converter")
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "f.tflite"
    path.write_text("before")
    with pytest.raises(LitertError, match=r"interpreter refuses what would be written.*SORT"):
        to_litert(lambda w, x: jnp.sort(x, 1), (0, np.ones((2, 3), np.int16)), path)
    assert path.read_text() == "before"


def test_the_package_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"jaxeff\[litert\]"):
        to_litert(lambda w, x: x, (0, np.ones(2, np.float32)), tmp_path / "f.tflite")
