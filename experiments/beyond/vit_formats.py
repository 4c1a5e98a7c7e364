"""A vision transformer whose weights are rounded to few bits: what each format costs.

    python -m experiments.beyond.vit_formats

A transformer of four blocks classifies images in 16 patches. The weights of its blocks are then
rounded, or corrected by training images first (AWQ, GPTQ); the embedding and the last layer have
eight bits. Beside qwix, where it is installed: the same layers of the same network in formats that
both have, everything else in float.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import jaxeff
from experiments import harness as h
from experiments.beyond.pretrained.formats import EIGHT, FORMATS, GROUPS, HALF_QUADRATIC, OTHERS
from experiments.harness import Count, Refused, Report, Row, Run
from experiments.recipes import Training, cosine_adam
from experiments.trainable import load_images
from jaxeff import uncertainty
from jaxeff.compression import awq, gptq, memory, quantized
from jaxeff.nn import TransformerEncoder
from jaxeff.training import cross_entropy, fit

FLOAT, WHOLE, BESIDE = "float32", "whole network", "blocks alone"
PATCHES, PATCH = 16, 49
LAYERS, FEED = "blocks/*:linear", "blocks/*/fc*"
ROUNDED = {name: spec["*:linear"] for name, spec in FORMATS.items() if spec} | OTHERS
ROUNDED["int4 by 64, HQQ"] = HALF_QUADRATIC
CORRECTED: dict[str, Callable[..., Any]] = {"int4 by 32, AWQ": awq, "int4 by 32, GPTQ": gptq}
# qwix tiles one axis of a kernel, and attention's have several.
BOTH: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "int8": ("int8", None, {LAYERS: EIGHT}),
    "int4": ("int4", None, {LAYERS: FORMATS["int4"]["*:linear"]}),
    "int4 by 32, feed-forward": ("int4", 32, {FEED: GROUPS}),
}


@dataclass(frozen=True)
class Settings(Training):
    """What is trained, and judged by how much."""

    data: str = "mnist"  # the data set
    images: Count = 60_000  # training images
    test_images: Count = 10_000  # test images
    epochs: Count = 10  # of a training
    width: Count = 128  # of the transformer
    heads: Count = 2  # of its attention, whose sums of 64 groups of 32 and 64 divide
    depth: Count = 4  # blocks
    seeds: Count = 3  # trainings
    calibration: Count = 256  # training images that weights are corrected by

    def __post_init__(self) -> None:
        if self.width % (64 * self.heads):
            raise Refused(f"width must be a multiple of 64 for each of {self.heads} heads")


def patches(x: Any) -> jax.Array:
    """Cuts images of 28 by 28 pixels into rows of patches, `[n, 16, 49]`."""
    cut = jnp.asarray(x).reshape(-1, 4, 7, 4, 7).swapaxes(2, 3)
    return cut.reshape(-1, PATCHES, PATCH)


def measure(run: Run[Settings], seed: int) -> Iterator[Row]:
    """Trains one network and judges it in every format."""
    settings, key = run.settings, jax.random.fold_in(run.key, seed)
    images = load_images(settings.data, settings.images, settings.test_images)
    labels, truth = images.train[1], images.test[1]
    x, test = patches(images.train[0]), patches(images.test[0])
    model = TransformerEncoder(
        10,
        PATCH,
        PATCHES,
        width=settings.width,
        depth=settings.depth,
        heads=settings.heads,
        rngs=nnx.Rngs(key),
    )
    f, start = jaxeff.functional(model)
    steps = settings.epochs * (len(x) // settings.batch_size)
    params = fit(
        key, cross_entropy(f), start, (x, labels), epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=cosine_adam(settings.rate, steps), checkpoint=run.work / f"{seed}.safetensors",
        progress=False,
    ).params  # fmt: skip
    exact = jax.jit(f)(params, test)

    def row(part: str, name: str, engine: str, logits: Any, size: float | None) -> Row:
        """What is left of the float network's answers."""
        probs = jax.nn.softmax(logits)
        off = jnp.mean((logits - exact) ** 2) / jnp.mean((exact - exact.mean(0)) ** 2)
        return {
            "part": part, "format": name, "engine": engine, "seed": seed,
            "accuracy": float(uncertainty.accuracy(probs, truth)),
            "nll": float(uncertainty.nll(probs, truth)),
            "agrees": float((logits.argmax(-1) == exact.argmax(-1)).mean()),
            "error": float(off) ** 0.5, "bytes": size,
        }  # fmt: skip

    def ours(part: str, name: str, params: Any, spec: Any) -> Row:
        logits = jax.jit(quantized(f, spec))(params, test)
        size = stored(f, spec, params, test) if part == WHOLE else None
        return row(part, name, "jaxeff", logits, size)

    yield row(WHOLE, FLOAT, "jaxeff", exact, stored(f, {}, params, test))
    ends = {"embed": EIGHT, "fc": EIGHT}
    for name, setting in ROUNDED.items():
        yield ours(WHOLE, name, params, {LAYERS: setting, **ends})
    for name, transform in CORRECTED.items():
        _, fitted, spec = transform(f, params, x[: settings.calibration], {LAYERS: GROUPS})
        yield ours(WHOLE, name, fitted, {**spec, **ends})
    for name, (kind, tile, spec) in BOTH.items():
        yield ours(BESIDE, name, params, spec)
        if importlib.util.find_spec("qwix"):
            yield row(BESIDE, name, "qwix", by_qwix(model, params, kind, tile, test), None)


def stored(f: Any, spec: Any, params: Any, x: Any) -> float:
    """Computes the bytes of all parameters: what no format has rounded is float32."""
    kernels = [
        leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if path[-1].key == "kernel"
    ]  # fmt: skip
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    if not spec:
        return 4.0 * size
    return float(memory(f, params, x[:1], spec)) / 8 + 4.0 * (size - sum(k.size for k in kernels))


def by_qwix(model: nnx.Module, params: Any, kind: str, tile: int | None, x: Any) -> Any:
    """Computes the logits of qwix's post-training quantization of weights."""
    import qwix

    state = nnx.state(model, nnx.Param)
    # Lists of modules are numbered there; here every name of a path is text.
    for path, variable in nnx.to_flat_state(state):
        variable[...] = functools.reduce(lambda tree, name: tree[str(name)], path, params)
    nnx.update(model, state)
    rule = qwix.QuantizationRule(
        module_path="blocks/.*/fc.*" if tile else "blocks.*", weight_qtype=kind, tile_size=tile
    )
    return nnx.jit(qwix.quantize_model(model, qwix.PtqProvider([rule]), x[:1]))(x)


COLUMNS = ("accuracy", "nll", "agrees", "error", "bytes")
MEANS = h.means(h.every, ("part", "format", "engine"), COLUMNS, ("accuracy", "error"))


def formats(report: Report) -> list[Row]:
    """Selects the whole network in every format, but float32."""
    return [r for r in MEANS(report) if r["part"] == WHOLE and r["format"] != FLOAT]


def lost(report: Report) -> Iterator[Row]:
    """Selects what formats cost, against each other and against float32."""
    by_format = {r["format"]: r for r in MEANS(report) if r["part"] == WHOLE}
    plain, int4 = by_format[FLOAT], by_format["int4 by 32"]
    yield {
        "int8": plain["accuracy"] - by_format["int8"]["accuracy"],
        "int4": plain["accuracy"] - int4["accuracy"], "error": int4["error"],
        "fifteen": by_format["int4 by 32, 15 values"]["error"],
        **{name: by_format[f"int4 by 32, {name}"]["error"] for name in ("AWQ", "GPTQ")},
    }  # fmt: skip


def beside(report: Report) -> Iterator[Row]:
    """Selects our errors beside qwix's, where it was there."""
    errors = {(r["format"], r["engine"]): r["error"] for r in MEANS(report) if r["part"] == BESIDE}
    for name in BOTH:
        if theirs := errors.get((name, "qwix")):
            yield {"format": name, "ours": errors[name, "jaxeff"], "qwix": theirs}


claim = functools.partial(h.Claim, source="no number", of=lost)
STUDY = h.Study(
    "vit_formats", __doc__,
    {
        "fast": Settings("digits", 1437, 360, epochs=30, seeds=2),
        "default": Settings(),
        "full": Settings(epochs=30, seeds=10, depth=8),
    },
    (h.Part(lambda run: range(run.settings.seeds), measure),),
    (
        claim("accuracy that int8 costs", "int8", h.at_most(0.005)),
        claim("accuracy that four bits by 32 cost", "int4", h.at_most(0.01)),
        claim("error of logits by 16 values of four bits, under that by 15", "error",
              h.below("fifteen")),
        claim("error of logits that AWQ leaves, under rounding's", "AWQ", h.below("error")),
        claim("error of logits that GPTQ leaves, under rounding's", "GPTQ", h.below("error")),
        claim("{format}: error of logits, under qwix's", "ours", h.below("qwix"), of=beside,
              shown="{ours:.3f} under {qwix:.3f}"),
    ),
    (
        h.Plot(
            "formats",
            h.Dots("format", "error", formats, error=True,
                   axes={"xlabel": "error of logits", "xscale": "log"}),
            h.Dots("format", "bytes", formats, axes={"xlabel": "bytes of parameters"}),
        ),
    ),
    (h.Listing("a vision transformer in few bits", ("part", "format", "engine", *COLUMNS), MEANS),),
    differences=(
        "numbers that qwix and llm-compressor publish are of models that aren't at hand; qwix was "
        "run on the same network instead",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
