"""Methods beside MAPIE, torchmetrics, laplace-torch and Torch-Pruning, and beside plain JAX."""

import io
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
import optax
import scipy.special
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxeff
from experiments.beyond.peers import bundles, rows
from experiments.beyond.peers.__main__ import Settings
from jaxeff import bayes, compression, ensembles, pruning, reporting, training, uncertainty
from jaxeff.core import Shards, jax_internals
from jaxeff.nn import LeNet5, small_classifier

CLASSES = 100
SAMPLES = 2048
"""Examples that a Laplace approximation is fitted to."""


def again(settings: Settings) -> list[rows.Row]:
    """Counts what second calls with other data of the same shapes compile."""
    del settings
    f, params, (x, y) = small_classifier(32)
    events: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    run: dict[str, Any] = {"epochs": 1, "batch_size": 16}
    adam = {"optimizer": optax.adam(1e-2)}
    loss = training.cross_entropy(f)
    calls: dict[str, Callable[..., Any]] = {
        "fit": lambda key, data: training.fit(key, loss, params, data, **run, **adam).params,
        "svi": lambda key, data: bayes.svi(key, f, params, data, **run).posterior,
        "laplace": lambda key, data: bayes.laplace(key, f, params, data, "fc2").probs(data[0]),
        "calibrate": lambda key, data: (
            compression.calibrate(f, params, data[0], {"*": compression.Int(8)}).spec
        ),
    }
    first, other = (jax.random.key(0), (x, y)), (jax.random.key(1), (x[::-1] / 2, y[::-1]))
    measured_rows = []
    jax.monitoring.register_event_duration_secs_listener(listen)
    for name, call in calls.items():
        jax.block_until_ready(jax.tree.leaves(call(*first)))
        events.clear()
        jax.block_until_ready(jax.tree.leaves(call(*other)))
        measured_rows.append(rows.counted(f"second call of {name}", "programs", 0, len(events)))
    return measured_rows


def members(settings: Settings) -> list[rows.Row]:
    """Measures five LeNet-5 as an ensemble, over five nets one after the other."""
    count, batch = 5, 16 if settings.narrow else 64
    f, params = jaxeff.functional(LeNet5(10, rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (batch, 28, 28, 1))
    y = jnp.arange(batch) % 10
    g, together = ensembles.ensemble(jax.random.key(1), f, params, {"*": ensembles.Members(count)})
    apart = [g.member(together, i) for i in range(count)]

    def loss(p: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean()

    def summed(p: Any) -> Any:
        logits = g.apart(p, x)  # as `member_loss` does it
        of_all = jax.vmap(optax.softmax_cross_entropy_with_integer_labels, (0, None))(logits, y)
        return of_all.mean(1).sum()

    step, steps = jax.jit(jax.grad(summed)), jax.jit(jax.grad(loss))
    forward, forwards = jax.jit(g), jax.jit(f)
    same = jnp.stack([forwards(p, x) for p in apart])
    agrees = bool(jnp.allclose(forward(together, x), same, atol=1e-4))
    five = f"{count} LeNet-5 as an ensemble"
    pairs = {
        "step": (lambda: step(together), lambda: [steps(p) for p in apart]),
        "forward": (lambda: forward(together, x), lambda: [forwards(p, x) for p in apart]),
    }
    return [
        rows.beside(f"{five}, {name}", "five JAX nets", 1.05, calls, settings.rounds, agrees)
        for name, calls in pairs.items()
    ]


def predictions(settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Draws logits of 100 classes, and labels by them."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(settings.examples, CLASSES)).astype(np.float32)
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(1)


def conformal(settings: Settings) -> list[rows.Row]:
    """Measures calibration of conformal sets over MAPIE."""
    logits, labels = predictions(settings)
    methods = {"lac": uncertainty.LAC(), "aps": uncertainty.APS(), "raps": uncertainty.RAPS()}
    name, measured_rows = "MAPIE", []
    if without := rows.absent("conformal sets, LAC", name, 1):
        return without
    from mapie.classification import SplitConformalClassifier  # a peer
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """A classifier whose inputs are logits: both sides begin with these."""

        def __init__(self) -> None:
            self.classes_, self.n_features_in_ = np.arange(CLASSES), CLASSES

        def fit(self, x: Any, y: Any) -> Any:
            """Learns nothing."""
            return self

        def predict_proba(self, x: Any) -> Any:
            """Computes a softmax."""
            return scipy.special.softmax(x, axis=1)

        def predict(self, x: Any) -> Any:
            """Takes the most probable classes."""
            return x.argmax(1)

        def __sklearn_is_fitted__(self) -> bool:
            return True

    here = jnp.asarray(logits), jnp.asarray(labels)
    for short, method in methods.items():

        def ours(method: Any = method) -> Any:
            return uncertainty.conformalize(*here, method).threshold

        def theirs(short: str = short) -> Any:
            classifier = SplitConformalClassifier(
                Given(), conformity_score=short, prefit=True, random_state=0
            )
            return classifier.conformalize(logits, labels)

        calibration = uncertainty.conformalize(logits, labels, method)
        region = np.asarray(method.region(logits, calibration.threshold))
        inside = region[np.arange(len(labels)), labels].mean()
        what = f"conformal sets, {short.upper()}"
        agrees = bool(abs(inside - 0.9) < 0.03)
        measured_rows.append(rows.beside(what, name, 1, (ours, theirs), settings.rounds, agrees))
    return measured_rows


def calibration(settings: Settings) -> list[rows.Row]:
    """Measures the calibration error over torchmetrics."""
    what, peer = "calibration error", "torchmetrics"
    if without := rows.absent(what, peer, 1):
        return without
    import torch  # a peer's
    from torchmetrics.functional.classification import multiclass_calibration_error

    logits, labels = predictions(settings)
    probs = np.asarray(jax.nn.softmax(logits))
    there = torch.tensor(probs), torch.tensor(labels)
    here = jnp.asarray(probs), jnp.asarray(labels)

    def theirs() -> Any:
        return multiclass_calibration_error(*there, num_classes=CLASSES, n_bins=15)

    def ours() -> Any:
        return uncertainty.ece(*here)

    agrees = bool(abs(float(ours()) - float(theirs())) < 1e-4)
    return [rows.beside(what, peer, 1, (ours, theirs), settings.rounds, agrees)]


def laplace(settings: Settings) -> list[rows.Row]:
    """Measures fits of Laplace approximations of an MLP over laplace-torch."""
    peer, widths = "laplace-torch", (784, 128, 64, 10)
    if without := rows.absent("Laplace fit", peer, 1):
        return without
    import torch  # a peer's
    from laplace import Laplace

    count = min(SAMPLES, settings.examples)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, widths[0])).astype(np.float32)
    y = rng.integers(0, widths[-1], count)
    f, params = jaxeff.functional(jaxeff.nn.MLP(widths, rngs=nnx.Rngs(0)))
    modules: list[Any] = []
    for before, after in itertools.pairwise(widths):
        modules += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    net = torch.nn.Sequential(*modules[:-1])
    data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    loader = torch.utils.data.DataLoader(data, 1000)
    measured_rows = []
    forms = {
        "Kronecker": ("kron", "all", "kron"),
        "last layer": ("last_layer", "last_layer", "full"),
    }
    for name, (structure, weights, hessian) in forms.items():

        def ours(structure: str = structure) -> Any:
            fitted = bayes.laplace(
                jax.random.key(0), f, params, (x, y), "*", structure, prior_precision=1.0
            )
            return jax.tree.leaves(fitted)

        def theirs(weights: str = weights, hessian: str = hessian) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = Laplace(
                    net, "classification", subset_of_weights=weights, hessian_structure=hessian
                )
                fitted.fit(loader)

        measured_rows.append(
            rows.beside(f"Laplace fit, {name}", peer, 1, (ours, theirs), settings.rounds)
        )
    return measured_rows


def prune(settings: Settings) -> list[rows.Row]:
    """Measures the plan and the shrinking of ResNet-18 over Torch-Pruning, and what is left."""
    what, peer = "plan and shrink of ResNet-18", "Torch-Pruning"
    if without := rows.absent(what, peer, 1.5):
        return without
    import torch  # a peer's
    import torch_pruning

    f, params, x = bundles.resnet18(settings)
    size = settings.pixels

    def planned() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pruning.NothingPrunedWarning)
            return pruning.prune_plan(f, params, x, {"*": pruning.Prune(0.5)})

    def ours() -> Any:
        return jax.tree.leaves(planned().shrink(params))

    def theirs() -> Any:
        net = residual(torch, 8 if settings.narrow else 64)
        image = torch.zeros(1, 3, size, size)
        importance = torch_pruning.importance.MagnitudeImportance(p=1)
        torch_pruning.pruner.MagnitudePruner(
            net, image, importance, pruning_ratio=0.5, ignored_layers=[net.head]
        ).step()
        return net

    before = sum(leaf.size for leaf in jax.tree.leaves(params))
    agrees = sum(leaf.size for leaf in ours()) < before / 2
    planning = rows.beside(what, peer, 1.5, (ours, theirs), settings.rounds, agrees)
    plan = planned()
    narrow = pruning.pruned(f, plan), plan.shrink(params)
    return [planning, *_pruned(settings, *narrow, theirs(), x)]


def _pruned(settings: Settings, f: Any, params: Any, net: Any, x: np.ndarray) -> list[rows.Row]:
    """Measures a pruned network as a bundle over Torch-Pruning's in ONNX Runtime."""
    what, asked = "ResNet-18 with half of its channels", 0.95
    if without := rows.absent(what, bundles.PEER, asked):
        return without
    import torch  # a peer's

    turned, file = np.ascontiguousarray(x.transpose(0, 3, 1, 2)), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the exporter that needs no other
        torch.onnx.export(net, torch.tensor(turned), file, dynamo=False)
    session = bundles.session(file.getvalue(), turned)
    bundle = jaxeff_export.deploy(f, (params, x))
    # Of one size, so that both compute as much: parameters but for the shares that are rounded.
    count = sum(parameter.numel() for parameter in net.parameters())
    alike = abs(sum(leaf.size for leaf in jax.tree.leaves(params)) / count - 1) < 0.02
    calls, agrees = ((lambda: bundle.run(x)), session), alike and bool(bundle.check())
    return [rows.beside(what, bundles.PEER, asked, calls, settings.rounds, agrees)]


def residual(torch: Any, width: int) -> Any:
    """Makes a ResNet-18 in PyTorch, norms folded, as ours is."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        """Two convolutions and a shortcut."""

        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(before, after, 3, stride, 1)
            self.second = nn.Conv2d(after, after, 3, 1, 1)
            same = before == after and stride == 1
            self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride)

        def forward(self, x: Any) -> Any:
            y = self.second(torch.relu(self.first(x)))
            return torch.relu(y + self.shortcut(x))

    class Net(nn.Module):  # type: ignore[misc,name-defined]
        """The network."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, width, 7, 2, 3)
            self.pool = nn.MaxPool2d(3, 2, 1)
            widths = [width, width, 2 * width, 4 * width, 8 * width]
            blocks = []
            for i, (before, after) in enumerate(itertools.pairwise(widths)):
                blocks += [Block(before, after, 2 if i else 1), Block(after, after, 1)]
            self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(widths[-1], 1000)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(self.pool(torch.relu(self.stem(x)))).mean((2, 3)))

    return Net()


def quantized(settings: Settings) -> list[rows.Row]:
    """Counts equations of `quantized`, and measures its compilation, over the function's own."""
    depth, width = 4 if settings.narrow else 16, 64
    f, params = jaxeff.functional(jaxeff.nn.MLP((width,) * (depth + 1), rngs=nnx.Rngs(0)))
    x = jnp.ones((4, width))
    spec = compression.calibrate(f, params, x, {"*:linear": compression.Int(8, 8)}).spec
    g = compression.quantized(f, spec)

    def equations(function: Any) -> int:
        return _count(jax.make_jaxpr(function)(params, x).jaxpr)

    def compiled(function: Any) -> Callable[[], Any]:
        # A function of its own each time: nothing of it is kept.
        return lambda: jax.jit(lambda p, v: function(p, v)).lower(params, x).compile()

    ours, theirs = equations(g), equations(f)
    row: rows.Row = {"what": "equations of quantized", "peer": "the function", "unit": "ratio"}
    row |= {"asked": 4, "ours": ours, "theirs": theirs, "value": ours / theirs}
    what = f"compilation of quantized, {depth} layers"
    pair = compiled(g), compiled(f)
    timed = rows.beside(what, "the function", 3, pair, settings.rounds)
    return [row, timed]


def _count(jaxpr: Any) -> int:
    total = 0
    for equation in jax_internals.equations(jaxpr):
        inner = jax_internals.sub_jaxprs(equation)
        total += sum(map(_count, inner)) if inner else 1
    return total


def report(settings: Settings) -> list[rows.Row]:
    """Measures the report of a ResNet-8."""
    net = jaxeff.nn.ResNet8(10, rngs=nnx.Rngs(0))
    net.eval()
    f, params = jaxeff.functional(net)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(settings.images, 32, 32, 3)).astype(np.float32)
    y = rng.integers(0, 10, settings.images)
    since = time.process_time()
    sections = ("layers", "predictions", "channels") if settings.narrow else None
    reporting.report(jax.random.key(0), f, params, (x, y), sections=sections, progress=False)
    seconds = time.process_time() - since
    return [
        rows.counted(f"report of ResNet-8, {settings.images} images", "CPU seconds", 40, seconds)
    ]


def mesh(settings: Settings) -> list[rows.Row]:
    """Measures an epoch on two devices over steps on batches that are cut by hand."""
    batch, steps = (16, 2) if settings.narrow else (128, 8)
    f, params = jaxeff.functional(LeNet5(10, rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (batch * steps, 28, 28, 1))
    y, adam = jnp.arange(len(x)) % 10, optax.adam(1e-3)
    devices = Mesh(np.array(jax.devices()), ("data",))
    cut = NamedSharding(devices, PartitionSpec("data"))
    x, y = jax.device_put((x, y), cut)
    key = jax.random.key(0)
    shards = Shards.of(x)
    assert shards is not None
    epoch = jax.jit(training.make_epoch(training.cross_entropy(f), adam, batch, shards))
    start = shards.replicated(training.init(params, adam))
    order = shards.shuffled(jax.random.split(key)[0], len(x), batch)
    batches = [shards.take((x, y), at) for at in order]

    @jax.jit
    def step(p: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean()

        updates, state = adam.update(jax.grad(loss)(p), state, p)
        return optax.apply_updates(p, updates), state

    def theirs() -> Any:
        p, state = start.params, start.opt_state
        for images, labels in batches:
            # Devices that are ahead of each other by many steps may wait for one another forever.
            p, state = jax.block_until_ready(step(p, state, images, labels))
        return p

    def ours() -> Any:
        return jax.block_until_ready(epoch(start, key, (x, y))[0].params)

    near = jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-4), ours(), theirs())
    what, agrees = f"an epoch of {steps} steps on two devices", all(jax.tree.leaves(near))
    return [rows.beside(what, "jitted steps", 1.1, (ours, theirs), settings.rounds, bool(agrees))]


SUBJECTS = {
    "again": again, "members": members, "conformal": conformal, "calibration": calibration,
    "laplace": laplace, "pruning": prune, "quantized": quantized, "report": report,
    "mesh": mesh,
}  # fmt: skip
