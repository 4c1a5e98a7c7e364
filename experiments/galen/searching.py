"""One search, what became of its result, and what all of them share."""

import functools
import time
from typing import Any

import jax
import numpy as np
import optax
from jaxeff_export import deploy, measured_latency, modelled_latency, table_latency
from jaxeff_export.latency import AlternatingTimer, compiled

from experiments import classifiers
from experiments.contests.tvm import host, modelled_cycles
from experiments.galen.recipe import AGENTS, BLIND, Settings, actions_of, searcher_of
from experiments.harness import Row, Run
from experiments.trainable import load_images
from jaxeff.search import (
    Candidate,
    Candidates,
    CompressionSensitivity,
    FewBitLayers,
    Policy,
    Refinement,
    Search,
    SearchSpace,
    bit_operations,
    search_among,
    sensitivity,
)

GENERIC = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64", "num-cores": 1}
"""A processor of which the compiler knows nothing."""
RANGES = 256
"""Images that ranges of activations are measured on."""
LIKELY = 200
"""Policies at random that tables are filled for at first."""
TIMES = 5, 11
"""Calls per measurement, and measurements."""


class Workshop:
    """The trained network, its candidates and their latencies, made when they are asked for."""

    def __init__(self, run: Run[Settings]) -> None:
        self.run, self.settings = run, run.settings
        self.target = host()

    @functools.cached_property
    def model(self) -> classifiers.Trained:
        """Trained in float32."""
        settings: Any = self.settings  # of which it takes the rate and the batch
        return classifiers.trained(self.run, settings.subject, settings, 0)

    @functools.cached_property
    def candidates(self) -> Candidates:
        """Measured on images that nothing was trained on."""
        settings, model = self.settings, self.model
        subject = settings.subject
        more = load_images(subject.data, subject.images + settings.validation, 1)
        held = tuple(part[subject.images :] for part in more.train)
        net, x = model.network, model.calibration(1)
        space = SearchSpace.read(
            net.evaluate, model.params, model.state, x,
            few_bit_layers=FewBitLayers(inputs=settings.inputs),
        )  # fmt: skip
        size = min(settings.step_images, len(held[0]))
        steps = settings.steps or len(model.images.train[0]) // size
        rate = optax.cosine_decay_schedule(settings.retrain_rate, steps)
        return Candidates(
            net.evaluate, model.params, model.images.train, held, space, state=model.state,
            train=net.train, steps=steps, batch_size=size,
            optimizer=optax.sgd(rate, momentum=0.9),
        )  # fmt: skip

    @functools.cached_property
    def latency(self) -> Any:
        """What searches are told; kernels of this network on this machine are those of all runs."""
        if self.settings.latency == "operations":
            return bit_operations
        x, nodes = self.model.calibration(1), self.settings.nodes
        folder = self.run.shared("kernel_tables") / self.settings.subject.name
        table: Any
        if self.settings.latency == "modelled":
            processor = self.settings.processor
            folder = folder.with_name(f"{folder.name}-{processor}")
            table = modelled_latency(x, target=processor, nodes=nodes, folder=folder)
        else:
            table = table_latency(x, target=self.target, folder=folder, nodes=nodes)
        space, key = self.candidates.space, self._key(7)
        for name in AGENTS:
            actions = actions_of(self.settings, name)
            shape = LIKELY, len(space.sites), actions.count
            drawn = jax.random.uniform(jax.random.fold_in(key, actions.count), shape)
            table.prepare(
                self._candidate(jax.tree.map(np.asarray, actions.policy(space, one)))
                for one in drawn
            )
        return table

    @functools.cached_property
    def compiled(self) -> Any:
        """A whole candidate compiled, and timed or modelled."""
        x = self.model.calibration(1)
        if self.settings.latency == "modelled":
            return modelled_latency(x, target=self.settings.processor)
        return measured_latency(x, target=self.target)

    @functools.cached_property
    def whole_cycles(self) -> float:
        """What the whole model in float32 takes on the processor that is modelled."""
        uncompressed = self.candidates.space.uncompressed
        inputs = (self.model.calibration(1),)
        return modelled_cycles(
            compiled(self._candidate(uncompressed), uncompressed, inputs, self.settings.processor)
        )

    @functools.cached_property
    def turns(self) -> AlternatingTimer:
        """In turns with the whole model in float32."""
        timer = AlternatingTimer("local", *TIMES)
        uncompressed = self.candidates.space.uncompressed
        timer.start(
            compiled(
                self._candidate(uncompressed),
                uncompressed,
                (self.model.calibration(1),),
                self.target,
            )
        )
        return timer

    @functools.cached_property
    def known(self) -> CompressionSensitivity:
        """Of joint actions."""
        model, settings = self.model, self.settings
        return sensitivity(
            model.network.evaluate, model.params, model.calibration(settings.images),
            self.candidates.space, actions_of(settings, "joint"),
            state=model.state,
        )  # fmt: skip

    def whole(self) -> list[Row]:
        """The network in float32, and how sensitive its layers are."""
        model, space, known = self.model, self.candidates.space, self.known
        x = model.calibration(1)
        candidate, seconds = self._candidate(space.uncompressed), self.turns.first
        g, params = candidate.small.integer(x)  # in float: nothing of it has bits
        generic = self.turns.seconds(deploy(g, (params, x), GENERIC))
        row = {
            "part": "float", "subject": model.subject.name, "ms": 1000 * seconds,
            "share_of_generic": seconds / generic, "sites": list(space.names),
            "macs": float(space.macs(space.uncompressed).sum()),
            "bops": float(space.bops(space.uncompressed).sum()),
            "accuracy": self._accuracy(candidate.small),
            "validation": self.candidates.accuracy(self._key(0), space.uncompressed),
        }  # fmt: skip
        tables = {name: np.asarray(table).tolist() for name, table in known._asdict().items()}
        return [row, {"part": "sensitivity", **tables}]

    def search(self, name: str, target: float, seed: int) -> Row:
        """What a searcher found, and every episode's reward."""
        space, start = self.candidates.space, time.monotonic()
        row: Row = {"part": "search", "searcher": name, "target": target, "seed": seed}
        try:
            outcome = self._search(name, target, seed)
        except ValueError as error:
            if "can't be reached" not in str(error):
                raise
            return row | {"message": str(error), "seconds": time.monotonic() - start}
        best, top = outcome.best, outcome.top
        outputs = np.asarray(space.outputs(best.kept))
        sizes = np.array([site.written.size for site in space.sites])
        return row | {
            "accuracy": top["accuracy"], "ratio": top["ratio"], "reward": top["reward"],
            "episode": top["episode"], "seconds": time.monotonic() - start,
            "rewards": [e.get("reward") for e in outcome.episodes],
            "macs": float(space.macs(best).sum()), "bops": float(space.bops(best).sum()),
            "channels": outputs / sizes, "weights": best.weights, "activations": best.activations,
            "policy": best.plain(),
        }  # fmt: skip

    def final(self, row: Row) -> Row:
        """A result trained on, compiled and measured: its time, and the library's accuracy."""
        same = {key: row[key] for key in ("searcher", "target", "seed")}
        if "policy" not in row:
            return {"part": "final", **same, "message": row["message"]}
        settings, model = self.settings, self.model
        told = settings.latency != "operations"
        refinement = Refinement(self.compiled, steps=2, tried=6) if told else None
        outcome = self._search(row["searcher"], row["target"], row["seed"], refinement)
        small, top = outcome.smaller, outcome.top
        ranges = model.calibration(RANGES)
        small = small.with_ranges(ranges)
        if settings.epochs:
            data = tuple(part[: settings.final_images] for part in model.images.train)
            small = small.retrained(
                self._key(99), data, epochs=settings.epochs, batch_size=settings.batch_size,
                progress=False,
            )  # fmt: skip
        g, params = small.integer(ranges)
        bundle = deploy(g, (params, model.calibration(1)), self.target)
        share = self.turns.seconds(bundle) / self.turns.first
        x, labels = (np.asarray(part) for part in model.images.test)
        with bundle.on("local") as board:
            right = [board.run(x[i : i + 1]).argmax() == labels[i] for i in range(len(labels))]
        modelled = {}
        if settings.latency == "modelled":
            # What the search was told of, beside the time here, which it wasn't.
            modelled = {"here": share}
            library = deploy(g, (params, model.calibration(1)), settings.processor)
            share = modelled_cycles(library) / self.whole_cycles
        return {
            "part": "final", **same, "share": share, **modelled,
            "told": [one["predicted"] * row["target"] for one in outcome.refined if "ratio" in one],
            "took": [one["ratio"] * row["target"] for one in outcome.refined if "ratio" in one],
            "validation": top["accuracy"], "reward": top["reward"],
            "searched": self._accuracy(small), "library": float(np.mean(right)),
            "macs": float(outcome.space.macs(outcome.best).sum()),
            "bops": float(outcome.space.bops(outcome.best).sum()), "policy": outcome.best.plain(),
        }  # fmt: skip

    def _search(
        self, name: str, target: float, seed: int, refinement: Refinement | None = None
    ) -> Search:
        """The search; episodes that it had are read."""
        settings = self.settings
        return search_among(
            self._key(1 + seed), self.candidates, latency=self.latency, target=target,
            agent=searcher_of(settings, name), actions=actions_of(settings, name),
            episodes=settings.episodes, known=None if name == BLIND else self.known,
            refinement=refinement, progress=False,
            folder=self.run.work / f"{name}-{target:g}-{seed}".replace(" ", "_"),
        )  # fmt: skip

    def _candidate(self, policy: Policy) -> Candidate:
        return Candidate(policy, self.candidates.space, self.candidates.smaller)

    def _key(self, number: int) -> jax.Array:
        return jax.random.fold_in(self.run.key, number)

    def _accuracy(self, small: Any) -> float:
        f = small.f
        return classifiers.accuracy(
            lambda p, s, x: f(p, s, x)[0], (small.params, small.state), self.model.images
        )
