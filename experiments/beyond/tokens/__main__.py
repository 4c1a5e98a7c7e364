"""How sure a language model is of every token, by method: errors, texts out of domain, price.

    python -m experiments.beyond.tokens [--model smollm2]

A small decoder of bytes learns the docstrings of Python's standard library. Then its last layer, or
adapters beside the layers of its last block, become random or several, by training or after it
(`one_pass`), or the norms of its gradients are taken; of docstrings it hasn't seen, other English,
source code, other languages and scrambled letters every method says how sure it is of each next
token. Judged by whether wrong tokens are those it is unsure of (AUROC, and the area under the
risk-coverage curve), whether the mean over a sequence tells texts out of domain, and by the
processor's time of a prediction over that of the decoder alone, measured in turn. SmolLM2-135M (a
package of the registry: `jaxeff.contrib.load_decoder`) takes the decoder's place where asked for,
and isn't trained.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from experiments import margins
from experiments.beyond.tokens.one_pass import Sure, gradient_norms, largest_noise, with_noise
from experiments.beyond.tokens.texts import texts, windows
from experiments.harness import (
    Claim,
    Count,
    Curves,
    Dots,
    Least,
    Listing,
    Panel,
    Part,
    Plot,
    Report,
    Row,
    Run,
    Study,
    above,
    average,
    grouped,
    painted,
    summary,
    where,
)  # fmt: skip
from experiments.recipes import Training, cosine_adam
from experiments.timing import interleaved
from jaxeff import bayes, ensembles, training
from jaxeff import uncertainty as u
from jaxeff.adapters import LoRA, frozen, init_lora, lora, untied
from jaxeff.contrib import Decoder, DecoderConfig, load_decoder
from jaxeff.ensembles import Members

INSIDE, HEAD = "in domain", "embed#1"


@dataclass(frozen=True)
class Settings(Training):
    """How the decoder is made, trained and asked.

    Attributes:
        model: The decoder of bytes, or SmolLM2-135M.
        seeds: Trainings of each method.
        width: Features of a token.
        length: Tokens of a sequence.
        learnt: Sequences to learn from.
        epochs: Passes of the decoder's training.
        adapting: Passes of the adapters'.
        rank: Rank of the adapters.
        curved: Sequences that curvatures are taken of.
        asked: Sequences of each text.
        dear: Sequences of each text for moments by slopes, which take a pass per hidden unit, and
            norms of gradients, which take one per token.
        tolerance: By what share adapters that are made random may raise the loss.
        samples: Draws of a prediction.
        members: Members of the ensemble.
        rounds: Rounds of the timing.
    """

    model: Literal["bytes", "smollm2"] = "bytes"
    seeds: Count = 3
    width: Annotated[int, Least(8)] = 48
    length: Annotated[int, Least(8)] = 48
    learnt: Annotated[int, Least(64)] = 12_000
    epochs: Count = 8
    adapting: Count = 2
    rank: Count = 2
    curved: Count = 500
    asked: Annotated[int, Least(2)] = 50
    dear: Annotated[int, Least(2)] = 8
    tolerance: float = 0.003
    samples: Count = 20
    members: Annotated[int, Least(2)] = 4
    rounds: Count = 5


@dataclass(frozen=True, eq=False)
class Bench:
    """What methods share: a decoder, texts as tokens, and how tokens are written."""

    settings: Settings
    key: jax.Array
    f: Callable[..., Any]
    params: Any
    train: tuple[Any, Any]
    asked: dict[str, tuple[Any, Any]]
    write: Callable[[Any], str]

    def fit(self, loss: Any, params: Any, epochs: int) -> Any:
        """Trains all parameters by Adam."""
        return training.fit(
            self.key, loss, params, self.train, optimizer=self.adam(epochs), epochs=epochs,
            batch_size=self.settings.batch_size, progress=False,
        ).params  # fmt: skip

    def adam(self, epochs: int) -> Any:
        """Makes an optimizer for so many passes."""
        steps = epochs * (len(self.train[1]) // self.settings.batch_size)
        return cosine_adam(self.settings.rate, steps)

    def adapt(self, train: Callable[..., Any], *args: Any, **others: Any) -> Any:
        """Trains adapters, by `training.fit` or another; what is frozen stays as it is."""
        epochs = self.settings.adapting
        return train(
            self.key, *args, epochs=epochs, optimizer=frozen(self.adam(epochs), "*frozen/*"),
            batch_size=self.settings.batch_size, progress=False, **others,
        )  # fmt: skip

    @property
    def few(self) -> tuple[Any, Any]:
        """The sequences that curvatures are taken of."""
        x, y = self.train
        return x[: self.settings.curved], y[: self.settings.curved]

    @property
    def spec(self) -> dict[str, LoRA]:
        """Adapters of the last block: what is before it is computed once for all draws."""
        last = len(self.params["blocks"]) - 1
        return {f"blocks/{last}/*:linear": LoRA(self.settings.rank)}

    def adapters(self, key: jax.Array) -> Any:
        """Starts adapters, beside the parameters that stay."""
        adapters = init_lora(key, self.f, self.params, self.train[0][:1], self.spec)
        # Parameters, too: as constants of the function XLA would compute with them as it compiles.
        return {"frozen": self.params, "adapters": adapters}

    @functools.cached_property
    def adapted(self) -> Callable[..., Any]:
        """The function of both."""
        g = lora(self.f, self.spec)
        return lambda params, x: g(params["frozen"], params["adapters"], x)

    @functools.cached_property
    def trained(self) -> Any:
        """Adapters after training, beside the parameters that stay."""
        loss = training.cross_entropy(self.adapted)
        return self.adapt(training.fit, loss, self.adapters(self.key), self.train).params


Forms = Iterator[tuple[str, tuple[Any, Any]]]
"""How it predicts, and `logits(params, x)`: draws first, Gaussian ones, or what it says itself."""
NORMS = "norms of gradients"


def _alone(bench: Bench) -> Forms:
    yield "", (lambda p, x: bench.f(p, x)[None], bench.params)


def _head(bench: Bench) -> Forms:
    g, untied_params = untied(bench.f, bench.params, bench.train[0][:1], HEAD)
    posterior = bayes.laplace(
        jax.random.key(0), g, untied_params, bench.few, HEAD, "diag" if _large(bench) else "kron",
        batch_size=4 if _large(bench) else 20,
    )  # fmt: skip
    count = bench.settings.samples
    # A draw of a head of fifty thousand words is a hundred million bytes.
    if not _large(bench):
        yield "draws", (lambda p, x: p.linear_draws(bench.key, x, count), posterior)
    yield "moments", (lambda p, x: p.marginals(x), posterior)


def _curved(bench: Bench) -> Forms:
    h, count = bench.adapted, bench.settings.samples
    # What training the adapters does by itself, without any posterior.
    yield "its mean", (lambda p, x: h(p, x)[None], bench.trained)
    posterior = bayes.laplace(
        bench.key, h, bench.trained, bench.few, "*", "kron", only="adapters/*",
        batch_size=2 if _large(bench) else 20, draws=1,
    )  # fmt: skip
    yield "linear draws", (lambda p, x: p.linear_draws(bench.key, x, count), posterior)


def _gradients(bench: Bench) -> Forms:
    yield NORMS, (gradient_norms(bench.f), bench.params)


def _widened(bench: Bench) -> Forms:
    h, count = bench.adapted, bench.settings.samples
    loss, keys = training.cross_entropy(h), jax.random.split(bench.key, count)

    def posterior(params: Any, std: Any) -> Any:
        return params | {"adapters": with_noise(params["adapters"], std)}

    @jax.jit
    def of_anchors(params: Any, std: Any) -> Any:
        def drawn(key: Any) -> Any:
            weights = bayes.draw(key, posterior(params, std))
            return loss(None, weights, None, bench.few, 0)[0]

        return jax.lax.map(drawn, keys).mean()

    std = largest_noise(functools.partial(of_anchors, bench.trained), bench.settings.tolerance)
    widest = posterior(bench.trained, std)
    yield "draws", (lambda p, x: bayes.predict(bench.key, h, p, x, samples=count), widest)
    yield "moments", (jaxeff.moments(h), widest)


def _variational(bench: Bench) -> Forms:
    h, count = bench.adapted, bench.settings.samples
    posterior = bench.adapt(
        bayes.svi, h, bench.adapters(bench.key), bench.train, init_scale=0.02,
        prior={"frozen/*": None, "adapters/*/b": None},
    ).posterior  # fmt: skip
    yield "draws", (lambda p, x: bayes.predict(bench.key, h, p, x, samples=count), posterior)
    yield "moments", (jaxeff.moments(h), posterior)
    yield "moments, by slopes", (jaxeff.moments(h, method="linear"), posterior)


def _members(bench: Bench) -> Forms:
    g, start = jaxeff.ensemble(
        bench.key, bench.adapted, bench.adapters(bench.key),
        {"adapters/*": Members(bench.settings.members)}, init=bench.adapters,
    )  # fmt: skip
    yield "", (g, bench.adapt(training.fit, ensembles.member_loss(g), start, bench.train).params)


def is_dear(form: str) -> bool:
    """Whether a way to predict takes many passes backward, so that few sequences are asked."""
    return form == NORMS or "slopes" in form


def _large(bench: Bench) -> bool:
    return bench.settings.model != "bytes"


METHODS: dict[str, Callable[[Bench], Forms]] = {
    "decoder alone": _alone,
    "decoder's gradients": _gradients,
    "Laplace, last layer": _head,
    "Laplace, adapters": _curved,
    "TFB, adapters": _widened,
    "SVI, adapters": _variational,
    "ensemble of adapters": _members,
}


@functools.cache
def _bench(settings: Settings, run: Run[Settings], seed: int) -> Bench:
    """A seed's decoder, trained once for all methods."""
    rng, key = np.random.default_rng([run.seed, seed]), jax.random.fold_in(run.key, seed)
    encode: Callable[[str], Any] = lambda text: list(text.encode())  # noqa: E731
    write: Callable[[Any], str] = lambda token: chr(token) if 32 <= token < 127 else "·"  # noqa: E731
    if settings.model == "smollm2":
        f, params, _, tokenizer, _ = load_decoder()
        encode, write = tokenizer.encode, lambda token: tokenizer.decode([token])
    else:
        config = DecoderConfig(vocabulary=256, width=settings.width, hidden=2 * settings.width,
                               depth=2, heads=4, key_heads=2)  # fmt: skip
        f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(key)))
    pairs = {}
    for name, text in texts().items():
        count = settings.learnt if name == "learnt" else settings.asked
        found = windows(np.asarray(encode(text), np.int32), count, settings.length, rng)
        found = rng.permuted(found, axis=1) if name == "scrambled" else found
        pairs[name] = jnp.asarray(found[:, :-1]), jnp.asarray(found[:, 1:])
    bench = Bench(settings, key, f, params, pairs.pop("learnt"), pairs, write)
    if settings.model == "smollm2":
        return bench
    return replace(bench, params=bench.fit(training.cross_entropy(f), params, settings.epochs))


def _asking(logits: Any) -> Callable[..., Any]:
    """Makes what is asked of a sequence: uncertainties, the truth's score, whether it was right."""

    def one(params: Any, x: Any, y: Any) -> Any:
        out = logits(params, x[None])
        parts = out if isinstance(out, Sure) else u.token_uncertainty(out)
        parts = jax.tree.map(lambda a: a[0], parts)
        if isinstance(out, Sure):
            said = out.logs[0]
        elif isinstance(out, jaxeff.Gaussian):
            said = jax.nn.log_softmax(u.probit_logits(out))[0]
        else:
            said = u.predictive_log_probs(out)[0]
        score = -jnp.take_along_axis(said, y[:, None], -1)[:, 0]
        return {"total": parts.total, "epistemic": parts.epistemic, "nll": score,
                "right": said.argmax(-1) == y}  # fmt: skip

    return jax.jit(one)


def rows(run: Run[Settings], method: str) -> Iterator[Row]:
    """A method with every seed and every way to predict."""
    settings = run.settings
    for seed in range(settings.seeds):
        bench = _bench(settings, run, seed)
        for form, (logits, params) in METHODS[method](bench):
            dear = is_dear(form)
            # A backward pass for each of a hidden state's 576 numbers at every token; of gradients
            # one for each token, through all its weights.
            if dear and _large(bench):
                continue
            count = settings.dear if dear else settings.asked
            asked = {name: (x[:count], y[:count]) for name, (x, y) in bench.asked.items()}
            one = _asking(logits)
            said = {
                name: jax.tree.map(
                    lambda *a: np.stack(a),
                    *(one(params, *each) for each in zip(*pair, strict=True)),
                )
                for name, pair in asked.items()
            }
            which = {"method": method, "by": form, "seed": seed}
            yield {"part": "tokens", **which, **_errors(said[INSIDE]),
                   "time_over_one": _price(bench, one, params)}  # fmt: skip
            yield {"part": "risk", **which, **_risk(said[INSIDE])}
            sums = {
                name: jax.tree.map(lambda a: jnp.asarray(a.mean(1)), s) for name, s in said.items()
            }
            for name in asked:
                if name != INSIDE:
                    found = {
                        kind: float(u.auroc(sums[INSIDE][kind], sums[name][kind]))
                        for kind in ("total", "epistemic")
                    }
                    yield {"part": "texts", **which, "text": name, **found}
            if seed == 0:
                for name, (_, y) in asked.items():
                    shown = {kind: said[name][kind][0].tolist() for kind in ("total", "epistemic")}
                    letters = [bench.write(int(token)) for token in y[0]]
                    yield {"part": "letters", **which, "text": name, "letters": letters, **shown}


def _errors(said: dict[str, Any]) -> Row:
    """Quality of next tokens, and whether the wrong ones are those that a method is unsure of."""
    right = said["right"].ravel()
    quality = {"accuracy": float(right.mean()), "nll": float(said["nll"].mean())}
    for kind in ("total", "epistemic"):
        score = said[kind].ravel()
        quality[f"{kind}_auroc"] = float(u.auroc(score[right], score[~right]))
        quality[f"{kind}_aurc"] = float(u.aurc(score, jnp.asarray(~right, jnp.float32)))
    return quality


def _risk(said: dict[str, Any]) -> Row:
    """The share of wrong tokens among those of the lowest entropy, at twenty shares of all."""
    curve = u.risk_coverage(said["total"].ravel(), jnp.asarray(~said["right"].ravel(), float))
    at = np.linspace(0, len(curve.risk) - 1, 21)[1:].astype(int)
    return {"coverage": curve.coverage[at].tolist(), "risk": curve.risk[at].tolist()}


def _price(bench: Bench, one: Callable[..., Any], params: Any) -> float:
    x, y = (tokens[0] for tokens in bench.asked[INSIDE])
    # The decoder alone is asked the same questions: entropies of a small decoder's tokens take
    # longer than its logits.
    _, (logits, posterior) = next(_alone(bench))
    calls = {
        "alone": functools.partial(_asking(logits), posterior, x, y),
        "this": functools.partial(one, params, x, y),
    }
    # Of the processor: other programs on the machine slow a call of a millisecond at random.
    times = interleaved(calls, bench.settings.rounds, relative_to="alone", clock=time.process_time)
    return times["this"]["ratio"]


NAMES = ("accuracy", "nll", "total_auroc", "epistemic_auroc", "total_aurc", "epistemic_aurc",
         "time_over_one")  # fmt: skip
TOKENS = summary(where(part="tokens"), "method", "by", **{name: average(name) for name in NAMES})
TEXTS = summary(where(part="texts"), "method", "by", "text", total=average("total"),
                epistemic=average("epistemic"))  # fmt: skip


ALONE = "decoder alone"


def over_alone(report: Report) -> Iterator[Row]:
    """Selects a row per other method: what it tells of wrong tokens beyond the decoder's entropy.

    One seed has the errors of both areas (Hanley and McNeil), of tokens as if they were
    independent.
    """
    each = {
        place: [(row["seed"], row) for row in rows]
        for place, rows in grouped(where(part="tokens")(report), "method", "by").items()
    }
    (alone,) = (rows for (method, _), rows in each.items() if method == ALONE)
    config = report.config
    for (method, by), rows in each.items():
        if method == ALONE:
            continue
        tokens = config["dear" if is_dear(by) else "asked"] * config["length"]
        values = [[(seed, row["total_auroc"]) for seed, row in one] for one in (rows, alone)]
        gains = margins.paired(*values)
        tie = margins.margin(gains)
        if tie is None:
            wrong = max(1, round(tokens * (1 - rows[0][1]["accuracy"])))
            both = [margins.auroc_error(one[0][1], tokens - wrong, wrong) for one in values]
            tie = margins.TWO * math.hypot(*both)
        yield {"method": method, "by": by, "gain": float(np.mean(gains)), "tie": tie}


def coloured(report: Report) -> Iterator[Panel]:
    """Paints letters on what two methods say of them, each on one scale for all texts."""
    shown = {"decoder alone": "total", "ensemble of adapters": "epistemic"}
    letters = [row for row in where(part="letters")(report) if row["method"] in shown]
    for row in sorted(letters, key=lambda row: row["text"]):
        kind = shown[row["method"]]
        most = max(max(r[kind]) for r in letters if r["method"] == row["method"])
        title = f"{row['text']}: {kind}, {row['method']} (0 to {most:.2g} nats)"
        yield painted(title, functools.partial(_letters, row, kind, most), xticks=[], yticks=[])


def _letters(row: Row, kind: str, most: float, axis: Any) -> None:
    # Words need room: eight of them a line.
    words = max(map(len, row["letters"])) > 1
    columns = 8 if words else 32
    lines = -(-len(row["letters"]) // columns)
    grid = np.full(lines * columns, np.nan)
    grid[: len(row[kind])] = row[kind]
    axis.imshow(grid.reshape(lines, columns), cmap="YlOrRd", vmin=0, vmax=most,
                aspect="auto" if words else "equal")  # fmt: skip
    for i, letter in enumerate(row["letters"]):
        axis.text(i % columns, i // columns, letter.strip(), ha="center", va="center", fontsize=7)


STUDY = Study(
    "tokens",
    __doc__,
    {
        "fast": Settings(seeds=1, width=32, length=32, learnt=6000, epochs=5, curved=200, asked=30,
                         dear=4, samples=10, rounds=3),
        "default": Settings(),
        "full": Settings(seeds=5, width=128, length=128, learnt=50_000, epochs=20, curved=2000,
                         asked=200, samples=50, members=8, rounds=15),
    },
    parts=(Part(lambda run: tuple(METHODS), rows),),
    claims=(
        Claim("{method} {by}: AUROC of wrong tokens by entropy, over the decoder alone's, by two "
              "errors ({tie:.3f})", "gain", above("tie"), of=over_alone),
    ),
    plots=(
        Plot(
            "texts",
            Dots("{method} {by}", {"total": "total", "epistemic": "epistemic"}, of=TEXTS,
                 facet="{text}", guides=(0.5,), axes={"xlabel": "AUROC"}),
            columns=2,
        ),
        Plot(
            "risk",
            Curves("coverage", "risk", where(part="risk"), hue="{method} {by}",
                   axes={"xlabel": "share of tokens that are taken", "ylabel": "wrong of them"}),
        ),
        Plot("letters", coloured, columns=2, size=(6.0, 0.8)),
    ),
    tables=(
        Listing("next tokens, of docstrings not seen", ("method", "by", *NAMES), TOKENS),
        Listing("AUROC of sequences", ("method", "by", "text", "total", "epistemic"), TEXTS),
    ),
    differences=(
        "The decoder of bytes has tens of thousands of parameters: an order of magnitude, and no "
        "ranking for large models. SmolLM2 isn't asked by slopes, nor for draws of its head.",
        "The texts are those of the version of Python that runs it.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
