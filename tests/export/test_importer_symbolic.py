"""Batch-polymorphic artifacts: one compiled module runs at every batch size."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tvm
from flax import nnx
from importer_oracle import assert_close
from jax import export as jax_export
from jaxeff_export.compiler import compile_module
from jaxeff_export.importer import UnsupportedOpError, import_stablehlo
from tvm import relax

from jaxeff import Additive, Gaussian, Int, functional, moments, noisy, quantized
from jaxeff.nn import MLP, LeNet5, ResNet18, TransformerEncoder

W = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
BATCHES = (1, 2, 7, 101)


def _rooms(x):
    n = x.shape[0]
    flat = x.reshape(n, -1)
    rows = x.reshape(n * 2, 3)
    return (
        jax.nn.softmax(jax.nn.relu(flat @ W)),
        jnp.tanh(rows).sum(1),
        jnp.arange(n),
        jnp.concatenate([x, x[:, :1] + 1], axis=1),
        jnp.pad(x, ((1, 2), (0, 0), (0, 0))),
        jnp.broadcast_to(x[:, None], (n, 4, 2, 3)),
        jnp.argmax(flat, 1),
        jnp.sort(flat, axis=1),
        jnp.sum(x, 0),
        jnp.mean(x),
        (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-3),
        x[:, None] * x[None],
    )


def _network(model):
    model.eval()  # batch statistics of few images amplify rounding
    f, params = functional(model)[:2]
    return lambda x: f(params, x)


def _transformed(transform):
    """A transform of a small network that knows its weights and its key."""
    model = MLP((6, 8, 3), rngs=nnx.Rngs(0))
    f, params = functional(model)[:2]
    return transform(f, params)


def _moments(f, params):
    posterior = jax.tree.map(lambda w: Gaussian(w, jnp.full_like(w, 1e-3)), params)
    return lambda x: moments(f, method="diagonal")(posterior, x.reshape(x.shape[0], -1))


def _noisy(f, params):
    perturbed = noisy(f, {"*": Additive(0.1)})
    return lambda x: perturbed(jax.random.key(0), params, x.reshape(x.shape[0], -1))


def _quantized(f, params):
    return lambda x: quantized(f, {"*": Int(8)})(params, x.reshape(x.shape[0], -1))


PROGRAMS = {
    "moments": (lambda: _transformed(_moments), (2, 3)),
    "noisy": (lambda: _transformed(_noisy), (2, 3)),
    "quantized": (lambda: _transformed(_quantized), (2, 3)),
    "operations": (lambda: _rooms, (2, 3)),
    "mlp": (lambda: _network(MLP((784, 100, 10), rngs=nnx.Rngs(0))), (28, 28, 1)),
    "lenet": (lambda: _network(LeNet5(rngs=nnx.Rngs(0))), (28, 28, 1)),
    "transformer": (lambda: _network(TransformerEncoder(rngs=nnx.Rngs(0))), (8, 8)),
    "resnet": (lambda: _network(ResNet18(rngs=nnx.Rngs(0))), (32, 32, 3)),
}


def _exported(function, shape):
    (batch,) = jax_export.symbolic_shape("batch")
    return jax_export.export(jax.jit(function))(jax.ShapeDtypeStruct((batch, *shape), jnp.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_module_runs_at_every_batch_size(name):
    make, shape = PROGRAMS[name]
    function = make()
    module = import_stablehlo(_exported(function, shape))
    machine = relax.VirtualMachine(compile_module(module), tvm.cpu())
    sizes = BATCHES if name != "resnet" else BATCHES[:3]
    for size in sizes:
        x = np.random.default_rng(size).uniform(size=(size, *shape)).astype(np.float32)
        got = machine["main"](tvm.runtime.tensor(x))
        got = [got] if hasattr(got, "numpy") else got
        for ours, theirs in zip(got, jax.tree.leaves(jax.jit(function)(x)), strict=True):
            assert ours.shape == theirs.shape
            assert_close(ours.numpy(), np.asarray(theirs), rtol=1e-4, atol=1e-5)


def test_text_and_bytes_and_the_plain_compiler():
    exported = _exported(lambda x: x @ W.T * 2, (3,))
    x = np.ones((5, 3), np.float32)
    for source in (exported.mlir_module(), exported.mlir_module_serialized):
        executable = tvm.compile(import_stablehlo(source), target="llvm")
        got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
        np.testing.assert_allclose(got.numpy(), x @ W.T * 2, rtol=1e-6)


def test_what_is_not_linear_in_the_size_is_refused():
    with pytest.raises(UnsupportedOpError, match="size"):
        import_stablehlo(_exported(lambda x: (x[:, None] * x[None]).reshape(-1), (3,)))


def test_two_sizes_are_refused():
    m, n = jax_export.symbolic_shape("m, n")
    kind = jax.ShapeDtypeStruct((m, 2 * n), jnp.float32)
    exported = jax_export.export(jax.jit(lambda x: x + 1))(kind)
    with pytest.raises(UnsupportedOpError, match="all dynamic dimensions"):
        import_stablehlo(exported)
