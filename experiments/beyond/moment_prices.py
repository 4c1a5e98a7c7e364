"""What a pass of moments costs over the network itself, under XLA, TVM and on a Cortex-M7, and why.

    python -m experiments.beyond.moment_prices --networks ViT
    python -m experiments.beyond.moment_prices --networks DS-CNN ViT --engines Cortex-M7

The networks are those of `moment_variances`, untrained, for a price doesn't depend on what they
have learnt; noise is of 10 % of the deviation of each weight array, as a variance per weight.
Processor times are of a batch of ten on one thread, medians over rounds in which everything takes
turns, and each is over the network's own time under the same engine. On the Cortex-M7, which is
emulated, a price is of instructions, of one input in floats; what a pass holds in memory stands
beside it. "XLA, dots alone" leaves what is around products to XLA's own loops, by an option for
`jax.jit`: its library of kernels takes entries of the fused rules one operation after another.
There prices are over the network's time without the option. Passes are

- diagonal: `moments(f, method="diagonal")`;
- calibrated: the same with static factors of `calibrate_moments` (a regression on the input adds
  its own price, of 256 rows a result: 1.5 times the U-Net, whose results are pixels);
- calibrated, pooled: calibrated, with one variance per array, which takes a product less a layer;
- linear: `moments(f, method="linear")`, which a network of few results gets by default; it goes
  back through the network once for all results, so its price grows with their number.

Where it goes says the second table: a rule's time over that of its operation alone, at the widths
of these networks and 160 examples (of ten, calling takes longer than computing), with random
weights where an operation has some.

The targets are ours: 2.5 times the network's time calibrated, 3 + 2.5 k times with the linear
method for k results. The closest method in print (Calibrated Variance Propagation, arXiv
2606.16214) states 2.3 passes, and four draws are 4.0.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import jaxeff_export
from jaxeff_export import Bundle

import experiments.harness as h
from experiments.beyond.microcontroller.moments import counted, has_toolchain
from experiments.beyond.moment_variances.networks import TOKENS, WIDTH, spread, untrained
from experiments.beyond.moment_variances.recipe import NETWORKS, most_of_linear
from experiments.contests.tvm import host
from experiments.timing import Meter, measure_rounds, metered, ratio
from jaxeff.moment_propagation import Gaussian, calibrate_moments, moments

DIAGONAL, CALIBRATED, POOLED = "diagonal", "calibrated", "calibrated, pooled"
LINEAR, ALONE = "linear", "alone"
PRICED = ("ViT", "decoder LM", "DS-CNN", "U-Net", "ResNet-8", "ResNet-18")
CORE = "cortex-m7"
ENGINES = ("XLA", "XLA, dots alone", "TVM", "Cortex-M7")
DOTS_ALONE: Any = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""XLA's option by which its library of kernels computes products and nothing around them."""
ON_CORE = ("ViT", "decoder LM", "DS-CNN")  # small enough for a microcontroller
NOISE = 0.1
CHEAP = 2.5
"""Times a network's time that a calibrated pass may take."""
_BATCH, _EXAMPLES, _CHANNELS = 10, 160, 32


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        networks: Networks to price; six of the targets if empty.
        engines: What runs them; all if empty.
        rounds: Interleaved rounds.
        operations: Whether each rule is priced by itself.
    """

    networks: Annotated[tuple[str, ...], h.SELECTS] = ()
    engines: Annotated[tuple[str, ...], h.SELECTS] = ()
    rounds: Annotated[int, h.Least(2)] = 9
    operations: bool = True


def networks(run: h.Run[Settings]) -> list[tuple[str, str]]:
    """Every network under every engine."""
    os.environ["NPROC"] = "1"  # before JAX starts: processor time is then work and no waiting
    engines = h.choose(run.settings.engines, ENGINES, "engine")
    emulated = [engine for engine in engines if engine not in METERS]
    if emulated and not has_toolchain(CORE):
        run.say(f"{', '.join(emulated)} is left out: there is no compiler for {CORE} here.")
        engines = [engine for engine in engines if engine in METERS]
    return [
        (name, engine)
        for name in h.choose(run.settings.networks or PRICED, NETWORKS, "network")
        for engine in engines
        if engine in METERS or name in ON_CORE
    ]


def of_network(run: h.Run[Settings], task: tuple[str, str]) -> Iterable[h.Row]:
    """The price of each pass of one network under one engine."""
    name, engine = task
    emulated = engine not in METERS
    f, params, x = untrained(name, run.key, 2 if emulated else _BATCH)
    posterior = spread(params, NOISE)
    # What factors are worth doesn't change what they cost: few draws are enough here.
    factors = calibrate_moments(
        run.key, f, posterior, x[:2], samples=4, form="static", progress=False
    )
    pooled = jax.tree.map(lambda p: Gaussian(p, NOISE**2 * jnp.var(p)), params)
    diagonal = moments(f, method="diagonal")
    passes = {
        ALONE: (f, params), DIAGONAL: (diagonal, posterior), CALIBRATED: (diagonal, factors),
        POOLED: (diagonal, replace(factors, posterior=pooled)),
    }  # fmt: skip
    results = jax.eval_shape(f, params, x[:1]).size
    if emulated:
        for row in on_core(name, passes, x[:1]):
            yield row | {"results": results}
        return
    if moments(f).explain(posterior, x).method == LINEAR:
        passes[LINEAR] = moments(f, method="linear"), posterior
    meters = {method: METERS[engine](g, taken, x) for method, (g, taken) in passes.items()}
    if engine == "XLA, dots alone":  # the option may make the network itself slower
        meters[ALONE] = _under_xla(f, params, x)
    times = measure_rounds({method: meter for method, (meter, _) in meters.items()},
                           run.settings.rounds)  # fmt: skip
    for method in list(passes)[1:]:  # without the network alone
        yield {
            "table": "networks", "network": name, "engine": engine, "method": method,
            "cost": ratio(times[method], times[ALONE]), "error": meters[method][1],
            "results": results,
        }  # fmt: skip


def on_core(name: str, passes: Mapping[str, tuple[Any, Any]], x: jax.Array) -> Iterable[h.Row]:
    """The prices of passes of one network on the emulated core, the network itself among them."""
    counts = {method: counted(g, taken, x, CORE) for method, (g, taken) in passes.items()}
    base = counts.pop(ALONE)
    for method, count in counts.items():
        yield {
            "table": "networks", "network": name, "engine": "Cortex-M7", "method": method,
            "cost": count["instructions"] / base["instructions"],
            "memory": count["workspace"] / base["workspace"], "error": count["error"],
        }  # fmt: skip


def _under_xla(f: Callable[..., Any], *args: Any, options: Any = None) -> tuple[Meter, None]:
    call = partial(jax.jit(f, compiler_options=options), *args)
    return metered(call, time.process_time), None


def _under_tvm(f: Callable[..., Any], *args: Any) -> tuple[Meter, float]:
    """A meter of a bundle, and how far its results are from XLA's, relative to the largest."""
    bundle = jaxeff_export.deploy(f, args, target=host())
    return _on_processor(bundle), bundle.check().max_relative_error


METERS: Mapping[str, Callable[..., tuple[Meter, float | None]]] = {
    "XLA": _under_xla, "XLA, dots alone": partial(_under_xla, options=DOTS_ALONE),
    "TVM": _under_tvm,
}  # fmt: skip


def _on_processor(bundle: Bundle) -> Meter:
    """Times a bundle where it lies, as `Bundle.benchmark` does, but in processor time."""

    def meter(repeats: int) -> float:
        start = time.process_time()
        bundle.benchmark("local", number=repeats, repeat=1)
        # TVM's evaluator calls once more, before its own clock starts; ours counts that call.
        return (time.process_time() - start) / (repeats + 1)

    return meter


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v)


def _layer_norm(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def _rms_norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def _convolution(x: jax.Array, w: jax.Array, groups: int = 1) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


_TOKENS = (_EXAMPLES, TOKENS, WIDTH)
_HEADS = (_EXAMPLES, TOKENS, 4, WIDTH // 4)
_PICTURE = (_EXAMPLES, 14, 14, _CHANNELS)
ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "ReLU": jax.nn.relu, "GELU": partial(jax.nn.gelu, approximate=False),
    "GELU by tanh": jax.nn.gelu, "SiLU": jax.nn.silu, "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid, "softplus": jax.nn.softplus, "ELU": jax.nn.elu,
    "exponential": jnp.exp,
}  # fmt: skip
OPERATIONS: Mapping[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "dense": (jnp.matmul, (_TOKENS, (WIDTH, 2 * WIDTH))),
    "convolution": (_convolution, (_PICTURE, (3, 3, _CHANNELS, _CHANNELS))),
    "depthwise convolution": (
        partial(_convolution, groups=_CHANNELS), (_PICTURE, (3, 3, 1, _CHANNELS)),
    ),
    "addition": (jnp.add, (_TOKENS, _TOKENS)),
    "attention": (_attention, (_HEADS,) * 3),
    "softmax": (jax.nn.softmax, (_TOKENS,)),
    "layer norm": (_layer_norm, (_TOKENS,)),
    "RMS norm": (_rms_norm, (_TOKENS,)),
    "mean over tokens": (partial(jnp.mean, axis=1), (_TOKENS,)),
    **{name: (function, (_TOKENS,)) for name, function in ACTIVATIONS.items()},
}  # fmt: skip


def of_operation(run: h.Run[Settings], name: str) -> Iterable[h.Row]:
    """The price of one rule over its operation, under XLA."""
    f, shapes = OPERATIONS[name]
    keys = jax.random.split(run.key, len(shapes))
    means = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    random = [Gaussian(mean, NOISE**2 * (1 + mean**2)) for mean in means]
    calls = {ALONE: partial(jax.jit(f), *means), name: partial(jax.jit(moments(f)), *random)}
    times = measure_rounds(
        {one: metered(call, time.process_time) for one, call in calls.items()}, run.settings.rounds
    )
    yield {"table": "operations", "operation": name, "cost": ratio(times[name], times[ALONE])}


NETWORK, OPERATION = h.where(table="networks"), h.where(table="operations")
CLAIMS = (
    *(
        h.Claim(f"{{network}}, {{engine}}: price of {method} over the network's", "cost",
                h.at_most(CHEAP), None, h.where(table="networks", method=method), "default")
        for method in (CALIBRATED, POOLED)
    ),
    h.Claim("{network}, {engine}: price of linear for {results} results over the network's",
            "cost", lambda row, cost: cost <= most_of_linear(row["results"]), None,
            h.where(table="networks", method=LINEAR), "default"),
)  # fmt: skip
STUDY = h.Study(
    "moment_prices", __doc__,
    {
        "fast": Settings(networks=("U-Net",), rounds=2),
        "default": Settings(),
        "full": replace(Settings(), networks=NETWORKS, rounds=25),
    },
    (
        h.Part(networks, of_network),
        h.Part(lambda run: list(OPERATIONS), of_operation, lambda settings: settings.operations),
    ),
    CLAIMS,
    (
        h.Plot(
            "networks",
            h.Dots("{network}", "cost", NETWORK, hue="{method}", facet="{engine}",
                   guides=(CHEAP, most_of_linear(10)),
                   axes={"xscale": "log", "xlabel": "price over the network's"}),
            columns=3, size=(4.2, 3.0),
        ),
    ),
    (
        h.Listing("price over the network's",
                  ("network", "engine", "method", "cost", "memory", "error"), NETWORK),
        h.Listing("time of a rule over its operation's, XLA", ("operation", "cost"), OPERATION),
    ),
    differences=("Networks are untrained, and of the widths of `moment_variances`.",),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
