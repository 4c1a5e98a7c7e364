"""A chip's read-out noise as a posterior: how much of it is learnt, and what that is good for.

    python -m experiments.beyond.analog_posterior

The noise of a converter has a size in counts; what a count stands for is a digital number of each
layer (`Crossbar.weight_step`), so that number says how random the layer is. Noise of the sums is a
Gaussian posterior of the biases, drawn anew at every read-out. A perceptron on a synthetic chip,
known by its answers alone, with the noise that full use of the codes leaves (native), with that of
a mean-field posterior's sums (matched), and with what the evidence bound asks for (learnt), by one
network and by a mixture of them; beside it mean-field SVI on a digital computer, by moments and by
draws. Images are digits of 14 by 14 pixels; patches of photographs are out of domain.

Klein's thesis proposes it (section 11.3: device noise "aligns naturally" with SVI, and ensembles
"could help to overcome its single-mode limitations") and has no numbers.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import jaxeff
from experiments import harness as h
from experiments.beyond import small_digits
from experiments.harness import Count, Least, Report, Row, Run
from experiments.recipes import Training, cosine_adam
from jaxeff import bayes, uncertainty
from jaxeff.analog_hardware import (
    PUBLISHED_PHYSICS,
    Chip,
    Crossbar,
    calibrate_ranges,
    in_the_loop,
)
from jaxeff.training import cross_entropy, init, make_epoch, run_epochs

LAYERS = ("fc1", "fc2")
ARRAY = Crossbar(gain=0.004)
TEMPERED = 0.25
"""Weight of the KL term on both machines, the library's default."""
READS, VECTORS = 32, 64
"""Readings of a tile that its noise is measured by, and vectors."""


@dataclass(frozen=True)
class Settings(Training):
    """How networks are trained and asked."""

    seeds: Count = 3  # chips, with a training each
    epochs: Count = 30  # of digital training, and of SVI
    retrain: Count = 20  # epochs of retraining with the chip in the loop
    readings: Annotated[int, Least(4)] = 16  # passes behind a prediction
    members: Annotated[int, Least(2)] = 4  # of the mixture


class Bench(NamedTuple):
    """A chip and what is trained for it."""

    settings: Settings
    key: jax.Array
    chip: Chip
    f: Callable[..., Any]
    members: Any  # parameters trained digitally, with a leading axis; the first is the network
    spec: dict[str, Any]  # crossbars by layer, with ranges
    counts: float  # standard deviation of a tile's reading
    tiles: dict[str, float]  # readings of an image, by layer

    def on_chip(self, key: jax.Array, p: Any, x: jax.Array) -> jax.Array:
        """Passes images through the chip; `p["level"]` are logarithms of steps over the native."""
        spec = {
            site: replace(self.spec[site], weight_step=self.spec[site].weight_step * jnp.exp(level))
            for site, level in zip(LAYERS, p["level"], strict=True)
        }
        return in_the_loop(self.f, spec, self.chip)(key, p["net"], x)

    def spread(self, level: jax.Array) -> jax.Array:
        """Computes the noise of each layer's sums in their own unit."""
        # Tiles of a sum are read one by one, so their variances add up.
        native = [
            self.tiles[site] ** 0.5 * self.counts * a.input_step * a.weight_step / a.gain
            for site, a in self.spec.items()
        ]
        return jnp.stack(native) * jnp.exp(level)

    def retrained(self, nets: Any, levels: jax.Array, learnt: jax.Array) -> Any:
        """Trains networks with the chip in the loop, all at once; `learnt` says whose levels move.

        Returns:
            `{"net", "level"}` with a leading axis of networks.
        """
        data, settings = small_digits.images(standardized=False), self.settings
        inner = cross_entropy(self.on_chip, keyed=True)

        def loss(key: Any, p: Any, state: Any, batch: Any, step: Any) -> Any:
            fixed = jax.lax.stop_gradient(p["level"])
            p = p | {"level": jnp.where(state, p["level"], fixed)}
            value, (metrics, _) = inner(key, p, None, batch, step)
            # Noise of a sum is a Gaussian posterior of its bias, whose prior is a unit one; its
            # means are left to the likelihood, as biases of the digital network are.
            spread = self.spread(p["level"])
            columns = jnp.array([len(p["net"][site]["bias"]) for site in LAYERS], jnp.float32)
            kl = jnp.sum(columns * (0.5 * spread**2 - jnp.log(spread)))
            return value + TEMPERED * kl / len(data.train), (metrics, state)

        steps = settings.retrain * (len(data.train) // settings.batch_size)
        # Logarithms of steps move by what the rate says, and have a longer way to go than weights.
        optimizer = optax.multi_transform(
            {
                "net": cosine_adam(settings.rate, steps),
                "level": cosine_adam(10 * settings.rate, steps),
            },
            {"net": "net", "level": "level"},
        )
        key, start = jax.random.fold_in(self.key, 3), {"net": nets, "level": levels}
        return _trained(key, loss, start, learnt, optimizer, settings.retrain, settings.batch_size)

    def read(self, trained: Any, x: jax.Array) -> jax.Array:
        """Asks the chip for logits several times, `[networks, readings, n, classes]`."""
        keys = jax.random.split(jax.random.fold_in(self.key, 9), self.settings.readings)

        # Images are an argument: XLA would fold what the chip makes of a constant for seconds.
        def one(p: Any, x: jax.Array) -> jax.Array:
            return jax.lax.map(lambda key: self.on_chip(key, p, x), keys)

        found: jax.Array = jax.jit(jax.vmap(one, (0, None)))(trained, x)
        return found


def _trained(
    key: jax.Array, loss: Any, start: Any, states: Any, optimizer: Any, epochs: int, size: int
) -> Any:
    """Trains several networks in one program; `start` and `states` have a leading axis of them."""
    data = small_digits.images(standardized=False)
    epoch = make_epoch(loss, optimizer, size)
    begin = jax.vmap(lambda p, state: init(p, optimizer, state))(start, states)
    keys = jax.random.split(key, len(jax.tree.leaves(start)[0]))
    final, _ = run_epochs(
        keys, jax.vmap(epoch, (0, 0, None)), begin, (data.train, data.train_labels),
        epochs=epochs, progress=False,
    )  # fmt: skip
    return final.params


def make_bench(run: Run[Settings], seed: int) -> Bench:
    """A digital network, the crossbars it needs, and the noise of a chip's tiles."""
    data, settings = small_digits.images(standardized=False), run.settings
    key = jax.random.fold_in(run.key, seed)
    # Without leaks and memory of lines, which a chip's order is about and noise isn't.
    chip = Chip(seed, physics=replace(PUBLISHED_PHYSICS, ordered=False))
    keys = [jax.random.fold_in(key, 100 + i) for i in range(settings.members)]
    f, _ = small_digits.network(key)
    starts = jax.tree.map(lambda *p: jnp.stack(p), *[small_digits.network(k)[1] for k in keys])
    optimizer = cosine_adam(
        settings.rate, settings.epochs * (len(data.train) // settings.batch_size)
    )
    members = _trained(
        key, cross_entropy(f), starts, None, optimizer, settings.epochs, settings.batch_size
    )
    params = jax.tree.map(lambda leaf: leaf[0], members)
    spec = calibrate_ranges(f, params, [data.train], {"fc*": ARRAY})
    to_weights, to_inputs, to_read = jax.random.split(jax.random.fold_in(key, 1), 3)
    weights = jax.random.randint(to_weights, (ARRAY.rows, 32), -40, 41)
    inputs = jax.random.randint(to_inputs, (VECTORS, ARRAY.rows), 0, 16)
    # Every vector many times: what differs between its readings is noise.
    asked = jax.jit(chip.query)(to_read, weights, jnp.repeat(inputs, READS, 0))
    asked = asked.reshape(VECTORS, READS, -1)
    counts = float(jnp.sqrt(jnp.var(asked.astype(jnp.float32), axis=1, ddof=1).mean()))
    tiles = {
        site: float(math.prod(
            math.ceil(length / most)
            for length, most in zip(
                params[site]["kernel"].shape, (ARRAY.rows, ARRAY.columns), strict=True
            )
        ))
        for site in LAYERS
    }  # fmt: skip
    return Bench(settings, key, chip, f, members, spec, counts, tiles)


def matching(bench: Bench, posterior: Any, x: jax.Array) -> jax.Array:
    """Finds the levels at which the chip's noise has the mean variance of a posterior's sums."""
    means, variances = (
        jax.tree.map(lambda g, part=part: getattr(g, part), bayes.to_gaussians(posterior),
                     is_leaf=lambda node: hasattr(node, "var"))
        for part in ("mean", "var")
    )  # fmt: skip
    # Means go through the layers, and each layer's own variance is what its noise has to be.
    outputs, inputs = [], x.reshape(len(x), -1)
    for site in LAYERS:
        asked = inputs**2 @ variances[site]["kernel"] + variances[site]["bias"]
        outputs.append(jnp.sqrt(asked.mean()))
        inputs = jax.nn.relu(inputs @ means[site]["kernel"] + means[site]["bias"])
    return jnp.log(jnp.stack(outputs) / bench.spread(jnp.zeros(len(LAYERS))))


def measure(run: Run[Settings], seed: int) -> Iterator[Row]:
    """Every method on one chip."""
    bench, data, settings = (
        make_bench(run, seed),
        small_digits.images(standardized=False),
        run.settings,
    )
    steps = settings.epochs * (len(data.train) // settings.batch_size)
    first = jax.tree.map(lambda leaf: leaf[0], bench.members)
    posterior = bayes.svi(
        bench.key, bench.f, first, (data.train, data.train_labels), epochs=settings.epochs,
        init_scale=1e-2, kl=TEMPERED, batch_size=settings.batch_size,
        optimizer=cosine_adam(settings.rate, steps), progress=False,
    ).posterior  # fmt: skip
    native, count = jnp.zeros(len(LAYERS)), settings.members
    # Native and matched are of the first network, learnt noise of all members.
    nets = jax.tree.map(lambda p: jnp.concatenate([p[:1], p[:1], p]), bench.members)
    largest = jnp.stack([jnp.abs(bench.members[site]["kernel"]).max((1, 2)) for site in LAYERS], -1)
    # Ranges are the first network's; each member begins with the steps that its own weights fill.
    own_levels = jnp.log(largest / largest[0])
    levels = jnp.stack([native, matching(bench, posterior, data.train), *own_levels])
    trained = bench.retrained(nets, levels, jnp.arange(2 + count) >= 2)
    test = len(data.test)
    readings = bench.read(trained, jnp.concatenate([data.test, data.elsewhere]))
    passes = jax.jit(jaxeff.moments(bench.f))
    each = settings.readings // count
    x = jnp.concatenate([data.test, data.elsewhere])
    # Logits of all images by each method, and which network's noise stands in the table.
    methods: dict[str, tuple[jax.Array, int | None]] = {
        "SVI, moments": (uncertainty.sample_logits(
            bench.key, passes(bayes.to_gaussians(posterior), x), settings.readings), None),
        "SVI, draws": (bayes.predict(bench.key, bench.f, posterior, x, samples=settings.readings),
                       None),
        "chip, one reading": (readings[0, :1], 0),
        "chip, native": (readings[0], 0),
        "chip, matched": (readings[1], 1),
        "chip, learnt": (readings[2], 2),
        "chip, mixture of learnt": (readings[2:, :each].reshape(-1, *readings.shape[2:]), 2),
    }  # fmt: skip
    for name, (logits, net) in methods.items():
        inside, outside = small_digits.said(logits[:, :test]), small_digits.said(logits[:, test:])
        spread = [None] * len(LAYERS) if net is None else bench.spread(trained["level"][net])
        yield {
            "method": name, "seed": seed,
            **small_digits.judged(inside, outside, data.test_labels),
            "queries": 0.0 if net is None else len(logits) * sum(bench.tiles.values()),
            **{f"noise_{site}": one if one is None else float(one)
               for site, one in zip(LAYERS, spread, strict=True)},
        }  # fmt: skip


COLUMNS = ("accuracy", "nll", "ece", "auroc", "queries", "noise_fc1", "noise_fc2")
MEANS = h.summary(h.every, "method", **{name: h.average(name) for name in COLUMNS})
CLOSE = 0.05
"""AUROC by which the chip may fall short of the digital moment pass."""


def gains(report: Report) -> Iterator[Row]:
    """Selects what learnt noise and mixtures gain, and how near the digital posterior they come."""
    by = {row["method"]: row for row in MEANS(report)}
    native, learnt, mixed = (by[f"chip, {n}"] for n in ("native", "learnt", "mixture of learnt"))
    yield {
        "nll": native["nll"] - learnt["nll"], "auroc": learnt["auroc"] - native["auroc"],
        "behind": by["SVI, moments"]["auroc"] - learnt["auroc"],
        "mixture_nll": learnt["nll"] - mixed["nll"],
        "mixture_auroc": mixed["auroc"] - learnt["auroc"],
    }  # fmt: skip


claim = functools.partial(h.Claim, source="no number", of=gains, needs="default")
STUDY = h.Study(
    "analog_posterior", __doc__,
    {
        "fast": Settings(seeds=1, epochs=15, retrain=8, readings=12, members=3),
        "default": Settings(),
        "full": Settings(seeds=10, epochs=100, retrain=100, readings=64, members=8),
    },
    (h.Part(lambda run: range(run.settings.seeds), measure),),
    (
        claim("NLL that learnt noise saves over native", "nll", h.above(0)),
        claim("AUROC that it gains", "auroc", h.above(0)),
        claim("AUROC short of the digital moment pass", "behind", h.at_most(CLOSE)),
        claim("NLL that a mixture saves over one network, at equal queries", "mixture_nll",
              h.above(0)),
        claim("AUROC that a mixture gains", "mixture_auroc", h.above(0)),
    ),
    (
        h.Plot(
            "quality",
            h.Dots("{method}", {"accuracy": "accuracy", "auroc": "AUROC"}, MEANS,
                   axes={"xlabel": "higher is better"}),
            h.Dots("{method}", {"nll": "NLL", "ece": "ECE"}, MEANS,
                   axes={"xlabel": "lower is better"}),
        ),
    ),
    (h.Listing("digits on a chip, photographs out of domain", ("method", *COLUMNS), MEANS),),
    differences=(
        "the chip is synthetic, without effects of the order of events; BrainScaleS-2 was not at "
        "hand",
        "queries are vectors that tiles answer, behind one prediction; all retraining has the "
        "same number of them, so the mixture as many times more as it has members",
        "a smaller step saturates weights and sums, so noise can be raised at will and lowered "
        "little; averaging readings would lower it",
        "noise of sums doesn't know the input's size as that of random weights does, and a "
        "column's noise is not its own but the layer's",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
