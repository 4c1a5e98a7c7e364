"""Bundles beside ONNX Runtime: their start, making and size, and single layers."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
from flax import nnx
from jax import lax

import jaxeff
from experiments.beyond.peers import rows
from experiments.beyond.peers.__main__ import Settings
from experiments.beyond.zoo.models import mobiles, networks
from jaxeff import compression

PEER = "ONNX Runtime"
CHILD = """
import sys, time
sys.modules["torch"] = None
import numpy as np
x = np.load(sys.argv[2])
{load}
used = time.process_time()
# Not getrusage: what it says of a process that was forked begins with its parent's memory.
print(used, open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""
LOADS = {
    "load": "import jaxeff_export; jaxeff_export.load(sys.argv[1]).run(x)",
    "Bundle.load": "from jaxeff_export import Bundle; Bundle.load(sys.argv[1]).run(x)",
    PEER: "import onnxruntime as o; s = o.InferenceSession(sys.argv[1]); "
    "s.run(None, {s.get_inputs()[0].name: x})",
}
"""How a new process computes its first result."""
TIMED = """
import sys, time
sys.modules["torch"] = None
import numpy as np, jaxeff_export
x, bundle = np.load(sys.argv[2]), jaxeff_export.load(sys.argv[1])
bundle.run(x)
for line in sys.stdin:
    since = time.perf_counter()
    for _ in range(int(line)):
        bundle.run(x)
    print((time.perf_counter() - since) / int(line), flush=True)
"""
"""How a process that stays tells the seconds of a call, of as many calls as it is asked for."""
SHORT = 5.0
"""Milliseconds of a call from which on two threads are asked to be 1.7 times as fast as one."""
SETTLED = 1e-3
"""Error of a sum in another order, of the largest value."""


def functional(net: nnx.Module, *shape: int) -> tuple[Callable[..., Any], Any, np.ndarray]:
    """Makes a function of a network, its norms folded, its parameters and an input."""
    net.eval()
    f, params = jaxeff.functional(net)
    x = np.asarray(jax.random.normal(jax.random.key(1), shape))
    return *compression.fold_batch_norm(f, params, x)[:2], x


def mobilenet(settings: Settings) -> tuple[Callable[..., Any], Any, np.ndarray]:
    """Makes MobileNetV2, or two stages of it."""
    if settings.narrow:
        net: Any = mobiles.Mobile(nnx.Rngs(0), squeeze=False)
    else:
        net = networks.REAL["mobilenetv2-real"](nnx.Rngs(0))
    return functional(net, 1, settings.pixels, settings.pixels, 3)


def resnet18(settings: Settings) -> tuple[Callable[..., Any], Any, np.ndarray]:
    """Makes ResNet-18 of ImageNet, or a narrow one."""
    make: Any = networks.ResNet if settings.narrow else networks.REAL["resnet18-real"]
    net = make(nnx.Rngs(0))
    return functional(net, 1, settings.pixels, settings.pixels, 3)


def in_codes(f: Callable[..., Any], params: Any, x: np.ndarray) -> tuple[Any, Any]:
    """Makes the function in codes of eight bits."""
    spec = compression.calibrate(f, params, [x], {"*:linear": compression.Int(8, 8)}).spec
    g = compression.integer(f, spec)
    return g, g.convert(params, x)


def session(path: Any, x: np.ndarray) -> Callable[[], Any]:
    """Starts ONNX Runtime on one thread."""
    import onnxruntime  # a peer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    started = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: started.run(None, {started.get_inputs()[0].name: x})


def start(settings: Settings) -> list[rows.Row]:
    """Measures processes from nothing to a first result."""
    f, params, x = mobilenet(settings)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        np.save(at / "x.npy", x)
        jaxeff_export.deploy(f, (params, x), path=at / "bundle")
        paths = {"load": at / "bundle", "Bundle.load": at / "bundle"}
        whats = ("start to the first result", "memory of a process")
        without = [row for what in whats for row in rows.absent(what, PEER, 4)]
        if not without:
            jaxeff_export.to_onnx(f, (params, x), at / "net.onnx")
            paths[PEER] = at / "net.onnx"
        samples: dict[str, list[list[float]]] = {name: [] for name in paths}
        for _ in range(settings.rounds):
            for name, path in paths.items():
                code = CHILD.format(load=LOADS[name])
                command = [sys.executable, "-c", code, str(path), str(at / "x.npy")]
                said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                samples[name].append([float(word) for word in said.split()])
    if without:
        return without
    result = []
    for i, (what, unit, asked) in enumerate(zip(whats, (1e3, 1 / 1024), (4, 2), strict=True)):
        for name in ("load", "Bundle.load"):
            pairs = [
                (a[i] * unit, b[i] * unit)
                for a, b in zip(samples[name], samples[PEER], strict=True)
            ]
            row = {"what": f"{what}, {name}", "peer": PEER, "unit": "ratio", "asked": asked}
            result.append(row | rows.ratio(pairs))
    return result


def deploy(settings: Settings) -> list[rows.Row]:
    """Measures what a bundle of MobileNetV2 takes to be made, and on disk."""
    f, params, x = mobilenet(settings)
    jaxeff_export.deploy(lambda w, y: y @ w, (np.eye(2, dtype=np.float32), np.ones((1, 2))))
    measured_rows = []
    with tempfile.TemporaryDirectory() as folder:
        at, sizes = Path(folder), {}
        forms = {"float": (f, params, 4), "int8": (*in_codes(f, params, x), 8)}
        for name, (g, arrays, asked) in forms.items():
            since = time.process_time()
            bundle = jaxeff_export.deploy(g, (arrays, x), path=at / name)
            seconds = time.process_time() - since
            row = rows.counted(f"deploy of MobileNetV2, {name}", "CPU seconds", asked, seconds)
            measured_rows.append(row | {"agrees": bool(bundle.check())})
            sizes[name] = sum(file.stat().st_size for file in (at / name).iterdir())
        what = "bundle on disk"
        if without := rows.absent(what, PEER, 1.15):
            return measured_rows + without
        theirs = onnx_files(f, params, x, at)
        for name, size in sizes.items():
            row = {"what": f"{what}, {name}", "peer": PEER, "unit": "ratio", "asked": 1.15}
            row |= {"ours": size / 1e6, "theirs": theirs[name].stat().st_size / 1e6}
            measured_rows.append(row | {"value": row["ours"] / row["theirs"]})
    return measured_rows


def onnx_files(f: Any, params: Any, x: np.ndarray, at: Path) -> dict[str, Path]:
    """Writes ONNX's files of a function, the second by ONNX Runtime's static quantizer."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Examples(CalibrationDataReader):  # type: ignore[misc]
        """A single example."""

        def __init__(self, name: str) -> None:
            self.left = [{name: x}]

        def get_next(self) -> Any:
            """Takes the next one, if there is any."""
            return self.left.pop() if self.left else None

    file = jaxeff_export.to_onnx(f, (params, x), at / "float.onnx")
    examples = Examples(file.inputs[0])
    small = at / "int8.onnx"
    quantize_static(file.path, small, examples, quant_format=QuantFormat.QDQ, per_channel=True)
    return {"float": Path(file.path), "int8": small}


def over_file(
    settings: Settings, what: str, asked: float, f: Any, params: Any, x: np.ndarray
) -> list[rows.Row]:
    """Measures a bundle of a function over ONNX's file of it."""
    if without := rows.absent(what, PEER, asked):
        return without
    with tempfile.TemporaryDirectory() as folder:
        jaxeff_export.to_onnx(f, (params, x), Path(folder) / "net.onnx")
        theirs = session(Path(folder) / "net.onnx", x)
    bundle = jaxeff_export.deploy(f, (params, x))
    ours, (expected, *_) = np.asarray(bundle.run(x)), theirs()
    agrees = bool(np.abs(ours - expected).max() <= SETTLED * np.abs(expected).max())
    return [
        rows.beside(what, PEER, asked, (lambda: bundle.run(x), theirs), settings.rounds, agrees)
    ]


def pooled(axes: tuple[int, ...]) -> Callable[..., Any]:
    """Makes a padded pooling of 3 x 3 windows over two axes."""
    window = [3 if i in axes else 1 for i in range(4)]
    strides = [2 if i in axes else 1 for i in range(4)]
    edges = [(1, 1) if i in axes else (0, 0) for i in range(4)]

    def f(shift: Any, x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, edges) + shift

    return f


def layers(settings: Settings) -> list[rows.Row]:
    """Measures single layers, and ResNet-18."""
    rng, size = np.random.default_rng(0), settings.pixels // 2
    measured_rows = []
    for name, axes in (("NHWC", (1, 2)), ("NCHW", (2, 3))):
        shape = [size if i in axes else 64 for i in range(4)]
        x = rng.normal(size=(1, *shape[1:])).astype(np.float32)
        what = f"padded max pooling, {name}"
        measured_rows += over_file(settings, what, 1, pooled(axes), np.float32(0), x)
    measured_rows += over_file(settings, "ResNet-18, batch 1", 0.95, *resnet18(settings))
    for kind in ("LSTM", "GRU"):
        for batch in (1, 10):
            measured_rows += recurrent(settings, kind, batch)
    conv = nnx.Conv(256, 256, (3, 3), feature_group_count=256, rngs=nnx.Rngs(0))
    f, params, x = functional(conv, 1, size // 4, size // 4, 256)
    g, codes = in_codes(f, params, x)
    small, plain = (jaxeff_export.deploy(h, (p, x)) for h, p in ((g, codes), (f, params)))
    pairs = [(kernels_ms(small), kernels_ms(plain)) for _ in range(settings.rounds)]
    what = "depthwise 3 x 3, 256 channels, int8"
    row: rows.Row = {"what": what, "peer": "our float", "unit": "ratio", "asked": 0.5}
    row |= rows.ratio(pairs) | {"agrees": bool(small.check()) and bool(plain.check())}
    # Floats come in and go out of a single layer: half of the call is their copies and rounding.
    calls = (lambda: small.run(x)), (lambda: plain.run(x))
    times = rows.beside(what, "our float", 0.5, calls, settings.rounds)
    call = rows.counted(f"{what}, a whole call", "of float's time", None, times["value"])
    return [*measured_rows, row, call]


def kernels_ms(bundle: Any) -> float:
    """Measures the kernels of layers, in milliseconds, without the rounding of what comes in."""
    times = bundle.profile(number=10, repeat=3)
    return sum(time.ms for time in times if not time.name.startswith("q_codes"))


def recurrent(settings: Settings, kind: str, batch: int) -> list[rows.Row]:
    """Measures 50 steps of a recurrent cell of 128 units over ONNX's operator."""
    what, asked = f"{kind}, 128 units, 50 steps, batch {batch}", 0.9
    if without := rows.absent(what, PEER, asked):
        return without
    from onnx import TensorProto, helper, numpy_helper  # a peer's

    units, steps, gates = 128, 50, {"LSTM": 4, "GRU": 3}[kind]
    cell = getattr(nnx, f"{kind}Cell")(units, units, rngs=nnx.Rngs(0))
    f, params = jaxeff.functional(nnx.RNN(cell))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, steps, units)).astype(np.float32)
    bundle = jaxeff_export.deploy(f, (params, x))
    sizes = {"w": (1, gates * units, units), "r": (1, gates * units, units)}
    weights = {n: rng.normal(size=s).astype(np.float32) / 10 for n, s in sizes.items()}
    more: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=units, **more)
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (steps, batch, units)), ("y", (steps, 1, batch, units)))
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], kind, values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    theirs = session(model.SerializeToString(), np.ascontiguousarray(x.swapaxes(0, 1)))
    calls = (lambda: bundle.run(x)), theirs
    return [rows.beside(what, PEER, asked, calls, settings.rounds, bool(bundle.check()))]


def threads(settings: Settings) -> list[rows.Row]:
    """Measures bundles on two threads over one, by the clock: the only rows that need quiet."""
    measured_rows = []
    for name, make in (("MobileNetV2", mobilenet), ("ResNet-18", resnet18)):
        f, params, x = make(settings)
        for form, (g, arrays) in {"float": (f, params), "int8": in_codes(f, params, x)}.items():
            with tempfile.TemporaryDirectory() as folder:
                np.save(Path(folder) / "x.npy", x)
                bundle = jaxeff_export.deploy(g, (arrays, x), path=Path(folder) / "bundle")
                times = _by_threads(Path(folder), settings.rounds)
                row: rows.Row = {"what": f"{name}, {form}, two threads", "peer": "one thread"}
                row |= {"unit": "ratio", "asked": 1 / 1.7, "agrees": bool(bundle.check())}
                if times["theirs"] < SHORT:  # two threads have little to share
                    row |= {"unit": "of one thread's time", "asked": None}
                measured_rows.append(row | times)
    return measured_rows


def _by_threads(folder: Path, rounds: int) -> rows.Row:
    """Times a bundle in turns by two processes, one of them with one thread, in milliseconds."""
    command = [sys.executable, "-c", TIMED, str(folder / "bundle"), str(folder / "x.npy")]
    with contextlib.ExitStack() as running:

        def started(count: int) -> Any:
            limits = dict.fromkeys(("TVM_NUM_THREADS", "OMP_NUM_THREADS"), str(count))
            piped = subprocess.Popen(
                command, env=os.environ | limits, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            return running.enter_context(piped)

        one, two = started(1), started(2)

        def seconds(process: Any, calls: int) -> float:
            process.stdin.write(f"{calls}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        # As many calls as take a fifth of a second.
        calls = max(1, round(0.2 / seconds(one, 3)))
        pairs = [(seconds(two, calls), seconds(one, calls)) for _ in range(rounds)]
    return rows.ratio([(a * 1e3, b * 1e3) for a, b in pairs])


SUBJECTS = {"start": start, "deploy": deploy, "layers": layers, "threads": threads}
