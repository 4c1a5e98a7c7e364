"""What each process of a job runs: `main`. Its parts, run alone, are what it is compared with.

A process sweeps, samples, and leaves what it got in its own folder, which the other doesn't see.
"""

import os
import pickle
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import jaxeff
from jaxeff.bayes import HMC, mcmc, svi
from jaxeff.core import to_devices, to_host
from jaxeff.noise import Additive
from jaxeff.store import CheckpointError
from jaxeff.training import cross_entropy, fit, sweep

WIDTH, DYING_CHUNK, DYING_EPOCH = 6, 2, 1


def f(params, x):
    return jnp.tanh(x @ params["fc1"]) @ params["fc2"]


def fresh(key):
    shapes = {"fc1": (8, WIDTH), "fc2": (WIDTH, 3)}
    keys = jax.random.split(key, 2)
    draw = zip(keys, shapes.items(), strict=True)
    return {name: jax.random.normal(k, shape) / 2 for k, (name, shape) in draw}, None


def data():
    x = jax.random.normal(jax.random.key(1), (40, 8))
    return x, jnp.argmax(x[:, :3], axis=-1)


def swept(folder=None, epochs=3, **options):
    """Three chunks of five replicates, which eight devices don't divide."""
    x, y = data()

    def loss_at(spec):
        return cross_entropy(jaxeff.noisy(f, spec), keyed=True)

    def score(key, params, state, spec):
        logits = jaxeff.noisy(f, spec)(key, params, x)
        return {"accuracy": jnp.mean(logits.argmax(-1) == y), "logits": logits[:2]}

    return sweep(
        jax.random.key(3), loss_at, fresh, (x, y), {"*": Additive(jnp.linspace(0, 2, 5))},
        optimizer=optax.adam(1e-2), epochs=epochs, batch_size=10, score=score, seeds=3, keep=True,
        chunk=8, checkpoint=folder, checkpoint_every=1, **options,
    )  # fmt: skip


def sampled(folder=None, samples=6, **options):
    """Few draws by a small step, so that rounding stays small; adaptation is of all chains."""
    return mcmc(
        jax.random.key(3), f, fresh(jax.random.key(0))[0], data(), HMC(steps=4, step_size=0.02),
        warmup=4, samples=samples, chains=8, monitor=(), checkpoint=folder, **options,
    )  # fmt: skip


def trained_together(**options):
    """A model of all devices' examples; batches of all of them, whose order doesn't matter."""
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    examples, params = to_devices(data(), cut), fresh(jax.random.key(0))[0]
    key, run = jax.random.key(3), {"epochs": 3, "batch_size": 40}
    fitted = fit(
        key, cross_entropy(f), params, examples, optimizer=optax.adam(1e-2), **run, **options
    )
    means = svi(key, f, params, examples, **run).posterior
    return to_host({"fit": fitted.params, "loss": fitted.history[-1]["loss"], "svi": means})


def found(swept_, sampled_):
    """What a job is compared by."""
    chains = sampled_.posterior.random, sampled_.stats["log_density"]
    return {"sweep": swept_._asdict(), "chains": chains}


def main(place, die=None):
    folder = Path(place)
    folder.mkdir(exist_ok=True)
    assert (jax.device_count(), jax.local_device_count()) == (8, 4)
    module = sys.modules["jaxeff.training._sweep"]
    run_epochs, trained, sharded = module.run_epochs, [], []

    def watched(*args, on_epoch, **options):
        trained.append([])

        def seen(index, carry, record):
            trained[-1].append(index)
            sharded.append(len({str(s.index) for s in carry.params["fc1"].global_shards}))
            if die and (len(trained), index) == (DYING_CHUNK, DYING_EPOCH):
                os.kill(os.getpid(), signal.SIGKILL)
            on_epoch(index, carry, record)

        return run_epochs(*args, on_epoch=seen, **options)

    module.run_epochs = watched
    results = found(
        swept(folder / "sweep", progress=True),
        (sampled(folder / "chains", 2), sampled(folder / "chains"))[1],
    )
    leaves = jax.tree.leaves(results)
    assert all(not isinstance(x, jax.Array) or x.is_fully_addressable for x in leaves)
    try:
        swept(folder / "sweep", epochs=4)
    except CheckpointError as error:
        refused = str(error)
    results["together"] = trained_together(checkpoint=folder / "fit.safetensors")
    results |= {"trained": trained, "parts": sharded, "refused": refused}
    (folder / "found.pickle").write_bytes(pickle.dumps(jax.device_get(results)))
