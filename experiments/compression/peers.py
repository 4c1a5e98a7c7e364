"""Learned steps and fixed grids beside Brevitas (PyTorch) and qwix (JAX), from the same weights.

    pip install torch brevitas qwix
    python -m experiments.compression.peers

1. Brevitas: LeNet-5 trained on in few bits, by the same recipe from the same float network:
   accuracy of both over seeds;
2. qwix: accuracy of LeNet-5 in 8 bits, and with dense weights in 4, without training, and the time
   of a quantization-aware training step over ours, rounds interleaved.

A package that isn't there is said, and left out.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxeff
from experiments import harness as h
from experiments.classifiers import accuracy, how_to_train
from experiments.harness import Count, Least, Report, Row, Run
from experiments.recipes import Training
from experiments.timing import interleaved
from experiments.trainable import Images, load_images
from jaxeff.compression import LSQ, Binary, Int, LayerQuantization, init, learned, quantized
from jaxeff.nn import LeNet5
from jaxeff.training import cross_entropy, fit

METHODS = ("lsq 4", "lsq 2", "fixed 4", "binary weights")
BOTH = 8
"""Bits of weights and activations of all layers. In fewer, those of dense weights alone: qwix'
convolutions take two of a kind, and XLA multiplies no int4 on a processor."""
LIMIT = 1.0
"""Time of our step over qwix'."""


@dataclass(frozen=True)
class Settings(Training):
    """What is compared."""

    data: str = "fashion-mnist"  # the data set
    images: Count = 20_000  # training images
    test_images: Count = 10_000  # test images
    epochs: Count = 4  # passes of float training
    retrain: Count = 2  # passes in few bits
    seeds: Annotated[int, Least(2)] = 3  # trainings of each method
    retrain_rate: float = 1e-3  # the same in few bits, and a tenth for steps
    rounds: Count = 15  # rounds of the timing


def run(run: Run[Settings]) -> list[Row]:
    """Every comparison whose package is there."""
    settings = run.settings
    images = load_images(settings.data, settings.images, settings.test_images)
    rows: list[Row] = []
    floats: dict[int, Any] = {}

    def float_network(seed: int) -> Any:
        if seed not in floats:
            floats[seed] = _train_float(run, images, seed)
        return floats[seed]

    if _missing(run, "brevitas", "torch"):
        rows.append({"peer": "brevitas", "message": "not installed"})
    else:
        tasks = [("brevitas", m, s) for m in METHODS for s in range(settings.seeds)]
        rows += run.each(tasks, lambda t: [_against_brevitas(run, images, t, float_network(t[2]))])
    if _missing(run, "qwix"):
        rows.append({"peer": "qwix", "message": "not installed"})
    else:
        pairs = [("qwix", bits, s) for bits in (8, 4) for s in range(settings.seeds)]
        rows += run.each(pairs, lambda t: [_against_qwix(images, t[1], t[2], float_network(t[2]))])
        steps = [("qwix step", bits) for bits in (8, 4)]
        rows += run.each(steps, lambda t: [_steps(run, images, t[1], float_network(0))])
    return rows


def _missing(run: Run[Settings], *packages: str) -> bool:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        run.say(f"not installed, so left out: pip install {' '.join(missing)}")
    return bool(missing)


def _model(shape: tuple[int, int, int], rngs: nnx.Rngs) -> LeNet5:
    return LeNet5(10, shape[2], size=shape[0], rngs=rngs)


def _train_float(run: Run[Settings], images: Images, seed: int) -> tuple[Any, Any]:
    settings = run.settings
    key = jax.random.fold_in(run.fast_key, seed)
    f, params = jaxeff.functional(_model(images.shape, nnx.Rngs(jax.random.fold_in(key, 0))))
    result = fit(
        jax.random.fold_in(key, 1), cross_entropy(f), params, images.train,
        **how_to_train(settings.rate, images.train, settings.epochs, settings.batch_size),
        checkpoint=run.work / f"float-{seed}.safetensors",
    )  # fmt: skip
    return f, result.params


def _spec(method: str) -> dict[str, Any]:
    """Our setting of a method: the grids that Brevitas has, symmetric and a range per tensor."""
    name, _, bits = method.rpartition(" ")
    if name == "binary":
        return {"*:linear": LayerQuantization(Binary(per="tensor"))}
    if name == "lsq":
        return {"*:linear": LSQ(int(bits), initial="error")}
    return {"*:linear": Int(int(bits), symmetric="weights", per="tensor")}


def _against_brevitas(
    run: Run[Settings], images: Images, task: tuple[str, str, int], model: tuple[Any, Any]
) -> Row:
    """Accuracy after the same training, there and here."""
    from experiments.compression import brevitas_lenet

    settings, (_, method, seed), (f, params) = run.settings, task, model
    spec = init(f, params, jnp.asarray(images.train[0][:512]), _spec(method))
    how, slow = (
        how_to_train(rate, images.train, settings.retrain, settings.batch_size)
        for rate in (settings.retrain_rate, settings.retrain_rate / 10)
    )
    optimizers = {"params": how["optimizer"], "spec": slow["optimizer"]}
    result = fit(
        jax.random.fold_in(run.fast_key, 100 + seed), cross_entropy(learned(f)), (params, spec),
        images.train, **how | {"optimizer": optax.partition(optimizers, ("params", "spec"))},
    )  # fmt: skip
    params_after, spec = result.params
    ours = accuracy(quantized(f, spec), (params_after,), images)
    theirs = brevitas_lenet.train(
        method, jax.device_get(params), images, seed, settings.retrain, settings.batch_size,
        settings.retrain_rate,
    )  # fmt: skip
    return {
        "peer": "brevitas", "method": method, "seed": seed,
        "float": accuracy(f, (params,), images), "ours": ours, "theirs": theirs,
    }  # fmt: skip


def _theirs(model: tuple[Any, Any], images: Images, bits: int, train: bool) -> Any:
    """Qwix' quantized model, with the given parameters."""
    import qwix

    rule: dict[str, Any] = {"module_path": ".*", "weight_qtype": f"int{bits}"}
    rule |= {"act_qtype": "int8"} if bits == BOTH else {"module_path": "fc.*"}
    rules = [qwix.QtRule(**rule) if train else qwix.QuantizationRule(**rule)]
    provider = qwix.QtProvider(rules) if train else qwix.PtqProvider(rules)
    plain = _model(images.shape, nnx.Rngs(0))
    state = nnx.state(plain, nnx.Param)
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, model[1]))
    nnx.update(plain, state)
    return qwix.quantize_model(plain, provider, jnp.zeros((1, *images.shape)))


def _same(bits: int) -> dict[str, Int]:
    """Our setting of what qwix does."""
    both = bits == BOTH
    return {"*:linear" if both else "fc*": Int(bits, symmetric=True, activations=both)}


def _against_qwix(images: Images, bits: int, seed: int, model: tuple[Any, Any]) -> Row:
    """Accuracy without training; both have symmetric grids, activations a range per image."""
    f, params = model
    graph, state = nnx.split(_theirs(model, images, bits, train=False))

    def theirs(state: Any, x: jax.Array) -> jax.Array:
        logits: jax.Array = nnx.merge(graph, state)(x)
        return logits

    return {
        "peer": "qwix", "method": f"int{bits}", "seed": seed,
        "float": accuracy(f, (params,), images),
        "ours": accuracy(quantized(f, _same(bits)), (params,), images),
        "theirs": accuracy(theirs, (state,), images),
    }  # fmt: skip


def _steps(run: Run[Settings], images: Images, bits: int, model: tuple[Any, Any]) -> Row:
    """Times a step of gradient descent."""
    f, params = model
    x = jnp.asarray(images.train[0][: run.settings.batch_size])
    y = jnp.asarray(images.train[1][: run.settings.batch_size])
    graph, *states = nnx.split(_theirs(model, images, bits, train=True), nnx.Param, nnx.Variable)
    state, rest = states

    def theirs(state: Any, x: jax.Array) -> jax.Array:
        logits: jax.Array = nnx.merge(graph, state, rest)(x)
        return logits

    g = quantized(f, _same(bits))
    calls = {"ours": _step(g, params, x, y), "theirs": _step(theirs, state, x, y)}
    times = interleaved(calls, run.settings.rounds, relative_to="theirs")
    return {
        "peer": "qwix step", "method": f"int{bits}", "ratio": times["ours"]["ratio"],
        **{f"{name}_ms": found["ms"] for name, found in times.items()},
    }  # fmt: skip


def _step(f: Callable[..., Any], params: Any, x: jax.Array, y: jax.Array) -> Callable[[], Any]:
    optimizer = optax.adam(1e-3)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    return lambda: step(params, state)


def _compared(report: Report) -> list[Row]:
    """Selects means over seeds, and the error of their difference."""
    rows = [r | {"ours less theirs": r["ours"] - r["theirs"]} for r in report.rows if "ours" in r]
    columns = ("float", "ours", "theirs", "ours less theirs")
    return h.averaged(rows, ("peer", "method"), columns)


def _least(row: Row) -> float:
    return -(row["ours less theirs error"] or 0)


STEPS = h.having("ratio")
CLAIMS = (
    h.Claim(
        "{peer}, {method}: accuracy, ours less theirs", "ours less theirs", h.at_least(_least),
        "> {bound:.4f}", _compared, "default",
    ),
    h.Claim("a step of {method}, ours over qwix'", "ratio", h.at_most(LIMIT), LIMIT, STEPS,
            "default"),
)  # fmt: skip
SIDE_BY_SIDE = h.Dots(
    "{method}, {peer}", {"ours": "ours", "theirs": "theirs", "float": "float32"}, _compared,
    axes={"xlabel": "accuracy"},
)  # fmt: skip
STUDY = h.Study(
    "compression.peers", __doc__,
    {
        "fast": Settings("digits", 1437, 360, 8, 2, 2, batch_size=32, rounds=5),
        "default": Settings(),
        "full": Settings(images=60_000, epochs=20, retrain=10, seeds=5, rounds=50),
    },
    (run,), CLAIMS, (h.Plot("peers", SIDE_BY_SIDE, size=(6, 3.4)),),
    (h.Listing("accuracy", of=_compared), h.Listing("a training step", of=STEPS)),
    differences=(
        "batches are drawn by each framework, so trainings differ as two seeds do",
        "Brevitas starts the steps of activations from statistics that it collects over its first "
        "batches, ours at the least squared error on 512 images",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
