"""What is waited for at a network: a function per transform and per call of the host."""

import functools
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.errors import FlaxError

import jaxeff
from experiments.beyond.zoo import models as zoo
from experiments.harness import Row
from experiments.timing import interleaved, processor_seconds
from jaxeff import Additive, Crossbar, Gaussian, Int, LoRA
from jaxeff.adapters import init_lora
from jaxeff.compression import calibrate, ptq
from jaxeff.contrib import Decoder, DecoderConfig, smollm2_135m
from jaxeff.core import jax_internals
from jaxeff.ensembles import Members
from jaxeff.moment_propagation import calibrate_moments
from jaxeff.nn import ResNet8, TransformerEncoder
from jaxeff.pruning import Prune

LINEAR = "*:linear"
KEY = 0
SPREAD = 0.05
"""Standard deviation of random parameters, relative to each."""
_TILE = Crossbar(
    rows=64, columns=64, input_bits=12, weight_bits=11, output_bits=24, gain=0.03, signed=True
)


@dataclass(frozen=True)
class Subject:
    """A network.

    Attributes:
        f: It as a pure function `f(params, *args)`.
        params: Its parameters, or their shapes.
        args: A batch, or its shapes.
        last: Pattern of the parameters of its last layer.
        model: The Flax model, for others' tools; None where there are only shapes.
    """

    f: Callable[..., Any]
    params: Any
    args: tuple[Any, ...]
    last: str
    model: Any = None

    @property
    def is_abstract(self) -> bool:
        """Whether there are shapes in the place of parameters."""
        return self.model is None


def _vit() -> Subject:
    model = TransformerEncoder(10, 24, 16, width=64, heads=4, hidden=128, depth=8, rngs=nnx.Rngs(0))
    return _of_model(model, (4, 16, 24), "fc")


def _resnet8() -> Subject:
    return _of_model(ResNet8(rngs=nnx.Rngs(0)), (4, 32, 32, 3), "fc")


def _of_model(model: nnx.Module, shape: tuple[int, ...], last: str) -> Subject:
    model.eval()
    f, params = jaxeff.functional(model)
    return Subject(f, params, (jax.random.normal(jax.random.key(1), shape),), last, model)


def _resnet50() -> Subject:
    network = zoo.subject("resnet50-real")
    return Subject(network.f, network.params, network.args, network.last, model=network)


def _decoder(config: DecoderConfig) -> Subject:
    model = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    f, params = jaxeff.functional(model)
    return Subject(f, params, (jax.ShapeDtypeStruct((1, 16), jnp.int32),), "norm")


_LARGE = DecoderConfig(
    vocabulary=128256, width=2048, hidden=8192, depth=16, heads=32, key_heads=8,
    rotary_base=500_000.0,
)  # fmt: skip
NETS: dict[str, Callable[[], Subject]] = {
    "vit": _vit, "resnet8": _resnet8, "resnet50": _resnet50,
    "decoder": lambda: _decoder(smollm2_135m()), "decoder-1b": lambda: _decoder(_LARGE),
}  # fmt: skip
"""A transformer of eight small blocks; ResNets, the larger at 224 pixels; decoders of 135 M and of
1.2 G parameters, of which there are only shapes."""

Function = tuple[Callable[..., Any], tuple[Any, ...]]


def _of_shapes(s: Subject, make: Callable[..., Any], *args: Any) -> Any:
    """Makes arrays, or their shapes where the network has only these."""
    return jax.eval_shape(make, *args) if s.is_abstract else make(*args)


def _plain(s: Subject) -> Function:
    return s.f, (s.params, *s.args)


def _key(s: Subject) -> Any:
    return _of_shapes(s, lambda: jax.random.key(KEY))


def _noisy(s: Subject) -> Function:
    return jaxeff.noisy(s.f, {LINEAR: Additive(0.1)}), (_key(s), s.params, *s.args)


def _quantized(s: Subject) -> Function:
    return jaxeff.quantized(s.f, {LINEAR: Int(8)}), (s.params, *s.args)


def _slope(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda params, *args: jnp.sum(jax.tree.leaves(f(params, *args))[0] ** 2))


def _trained(s: Subject) -> Function:
    return _slope(_quantized(s)[0]), (s.params, *s.args)


def _integer(s: Subject) -> Function:
    if s.is_abstract:
        # The ranges of activations are numbers that only data have.
        g = jaxeff.integer(s.f, {LINEAR: Int(8)}, dynamic=True)
        return g, (g.convert(s.params, *s.args), *s.args)
    g = jaxeff.integer(s.f, calibrate(s.f, s.params, [s.args], {LINEAR: Int(8)}).spec)
    return g, (g.convert(s.params, *s.args), *s.args)


def posterior(s: Subject) -> Any:
    """A normal distribution around every parameter."""

    def around(params: Any) -> Any:
        return jax.tree.map(lambda w: Gaussian(w, (SPREAD * w) ** 2), params)

    return _of_shapes(s, around, s.params)


def _moments(**settings: Any) -> Callable[[Subject], Function]:
    return lambda s: (jaxeff.moments(s.f, **settings), (posterior(s), *s.args))


def _ensemble(s: Subject) -> Function:
    g: list[Any] = []

    def make(key: Any, params: Any) -> Any:
        of_members, members = jaxeff.ensemble(key, s.f, params, {s.last: Members(3)})
        g.append(of_members)
        return members

    members = _of_shapes(s, make, _key(s), s.params)
    return g[0], (members, *s.args)


def _lora(s: Subject) -> Function:
    spec = {LINEAR: LoRA(4)}
    adapters = _of_shapes(
        s, lambda key, params, *args: init_lora(key, s.f, params, args, spec),
        _key(s), s.params, *s.args,
    )  # fmt: skip
    return jaxeff.lora(s.f, spec), (s.params, adapters, *s.args)


def _analog(s: Subject) -> Function:
    return jaxeff.analog(s.f, {LINEAR: _TILE}), (_key(s), s.params, *s.args)


FUNCTIONS: dict[str, Callable[[Subject], Function]] = {
    "noisy": _noisy, "quantized": _quantized, "trained": _trained, "integer": _integer,
    "diagonal": _moments(method="diagonal"), "moments": _moments(),
    "linear": _moments(method="linear"), "ensemble": _ensemble, "lora": _lora, "analog": _analog,
}  # fmt: skip
"""Transforms. "trained" is the gradient of "quantized", over the gradient of f."""


def function(s: Subject, name: str, rounds: int) -> Row:
    """Traces, compiles and runs a transformed function, and f itself.

    Args:
        s: The network.
        name: In `FUNCTIONS`.
        rounds: How often each is traced and compiled, the least of which counts, and run.
    """
    plain: Function = _plain(s)
    if name == "trained":
        plain = _slope(plain[0]), plain[1]
    both = {"own": plain, "ours": FUNCTIONS[name](s)}
    seconds: dict[str, dict[str, list[float]]] = {of: {"trace": [], "compile": []} for of in both}
    equations, calls = {}, {}
    for g, args in both.values():
        jax.jit(g).trace(*args)  # modules that the first call imports are waited for once
    for _ in range(rounds):
        for of, (g, args) in both.items():
            jax.clear_caches()
            with processor_seconds(seconds[of]["trace"]):
                traced = jax.jit(g).trace(*args)
            equations[of] = _count(traced.jaxpr.jaxpr, set())
            with processor_seconds(seconds[of]["compile"]):
                compiled = traced.lower().compile()
            calls[of] = lambda compiled=compiled, args=args: compiled(*args)
    row: Row = {"equations": equations["ours"]}
    ratios: Row = {"equations": equations["ours"] / equations["own"]}
    for what in ("trace", "compile"):
        row[what] = min(seconds["ours"][what])
        ratios[what] = row[what] / min(seconds["own"][what])
    if not s.is_abstract:
        times = interleaved(calls, 2 * rounds + 1, 0.05, "own", time.process_time)["ours"]
        row["run"], ratios["run"] = times["ms"] / 1e3, times["ratio"]
    return row | {f"{what}_ratio": ratio for what, ratio in ratios.items()}


def _count(jaxpr: Any, seen: set[int]) -> int:
    """Counts the equations of a jaxpr; what several calls have in common counts once."""
    if id(jaxpr) in seen:
        return 0
    seen.add(id(jaxpr))
    inside = (sub.jaxpr for eqn in jaxpr.eqns for sub in jax_internals.sub_jaxprs(eqn))
    return len(jaxpr.eqns) + sum(_count(sub, seen) for sub in inside)


def _convert(s: Subject) -> Callable[[], Any]:
    g = jaxeff.integer(s.f, calibrate(s.f, s.params, [s.args], {LINEAR: Int(8)}).spec)
    return lambda: g.convert(s.params, *s.args)


def _with_qwix(s: Subject) -> Callable[[], Any]:
    import qwix

    rule = qwix.QuantizationRule(weight_qtype="int8", act_qtype="int8", act_static_scale=True)
    provider = qwix.PtqProvider([rule])

    def quantize() -> Any:
        try:
            return nnx.jit(qwix.quantize_model(s.model, provider, *s.args))(*s.args)
        except (FlaxError, AssertionError, AttributeError, KeyError) as error:
            # What it says is of its own making: the row tells that qwix can't, and not we.
            raise NotImplementedError(f"qwix {version('qwix')}: {error!r}") from error

    return quantize


def _with_torch_pruning(s: Subject) -> Callable[[], Any]:
    import torch
    import torch_pruning as tp
    import torchvision

    model = torchvision.models.resnet50().eval()
    example = torch.zeros(1, 3, 224, 224)

    def prune() -> Any:
        importance = tp.importance.MagnitudeImportance(p=1)
        return tp.pruner.MagnitudePruner(
            model, example, importance, pruning_ratio=0.5, ignored_layers=[model.fc]
        )

    return prune


def _bytes(s: Subject) -> Callable[[], Any]:
    g = jaxeff.integer(s.f, {LINEAR: Int(8)}, dynamic=True)
    return lambda: sum(leaf.size for leaf in jax.tree.leaves(g.convert(s.params, *s.args)))


CALLS: dict[str, Callable[[Subject], Callable[[], Any]]] = {
    "calibrate": lambda s: lambda: calibrate(s.f, s.params, [s.args], {LINEAR: Int(8)}),
    "convert": _convert,
    "ptq": lambda s: lambda: ptq(s.f, s.params, [s.args]),
    "moments_check": lambda s: functools.partial(
        jaxeff.moments_check, _key(s), s.f, posterior(s), s.args[0]
    ),
    "calibrate_moments": lambda s: functools.partial(
        calibrate_moments, _key(s), s.f, posterior(s), *s.args
    ),
    "summary": lambda s: lambda: str(jaxeff.summary(s.f, s.params, *s.args)),
    "bytes": _bytes,
    "prune_plan": lambda s: lambda: jaxeff.prune_plan(s.f, s.params, s.args, {LINEAR: Prune(0.5)}),
    "qwix": _with_qwix,
    "torch_pruning": _with_torch_pruning,
}
"""What a user calls once, and waits for. Each makes a function of nothing."""
PACKAGES = {"qwix": ("qwix",), "torch_pruning": ("torch_pruning", "torchvision")}


def call(s: Subject, name: str) -> Row:
    """Times a call, the first of a process, and another one after it.

    Args:
        s: The network.
        name: In `CALLS`.
    """
    absent = [p for p in PACKAGES.get(name, ()) if importlib.util.find_spec(p) is None]
    if absent:
        return {"absent": ", ".join(absent)}
    run: Callable[[], Any] = CALLS[name](s)
    times: list[float] = []
    for _ in range(2):
        with processor_seconds(times):
            result = run()
            jax.block_until_ready(
                [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
            )
    return {"seconds": times[0], "again": times[1]}
