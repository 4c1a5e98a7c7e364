"""Data that are cut over eight devices: what one device computes, each device its share of it."""

import os
import subprocess
import sys

import pytest

CUT = """
import jax, jax.numpy as jnp, numpy as np, optax, pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from jaxeff import bayes, training
from jaxeff.core import Shards
from jaxeff.search import Candidates, SearchSpace

assert jax.device_count() == 8
key, count = jax.random.key(0), 64
x = jax.random.normal(jax.random.key(1), (count, 12))
y = jnp.argmax(x[:, :3], -1)
params = {
    "fc1": {"kernel": jax.random.normal(jax.random.key(2), (12, 16)) / 3},
    "fc2": {"kernel": jax.random.normal(jax.random.key(3), (16, 3)) / 3},
}
f = lambda p, x: jax.nn.relu(x @ p["fc1"]["kernel"]) @ p["fc2"]["kernel"]
plain = Mesh(np.array(jax.devices()), ("data",))
grid = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
typed = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Explicit,))
cut = lambda mesh: jax.device_put((x, y), NamedSharding(mesh, P("data")))
same = lambda a, b: jax.tree.map(
    lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-4, atol=1e-5), a, b
)
loss, adam = training.cross_entropy(f), optax.adam(1e-2)


def fitted(data, **options):
    run = dict(optimizer=adam, epochs=2, batch_size=count, progress=False) | options
    return training.fit(key, loss, params, data, **run)


# A batch of all examples is the same in any order.
alone = fitted((x, y))
for mesh in (plain, typed, grid):
    together = fitted(cut(mesh))
    same(together.params, alone.params)
    same(together.history[-1]["loss"], alone.history[-1]["loss"])
    assert all(len(w.sharding.device_set) == 8 for w in jax.tree.leaves(together.params))
same(fitted((cut(plain)[0], np.asarray(y))).params, alone.params)     # labels are cut as inputs are

# Smaller batches have as many examples of each part, and an epoch has all of them.
shards = Shards.of(cut(plain))
order = np.asarray(shards.shuffled(key, count, 16))
assert order.shape == (4, 16)
for part in range(8):
    assert sorted(order[:, 2 * part : 2 * part + 2].ravel()) == list(range(8))
taken = [np.asarray(shards.take(cut(plain)[0], row)) for row in order]
place = 8 * (np.arange(16) // 2)
same(taken, [np.asarray(x)[place + row] for row in order])
p, state = params, adam.init(params)
for row in np.asarray(shards.shuffled(jax.random.split(jax.random.fold_in(key, 0))[0], count, 16)):
    batch = x[place + row], y[place + row]
    each = optax.softmax_cross_entropy_with_integer_labels
    mean = lambda p: each(f(p, batch[0]), batch[1]).mean()
    updates, state = adam.update(jax.grad(mean)(p), state, p)
    p = optax.apply_updates(p, updates)
same(fitted(cut(plain), epochs=1, batch_size=16).params, p)
with pytest.raises(ValueError, match="8 parts, which don't divide a batch of 20: take 24"):
    fitted(cut(plain), batch_size=20)

# A device computes its share of a batch.
flops = []
for data in (cut(plain), (x, y)):
    shards = Shards.of(data)
    epoch = training.make_epoch(loss, adam, 64, shards)
    start = training.init(params, adam)
    start = start if shards is None else shards.replicated(start)
    flops.append(jax.jit(epoch).lower(start, key, data).compile().cost_analysis()["flops"])
products = 2 * count * (12 * 16 + 2 * 16 * 3 + 12 * 16)               # forward and backward
assert flops[1] > products and flops[1] - flops[0] > 0.8 * products, flops

# Statistics of batches, after training.
def counted(p, state, x):
    return f(p, x), {"mean": 0.9 * state["mean"] + 0.1 * x.mean(0)}


ends = training.fit(
    key, training.cross_entropy(counted, mutable=True), params, cut(plain), optimizer=adam,
    epochs=1, batch_size=16, state={"mean": jnp.zeros(12)}, progress=False,
)
same(ends.state["mean"], x.mean(0))

# Batches of an iterable, cut by it.
halves = [(x[i : i + 32], y[i : i + 32]) for i in (0, 32)]
batches = training.Batches(halves)
for mesh in (plain, typed):
    parts = [jax.device_put(half, NamedSharding(mesh, P("data"))) for half in halves]
    split = training.Batches([(images, np.asarray(labels)) for images, labels in parts])
    together = fitted(split, batch_size=None)
    same(together.params, fitted(batches, batch_size=None).params)
    assert all(len(w.sharding.device_set) == 8 for w in jax.tree.leaves(together.params))
    ends = training.fit(
        key, training.cross_entropy(counted, mutable=True), params, split, optimizer=adam,
        epochs=1, state={"mean": jnp.zeros(12)}, progress=False,
    )
    same(ends.state["mean"], x.mean(0))
svi = lambda data: bayes.svi(key, f, params, data, epochs=1, progress=False)
same(svi(split).posterior, svi(batches).posterior)

svi = lambda data: bayes.svi(key, f, params, data, epochs=2, batch_size=count, progress=False)
same(svi(cut(plain)).posterior, svi((x, y)).posterior)

space = SearchSpace.read(f, params, x[:1])
accuracies = [
    Candidates(f, params, data, data, space, steps=1, batch_size=count).accuracy(
        key, space.uncompressed
    )
    for data in (cut(plain), (x, y))
]
same(*accuracies)
"""


@pytest.mark.process
def test_examples_that_are_cut_over_eight_devices():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", CUT], check=True, env=environment, timeout=300)
