"""How fast importing is, and how fast what it generates runs.

    python -m tests.conformance.speed

Four tables, each timed in one run in interleaved rounds:

- networks: forward and training passes, TVM beside XLA;
- operators: the imported dense layer, convolution and pooling beside the same operator written by
  hand in Relax, both through the same pipeline: an importer that handed TVM piles of loops instead
  of its operators would show here (max pooling keeps NaN, which Relax's own drops, and pays for it
  with a second comparison);
- loops: scans and while loops, TVM beside XLA;
- size: seconds of importing chains of up to 20,000 operations.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tvm
from flax import nnx
from jax import lax
from jaxeff_export.compiler import compile_module
from jaxeff_export.importer import import_stablehlo
from tvm import relax

import jaxeff
from experiments.harness import Least, Report, Row, Run, Study, Table
from experiments.timing import interleaved
from jaxeff.nn import MLP, LeNet5, ResNet18, TransformerEncoder

Program = tuple[Callable, tuple[Any, ...]]
SECONDS_RESNET = 10.0
SLOWER_THAN_XLA = 3.0
SLOWER_THAN_HAND = 1.1


@dataclass(frozen=True)
class Settings:
    """How often, and how long chains are.

    Attributes:
        rounds: Rounds of each timing.
        sizes: Operations of the chains.
    """

    rounds: Annotated[int, Least(1)] = 21
    sizes: tuple[Annotated[int, Least(4)], ...] = (1250, 5000, 20_000)


def run(run: Run[Settings]) -> list[Row]:
    """Measures the importer's speed and that of its code."""
    rounds = run.settings.rounds
    beside = {("network", n): partial(beside_xla, p, rounds) for n, p in networks().items()}
    beside |= {("loop", n): partial(beside_xla, p, rounds) for n, p in loops().items()}
    beside |= {("operator", n): partial(beside_hand, *o, rounds) for n, o in operators()}
    beside |= {("size", f"{n} operations"): partial(importing, n) for n in run.settings.sizes}
    return run.each([*beside], lambda at: [{"table": at[0], "name": at[1], **beside[at]()}])


def networks() -> dict[str, Program]:
    """The reference models, and a training step."""
    models = {
        "MLP, batch 10": (MLP((784, 100, 100, 10), rngs=nnx.Rngs(0)), (10, 784)),
        "LeNet-5, batch 10": (LeNet5(rngs=nnx.Rngs(0)), (10, 28, 28, 1)),
        "ResNet-18, batch 1": (ResNet18(rngs=nnx.Rngs(0)), (1, 32, 32, 3)),
        "transformer, batch 4": (TransformerEncoder(rngs=nnx.Rngs(0)), (4, 8, 8)),
    }
    programs: dict[str, Program] = {}
    for name, (model, shape) in models.items():
        model.eval()
        f, params = jaxeff.functional(model)
        programs[name] = (f, (params, _normal(*shape)))
    f, (params, x) = programs["LeNet-5, batch 10"]
    programs["LeNet-5, gradient"] = (
        lambda p, x: jax.grad(lambda p: jnp.sum(f(p, x) ** 2))(p),
        (params, x),
    )
    return programs


def loops() -> dict[str, Program]:
    """Loops of known and unknown length."""

    def lstm(xs, w, u):
        def cell(state, x):
            h, c = state
            i, f, g, o = jnp.split(x @ w + h @ u, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), c

        return lax.scan(cell, (jnp.zeros((8, 64)),) * 2, xs)

    def training(w, xs, ys):
        def step(w, batch):
            x, y = batch
            loss, g = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
            return w - 0.1 * g, loss

        return lax.scan(step, w, (xs, ys))

    def metropolis(key, x):
        def step(x, key):
            a, b = jax.random.split(key)
            proposal = x + 0.5 * jax.random.normal(a, x.shape)
            accept = jnp.log(jax.random.uniform(b)) < 0.5 * (x @ x - proposal @ proposal)
            x = jnp.where(accept, proposal, x)
            return x, x

        return lax.scan(step, x, jax.random.split(jax.random.wrap_key_data(key), 500))

    def scattered(x, n):
        return lax.fori_loop(0, n, lambda i, a: a.at[i].set(a[i - 1] * 0.5 + i), x)

    def newton(x):
        def better(s):
            return jnp.any(jnp.abs(s * s - x) > 1e-4 * x)

        return lax.while_loop(better, lambda s: 0.5 * (s + x / s), x)

    def million(x, n):
        return lax.fori_loop(0, n, lambda i, s: s * 0.999 + x, x)

    return {
        "LSTM, 100 steps": (lstm, (_normal(100, 8, 32), _normal(32, 256), _normal(64, 256))),
        "gradient of the LSTM": (
            lambda xs, w, u: jax.grad(lambda u: jnp.sum(lstm(xs, w, u)[1]))(u),
            (_normal(100, 8, 32), _normal(32, 256), _normal(64, 256)),
        ),
        "training, 200 steps": (
            training,
            (_normal(64, 10), _normal(200, 32, 64), _normal(200, 32, 10)),
        ),
        "Metropolis, 500 steps": (metropolis, (np.array([0, 1], np.uint32), _normal(10))),
        "scatter, 5,000 steps": (scattered, (_normal(5000), np.int32(5000))),
        "Newton, while": (newton, (np.abs(_normal(1000)) + 1,)),
        "a million steps": (million, (_normal(8), np.int32(1_000_000))),
    }


def operators() -> list[tuple[str, tuple[Program, Callable]]]:
    """Operators with a counterpart in Relax: (name, (the JAX program, the Relax operator))."""
    nhwc = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    numbers = ("NHWC", "HWIO", "NHWC")

    def convolution(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    return [
        ("dense", ((jnp.matmul, (_normal(64, 784), _normal(784, 100))), relax.op.matmul)),
        (
            "convolution",
            (
                (convolution, (_normal(8, 16, 16, 32), _normal(3, 3, 32, 64))),
                lambda x, w: relax.op.nn.conv2d(x, w, padding=(1, 1), **nhwc),
            ),
        ),
        (
            "max pooling",
            (
                (pool, (_normal(8, 32, 32, 16),)),
                lambda x: relax.op.nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"),
            ),
        ),
    ]


def beside_xla(program: Program, rounds: int) -> dict[str, Any]:
    """Import, compile and time a program against XLA's code of it."""
    f, arguments = program
    exported = jax.export.export(jax.jit(f, keep_unused=True))(*arguments)
    start = time.perf_counter()
    module = import_stablehlo(exported)
    imported = time.perf_counter()
    ours = _callable(module, arguments)
    compiled = time.perf_counter()
    on_device = jax.device_put(arguments)
    theirs = jax.jit(f).lower(*on_device).compile()
    times = interleaved({"xla": lambda: theirs(*on_device), "tvm": ours}, rounds, 0.02, "xla")
    return {
        "import_s": imported - start,
        "compile_s": compiled - imported,
        **_columns(times, "xla", "tvm"),
    }


def beside_hand(program: Program, operator: Callable, rounds: int) -> dict[str, Any]:
    """Time an imported operator against the same one written in Relax."""
    f, arguments = program
    imported = import_stablehlo(jax.export.export(jax.jit(f))(*arguments))
    builder = relax.BlockBuilder()
    parameters = [
        relax.Var(f"x{i}", relax.TensorType(a.shape, "float32")) for i, a in enumerate(arguments)
    ]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(operator(*parameters)))
        builder.emit_func_output(result)
    calls = {
        "hand": _callable(builder.get(), arguments),
        "imported": _callable(imported, arguments),
    }
    return _columns(interleaved(calls, rounds, 0.02, "hand"), "hand", "imported")


def importing(count: int) -> dict[str, Any]:
    """Time importing a chain of about ``count`` operations."""

    def chain(x, w):
        for _ in range(count // 4):
            x = jnp.tanh(x @ w) + x * 0.5
        return x

    text = jax.jit(chain).lower(np.ones((4, 8), np.float32), np.ones((8, 8), np.float32)).as_text()
    start = time.perf_counter()
    import_stablehlo(text)
    seconds = time.perf_counter() - start
    return {"import_s": seconds, "ms_per_operation": 1e3 * seconds / count}


def judge(report: Report) -> None:
    """Holds times to the targets."""
    rows = {row["name"]: row for row in report.rows}
    resnet = rows["ResNet-18, batch 1"]
    seconds = resnet["import_s"] + resnet["compile_s"]
    report.check("ResNet-18 imported and built in 10 s", None, seconds, seconds < SECONDS_RESNET)
    slowest = max((r for r in report.rows if r["table"] == "loop"), key=lambda row: row["ratio"])
    limits = {row["name"]: SLOWER_THAN_HAND for row in report.rows if row["table"] == "operator"}
    limits[slowest["name"]] = SLOWER_THAN_XLA
    for name, limit in limits.items():
        ratio = rows[name]["ratio"]
        report.check(f"{name}: at most {limit} times", None, ratio, ratio <= limit)
    sizes = [row["ms_per_operation"] for row in report.rows if row["table"] == "size"]
    growth = sizes[-1] / sizes[0]
    report.check(
        "time per operation of the longest chain to the shortest's", None, growth, growth < 2
    )


def _callable(module: tvm.IRModule, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    main_function = relax.VirtualMachine(compile_module(module), tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(np.array(leaf)) for leaf in jax.tree.leaves(arguments)]
    return lambda: main_function(*tensors)


def _columns(times: Mapping[str, Mapping[str, float]], base: str, ours: str) -> dict[str, float]:
    return {
        f"{base}_ms": times[base]["ms"],
        f"{ours}_ms": times[ours]["ms"],
        "ratio": times[ours]["ratio"],
    }


def _normal(*shape: int) -> np.ndarray:
    return (0.1 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)


def tables(report: Report) -> list[Table]:
    """Networks, loops, operators, sizes."""
    names = dict.fromkeys(row["table"] for row in report.rows)
    return [Table.from_rows(name, [r for r in report.rows if r["table"] == name]) for name in names]


STUDY = Study(
    "importer-speed", __doc__,
    {"fast": Settings(5, (250, 1000, 4000)), "default": Settings(), "full": Settings(101)},
    (run,), (judge,), (), (tables,),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
