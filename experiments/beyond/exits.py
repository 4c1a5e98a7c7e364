"""Early exits, heads, moments and draws on a microcontroller: uncertainty, and what each takes.

    python -m experiments.beyond.exits
    python -m experiments.beyond.exits --data fashion-mnist

One network of depthwise separable convolutions in six forms. What they say is judged by accuracy,
NLL, ECE and the AUROC of their entropy against inputs of another kind; each is compiled in floating
point for a Cortex-M4, and the emulated core runs it:

- one head, trained by Adam;
- early exits: a head behind each of the three pairs of layers, whose probabilities are averaged, as
  early-exit ensembles do (Qendro et al., arXiv 2011.14036);
- early views (after QUTE, ICML 2025, arXiv 2404.12599): while they train, the heads of the two
  earlier exits are also heads behind the last layer, with an affine map of channels of their own;
  only these and the last head are kept;
- three heads from other random numbers (`jaxeff.ensemble`);
- a Gaussian posterior that IVON learns (`experiments.beyond.selective`), asked by moments, by
  variances alone times factors that were measured on learnt inputs (`calibrate_moments`), and by
  draws.

QUTE reports 59 % less memory than the closest other ensemble of exits and 31 % less latency; at its
size, here, both are compared with those of the early exits.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxeff_export import deploy
from jaxeff_export.clib import count_instructions

import jaxeff
from experiments import harness as h
from experiments import margins
from experiments.beyond.microcontroller.moments import has_toolchain
from experiments.beyond.selective import recipe
from experiments.beyond.selective.passes import Plain
from experiments.harness import Report, Row, Run
from jaxeff import bayes, training, uncertainty
from jaxeff.ensembles import Members, member_loss

CORE = "cortex-m4"
NAME = "DS-CNN"
ONE, EXITS, VIEWS, HEADS = "one head", "early exits", "early views", "heads"
MOMENTS, CALIBRATED = "moments", "moments, calibrated"


@dataclass(frozen=True)
class Settings(recipe.Settings):
    """How networks are trained and asked."""

    # images, or words
    data: Literal["digits", "fashion-mnist", "cifar-10", "speech-commands"] = "digits"
    draws: tuple[int, ...] = (4, 16)  # draws of weights


class Form(NamedTuple):
    """Log-probabilities of a form: `call(params, x)`."""

    params: Any
    call: Callable[[Any, Any], Any]


def exits(p: Any, x: Any) -> list[Any]:
    """Computes what each pair of layers says of an input: means over positions, `[n, width]`."""
    o, seen = Plain(), []
    x = o.act(jax.nn.relu, o.conv(x, **p["stem"], stride=2))
    for depth, point in p["pairs"]:
        x = o.act(jax.nn.relu, o.conv(x, **depth, groups=x.shape[-1]))
        x = o.act(jax.nn.relu, o.conv(x, **point))
        seen.append(o.mean(x, (1, 2)))
    return seen


def early(p: Any, x: Any) -> Any:
    """Computes logits of every exit, `[exits, n, classes]`."""
    heads = [*p["early"], p["fc"]]
    return jnp.stack([Plain().dense(x, **w) for x, w in zip(exits(p, x), heads, strict=True)])


def views(p: Any, x: Any) -> Any:
    """Computes logits of the last head and of the early ones' copies, behind the last layer."""
    last = exits(p, x)[-1]
    ways = [last * w["scale"] + w["shift"] for w in p["views"]]
    heads = [*zip(ways, p["early"], strict=True), (last, p["fc"])]
    return jnp.stack([Plain().dense(x, **w) for x, w in heads])


def mixed(logits: Any) -> Any:
    """Averages probabilities over a first axis; returns their logarithms."""
    return jax.nn.logsumexp(jax.nn.log_softmax(logits), 0) - np.log(len(logits))


def learnt(settings: Settings, key: Any) -> dict[str, Form]:
    """Trains every form on the same inputs."""
    net, sets = recipe.built(settings, settings.data, NAME)
    base = net.init(key)
    batch = min(64, len(sets.train[1]))
    epochs = max(1, 2 * settings.steps * batch // len(sets.train[1]))
    steps = epochs * (len(sets.train[1]) // batch)

    def fit(loss: Any, params: Any) -> Any:
        rate = optax.cosine_decay_schedule(3e-3, steps)
        return training.fit(
            key, loss, params, sets.train, optimizer=optax.adam(rate), epochs=epochs,
            batch_size=batch, progress=False,
        ).params  # fmt: skip

    def summed(*ways: Callable[..., Any]) -> Any:
        """Every exit learns as if alone."""

        def loss(params: Any, batch: Any) -> Any:
            x, y = batch
            logits = jnp.concatenate([way(params, x) for way in ways])
            return optax.softmax_cross_entropy_with_integer_labels(logits, y[None]).mean(1).sum()

        return loss

    width = base["fc"]["w"].shape[0]
    others = [net.init(jax.random.fold_in(key, i))["fc"] for i in (1, 2)]
    affine = [{"scale": jnp.ones(width), "shift": jnp.zeros(width)} for _ in others]
    g, heads = jaxeff.ensemble(key, net.f, base, {"fc": Members(3)}, init=net.init)
    posterior = recipe.learnt(settings, settings.data, NAME, key).weights
    factors = jaxeff.calibrate_moments(
        key, net.f, posterior, sets.train[0][: settings.calibration], progress=False
    )

    def passed(moments: Any) -> Callable[[Any, Any], Any]:
        return lambda p, x: jax.nn.log_softmax(uncertainty.probit_logits(moments(p, x)))

    forms = {
        ONE: Form(
            fit(training.cross_entropy(net.f), base), lambda p, x: jax.nn.log_softmax(net.f(p, x))
        ),
        EXITS: Form(fit(summed(early), {**base, "early": others}), lambda p, x: mixed(early(p, x))),
        VIEWS: Form(
            fit(summed(early, views), {**base, "early": others, "views": affine}),
            lambda p, x: mixed(views(p, x)),
        ),
        HEADS: Form(fit(member_loss(g), heads), lambda p, x: mixed(g(p, x))),
        # Those that a bundle computes.
        MOMENTS: Form(posterior, passed(jaxeff.moments(net.f, method="diagonal"))),
        CALIBRATED: Form(factors, passed(jaxeff.moments(net.f, method="diagonal"))),
    }
    for count in settings.draws:
        drawn = [bayes.draw(k, posterior) for k in jax.random.split(key, count)]
        # One network after another: what a board does that holds few activations.
        forms[recipe.drawn(count)] = Form(
            drawn, lambda p, x: mixed(jnp.stack([net.f(each, x) for each in p]))
        )
    return forms


def compiled(form: Form, x: Any) -> Row:
    """What a form takes on the emulated core."""
    with tempfile.TemporaryDirectory() as home:
        bundle = deploy(form.call, (form.params, x[:1]), target=CORE)
        library = bundle.export_c(f"{home}/library", name="form")
        sizes, count = library.sizes, count_instructions(library, CORE).total
    return {
        "flash": sizes.code + sizes.parameters,
        "ram": sizes.workspace + sizes.arrays + sizes.stack, "instructions": count,
    }  # fmt: skip


def rows(run: Run[Settings], task: str) -> Iterator[Row]:
    """One seed, in every form."""
    settings, seed = run.settings, int(task)
    forms = learnt(settings, jax.random.fold_in(run.key, seed))
    _, sets = recipe.built(settings, settings.data, NAME)
    x, y = sets.test
    for name, form in forms.items():
        call = jax.jit(form.call)
        said, outside = call(form.params, x), call(form.params, sets.outside)
        yield {"form": name, "seed": seed, **recipe.judged(said, y, outside)}
    if seed == 0 and has_toolchain(CORE):
        for name, form in forms.items():
            run.say(f"{name} for a {CORE}")
            yield {"form": name, **compiled(form, x)}


JUDGED = ("accuracy", "nll", "ece", "auroc", "aurc")
TAKEN = ("flash", "ram", "instructions")


def table(report: Report) -> Iterator[Row]:
    """Means over seeds with half of their 95 % intervals, and what the core needs."""
    taken = {row["form"]: row for row in h.having("flash")(report)}
    for (name,), each in h.grouped(h.having("nll")(report), "form").items():
        needs = {column: taken[name][column] for column in TAKEN if name in taken}
        yield {"form": name, **margins.means(each, JUDGED), **needs}


def beside(other: str) -> Callable[[Report], Iterator[Row]]:
    """Early views, heads and both passes of moments beside another form."""

    def selection(report: Report) -> Iterator[Row]:
        taken = {row["form"]: row for row in h.having("flash")(report)}
        seeds = h.grouped(h.having("nll")(report), "form")
        for name in (VIEWS, HEADS, MOMENTS, CALIBRATED):
            if {name, other} <= taken.keys() and {(name,), (other,)} <= seeds.keys():
                ratios = {c: taken[name][c] / taken[other][c] for c in TAKEN}
                gaps = margins.differences(seeds[name,], seeds[other,], JUDGED)
                yield {"form": name, **ratios, **gaps}

    return selection


def by_heads(row: Row) -> bool:
    """Whether a form is of several heads."""
    return row["form"] in (VIEWS, HEADS)


CLAIMS = (
    h.Claim("{form}: instructions over the early exits'", "instructions", h.at_most(1), None,
            beside(EXITS), when=by_heads),
    h.Claim("{form}: flash over the early exits'", "flash", h.at_most(1), None, beside(EXITS),
            when=by_heads),
    recipe.no_worse("{form}: NLL less one head's", beside(ONE), "nll", 1),
    recipe.no_worse("{form}: AUROC less the early exits'", beside(EXITS), "auroc", -1),
    h.Claim("{form}: instructions over those of 4 draws", "instructions", h.at_most(1), None,
            beside(recipe.drawn(4)), when=lambda row: not by_heads(row)),
)  # fmt: skip

STUDY = h.Study(
    "exits", __doc__,
    {
        "fast": Settings(seeds=1, learnt=64, held=64, asked=64, steps=4, width=4, draws=(4,)),
        "default": Settings(),
        "full": Settings(data="fashion-mnist", asked=10_000, seeds=5),
    },
    (h.Part(lambda run: [str(seed) for seed in range(run.settings.seeds)], rows),),
    CLAIMS,
    (
        h.Plot("forms", h.Dots("{form}", "nll", table, axes={"xlabel": "NLL, lower is better"})),
    ),
    (
        h.Listing("means over seeds, and a call on the core", ("form", *JUDGED, *TAKEN), table),
        h.Listing("half of the 95 % intervals over seeds",
                  ("form", *(f"{column} ±" for column in JUDGED)), table),
    ),
    version=2,
    differences=(
        "QUTE's program wasn't at hand: its transfer of weights is a head that two places share, "
        "its blocks behind the last layer are affine maps of channels, its losses weigh the same.",
        "Networks are small and learn from few inputs of 14 by 14 pixels, in floating point.",
        "Draws of weights are kept in flash: no random numbers are drawn on the core.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
