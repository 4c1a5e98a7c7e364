"""Integer kernels against NumPy, bit for bit, and integer networks deployed: here and emulated."""

from __future__ import annotations

import shutil

import jax
import numpy as np
import pytest
import tvm
import tvm_ffi
from flax import nnx
from integer_layers import conv2d, dense, module_of
from jaxeff_export import Bundle, SignatureError, deploy, resolve_target
from jaxeff_export.compiler import compile_module
from jaxeff_export.operators.integer import Geometry, IntegerKernelError, dot_of, integer_operators
from jaxeff_export.operators.integer._convolutions import suits
from jaxeff_export.targets import ToolchainError
from tvm import relax, tirx
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features

import jaxeff
from jaxeff.compression import Int, calibrate, integer, quantized
from jaxeff.compression.integers import q_conv2d
from jaxeff.compression.integers._operators import q_dense
from jaxeff.nn import small_classifier

HOST = {**resolve_target("host"), "num-cores": 2}
SHAPES = [
    conv2d(1, (2, 6, 7, 3), (3, 3, 3, 5), padding=(1, 1, 1, 1)),
    conv2d(2, (1, 7, 9, 5), (3, 2, 5, 20), strides=(2, 1), padding=(0, 1, 2, 0)),
    conv2d(3, (1, 9, 9, 4), (3, 3, 4, 6), dilation=(2, 2), padding=(1, 2, 0, 3)),
    conv2d(4, (1, 6, 6, 6), (3, 3, 2, 9), groups=3, padding=(1, 1, 1, 1)),
    conv2d(5, (1, 5, 6, 19), (3, 3, 1, 19), groups=19, padding=(1, 1, 1, 1), strides=(1, 2)),
    conv2d(6, (1, 8, 8, 1), (5, 5, 1, 6), padding=(2, 2, 2, 2)),
    conv2d(7, (1, 3, 3, 130), (1, 1, 130, 33), finer=2),
    dense(8, 3, 37, 21),
    dense(9, 1, 4, 1),
    dense(90, 2, 300, 40, extreme=True),
    dense(10, 17, 300, 40, extreme=True),
    dense(11, 5, 64, 50, result="codes", shortcut="codes", zero=7, finer=3),
    dense(12, 2, 64, 19, result="float", shortcut="float", finer=6),
    conv2d(
        14, (2, 6, 7, 8), (3, 3, 8, 18), padding=(1, 1, 1, 1), result="codes", pool=(2, 3), finer=4
    ),
    conv2d(15, (1, 5, 4, 5), (1, 1, 5, 3), result="float", pool=(2, 2), shortcut="codes"),
    conv2d(
        16, (2, 7, 21, 1), (3, 5, 1, 6), padding=(1, 1, 2, 2), result="codes", pool=(2, 2), finer=9
    ),
    conv2d(17, (1, 4, 40, 1), (2, 2, 1, 3), result="float", shortcut="float", strides=(2, 1)),
    conv2d(18, (1, 5, 11, 3), (3, 3, 3, 7), result="codes", shortcut="codes", pool=(1, 3), finer=5),
    conv2d(
        19, (2, 6, 9, 40), (3, 3, 1, 40), groups=40, padding=(1, 1, 1, 1), result="codes", finer=2
    ),
    conv2d(50, (1, 9, 8, 16), (5, 5, 1, 16), groups=16, padding=(2, 2, 2, 2), pool=(2, 2), finer=1),
    conv2d(51, (1, 7, 7, 24), (3, 3, 1, 24), groups=24, result="codes", shortcut="codes"),
    conv2d(52, (1, 7, 9, 9), (2, 3, 1, 9), groups=9, dilation=(2, 2), strides=(2, 2)),
    # Two rows of results share the rows of their windows: of two rows, pooled, and with gaps.
    conv2d(56, (1, 7, 8, 24), (2, 3, 1, 24), groups=24, padding=(0, 0, 1, 1), result="codes"),
    conv2d(57, (2, 10, 8, 16), (3, 3, 1, 16), groups=16, pool=(2, 2)),
    conv2d(58, (1, 12, 9, 16), (3, 3, 1, 16), groups=16, dilation=(2, 2), strides=(2, 2)),
    dense(53, 7, 64, 50, result="codes", shortcut="codes", zero=7, scales="fixed", finer=3),
    conv2d(54, (2, 6, 21, 1), (3, 5, 1, 6), result="codes", scales="fixed", pool=(2, 2), finer=4),
    conv2d(55, (1, 6, 6, 8), (3, 3, 8, 19), result="codes", scales="fixed", lower=3, extreme=True),
    conv2d(13, (1, 4, 4, 8), (3, 3, 8, 18), padding=(1, 1, 1, 1), result="codes", zero=9, lower=9),
]
TURNED = [  # pixels in lanes, of images whose channels are copied side by side
    conv2d(80, (2, 5, 16, 8), (3, 3, 8, 8), padding=(1, 1, 1, 1), result="codes", shortcut="codes"),
    conv2d(81, (2, 7, 21, 16), (3, 3, 16, 7), result="float", shortcut="float", strides=(2, 1)),
    conv2d(82, (1, 4, 14, 12), (1, 5, 12, 3), padding=(0, 0, 4, 4)),
    conv2d(83, (2, 8, 37, 32), (3, 2, 32, 5), result="codes", pool=(2, 2), zero=7, lower=7),
    conv2d(84, (1, 6, 40, 8), (3, 3, 8, 4), dilation=(2, 1), extreme=True),
    conv2d(85, (2, 3, 35, 8), (3, 3, 8, 4), result="codes", shortcut="codes", pool=(1, 3)),
    conv2d(86, (1, 4, 18, 8), (3, 3, 8, 6), result="codes", shortcut="codes", scales="fixed"),
]
NARROW = [
    conv2d(20 + i, (1, 4, 5, 33), (2, 3, 33, 9), bits, padding=(1, 0, 0, 2), input_zero=1, finer=i)
    for i, bits in enumerate([(1, 1), (1, 3), (2, 4), (5, 2)])
]
MANY = [  # examples beyond a block, and enough products for threads
    dense(60, 131, 40, 21, result="codes", shortcut="codes"),
    dense(61, 64, 301, 120),
    conv2d(62, (3, 24, 24, 16), (3, 3, 16, 32), padding=(1, 1, 1, 1)),
]
PAIRS = [(w, a) for w in range(1, 9) for a in range(1, 9)]


def masked(*features: str) -> dict:
    """This machine without some of its instructions."""
    names = [*HOST.get("mattr", ()), *(f"-{name}" for name in features)]
    return {**HOST, "mattr": names, "num-cores": 1}


def require_counts(target) -> None:
    try:
        integer_operators(target, by_planes=True)
    except IntegerKernelError as error:
        pytest.skip(str(error))


def hold(cases, target, by_planes=False, any_batch=False) -> None:
    """Compiles all cases together and compares every bit."""
    executable = compile_module(module_of(cases, target, by_planes, any_batch), target)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    arrays = [tvm.runtime.tensor(array) for case in cases for array in case.arrays]
    for case, result in zip(cases, machine["main"](*arrays), strict=True):
        np.testing.assert_array_equal(result.numpy(), case.expected(), err_msg=str(case.attributes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "missing",
    [
        (),
        ("avx512vnni", "avxvnni"),
        ("avx512f", "avxvnni"),
        ("avx512f", "avxvnni", "avx2"),  # no products of bytes at all, as on microcontrollers
    ],
)
def test_every_shape_is_exact_with_every_instruction(missing):
    if missing and "avx512" not in str(integer_machine()):
        pytest.skip("nothing to switch off on this processor")
    hold(SHAPES, masked(*missing))


@pytest.mark.slow
@pytest.mark.parametrize("missing", [(), ("avx512f",)])
@pytest.mark.parametrize("any_batch", [False, True])
def test_pixels_of_several_channels_are_exact(missing, any_batch):
    if missing and "avx512" not in str(integer_machine()):
        pytest.skip("nothing to switch off on this processor")
    dot = dot_of(Target(masked(*missing)))
    taken = [
        suits(Geometry.conv2d(case.arrays[0].shape, case.arrays[1].shape, case.attributes), dot)
        for case in TURNED
    ]
    if dot.name == "vpdpbusd":
        assert sum(taken) >= 3  # of eight lanes, those of at most four features
        assert all(taken) or dot.lanes < 16
    hold(TURNED, masked(*missing), any_batch=any_batch)


def test_rows_of_pixels_are_shared_by_threads():
    hold([conv2d(87, (1, 70, 70, 16), (3, 3, 16, 8), result="codes")], HOST)


@pytest.mark.parametrize(
    ("examples", "cores", "by_planes", "parts"),
    [(100, 2, False, [2]), (100, 3, False, [4]), (97, 2, False, None), (96, 2, True, [2])],
)
def test_examples_of_dense_layers_are_shared_by_threads(examples, cores, by_planes, parts):
    target = {**HOST, "num-cores": cores}
    if by_planes:
        require_counts(target)
    case = dense(88, examples, 301, 120, (2, 2) if by_planes else (8, 8), result="codes")
    loops: list[tirx.For] = []
    for _, kernel in module_of([case], target, by_planes).functions_items():
        if isinstance(kernel, tirx.PrimFunc):
            tvm_ffi.structural_walk(kernel.body, (tirx.For, loops.append))
    shared = [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.PARALLEL]
    if parts is not None:  # what has no equal parts is shared by features, where these are many
        assert shared == parts
    hold([case], target, by_planes)


@pytest.mark.slow
def test_kernels_of_any_batch_are_exact():
    hold([*SHAPES, *MANY], HOST, any_batch=True)


@pytest.mark.slow
def test_kernels_of_any_batch_are_exact_on_copies_and_planes():
    if "avx512" in str(integer_machine()):
        hold([SHAPES[0], SHAPES[7], MANY[0]], masked("avx512vnni", "avxvnni"), any_batch=True)
    require_counts(HOST)
    hold([*NARROW[:2], dense(63, 70, 40, 5, (2, 1))], HOST, by_planes=True, any_batch=True)


def integer_machine() -> list[str]:
    with open("/proc/cpuinfo") as lines:
        return next((line.split() for line in lines if line.startswith("flags")), [])


@pytest.mark.slow
def test_every_shape_is_exact_by_planes():
    require_counts(HOST)
    hold([*SHAPES, *NARROW], HOST, by_planes=True)


@pytest.mark.slow
@pytest.mark.parametrize("by_planes", [False, True])
def test_all_pairs_of_bits_are_exact(by_planes):
    if by_planes:
        require_counts(HOST)
    hold([dense(i, 1, 37, 5, pair) for i, pair in enumerate(PAIRS)], HOST, by_planes)


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["rocketlake", "znver4", "sapphirerapids"])
def test_binary_weights_are_exact_whatever_processor_llvm_aims_at(processor):
    """LLVM 22 broadcast an undefined register here, in some of these shapes on each of them."""
    if "avx512_vpopcntdq" not in integer_machine():
        pytest.skip("this processor counts no bits in vectors")
    target = {"kind": "llvm", "mcpu": processor, "num-cores": 1}
    # Zen's own instructions are illegal on Intel's processors, which would end this whole process.
    if llvm_cpu_has_features("sse4a", Target(target)) and not llvm_cpu_has_features(
        "sse4a", Target(HOST)
    ):
        pytest.skip(f"this processor has not all instructions of {processor}")
    widths = [(n, bits) for n in (37, 64, 100) for bits in range(1, 9)]
    cases = [dense(i, 1, n, 5, (1, bits)) for i, (n, bits) in enumerate(widths)]
    hold(cases, target, by_planes=True)


def test_planes_are_refused_where_no_instruction_counts():
    plain = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
    with pytest.raises(IntegerKernelError, match="haswell has no instruction that counts"):
        integer_operators(plain, by_planes=True)


def test_bits_are_counted_where_words_are_full():
    """Eight channels leave three quarters of a word empty: the widths alone don't decide."""
    require_counts(HOST)

    def counts(case) -> bool:
        module = module_of([case], HOST, by_planes=None)
        return any(v.name_hint.startswith("q_planes") for v in module.get_global_vars())

    window = {"padding": (1, 1, 1, 1)}
    convolutions = {
        (n, bits): counts(conv2d(70, (1, 8, 8, n), (3, 3, n, n), bits, **window))
        for n in (8, 64)
        for bits in ((1, 1), (1, 3), (3, 2))
    }
    assert [bits for (n, bits), by_planes in convolutions.items() if n == 8 and by_planes] == []
    assert [n for (n, bits), by_planes in convolutions.items() if bits == (1, 3) and by_planes] == [
        64
    ]
    assert not convolutions[64, (3, 2)]
    assert counts(dense(71, 1, 1024, 64, (1, 3)))
    assert not counts(dense(72, 1, 1024, 8, (1, 3)))  # planes are made for one vector alone


@pytest.fixture(scope="module")
def network():
    f, params, (x, _) = small_classifier(16)
    spec = calibrate(
        f,
        params,
        [x],
        {"*:linear": Int(8), "fc1": Int(2, 4)},
    ).spec
    g = integer(f, spec)
    return g, g.convert(params, x), params, x[:5]


@pytest.fixture(scope="module")
def fixed_network():
    f, params, (x, _) = small_classifier(16)
    spec = calibrate(f, params, [x], {"*:linear": Int(8)}).spec
    g = integer(f, spec, requantize="fixed")
    return g, g.convert(params, x), x[:5]


@pytest.mark.slow
def test_a_network_is_the_same_bits_here_and_under_xla(network, tmp_path):
    g, codes, params, x = network
    bundle = deploy(g, (codes, x), path=tmp_path / "b")
    np.testing.assert_array_equal(bundle.run(x), jax.jit(g)(codes, x))
    names = {row.name.rstrip("0123456789") for row in bundle.profile(number=1, repeat=1)}
    # Behind the layer's kind stands what its kernel was built by.
    assert names & {"q_conv2d_dots", "q_conv2d_pixels"}
    assert names & {"q_dense_dots", "q_dense_planes"}
    stored = [*bundle.manifest.parameters, *bundle.manifest.derived]
    heavy = [s for s in stored if s.dtype == "float32" and np.prod(s.shape) > 64]
    assert not heavy  # no float weights
    again = sum(np.prod(spec.shape) for spec in stored if spec.dtype == "int8")
    assert again < 3 * sum(w.size for w in jax.tree.leaves(params))  # packed, and not twice


@pytest.mark.slow
def test_a_network_of_any_batch_is_the_same_bits(network, fixed_network, tmp_path):
    for name, (g, codes, *_, x) in {"float": network, "fixed": fixed_network}.items():
        bundle = deploy(g, (codes, x), path=tmp_path / name, any_batch=True)
        assert bundle.check().max_abs_error == 0
        names = {row.name.rstrip("0123456789") for row in bundle.profile(number=1, repeat=1)}
        assert {"q_codes", "q_conv2d", "q_dense"} <= {
            name.rpartition("_")[0] for name in names
        } | names
        for size in (1, 6, 67):
            fresh = jax.random.normal(jax.random.key(size), (size, *x.shape[1:]))
            np.testing.assert_array_equal(bundle.run(fresh), jax.jit(g)(codes, fresh))
            artifact = bundle.artifact.call(*jax.tree.leaves((codes, fresh)))
            np.testing.assert_array_equal(artifact[0], jax.jit(g)(codes, fresh))


@pytest.mark.slow
def test_float_bundles_hold_no_weight_twice(tmp_path):
    f, params, (x, _) = small_classifier(4)
    bundle = deploy(f, (params, x), path=tmp_path / "b")
    sizes = [np.prod(s.shape) for s in (*bundle.manifest.parameters, *bundle.manifest.derived)]
    assert sum(sizes) < 2 * sum(w.size for w in jax.tree.leaves(params))


def layers(params, x):
    """Sums of convolutions and a dense layer, in bits that go to planes and that don't."""
    window = {"dilation": (1, 1), "groups": 1, "input_zero": 1, "strides": (1, 1)}
    at = {"result": "sums", "zero": 0, "lower": 0, "upper": 255}
    at |= {"shortcut": "none", "shortcut_zero": 0}
    bias = np.arange(33, dtype=np.int32)
    own = np.moveaxis(params[8, 8][..., :1], 2, 3)  # a channel to a lane
    at |= {"weight_bits": 8, "activation_bits": 8}
    results = [q_conv2d(x, own, bias, padding=(1, 0, 2, 1), **{**window, "groups": 33}, **at)]
    bias = bias[:9]
    for bits, w in params.items():
        widths = {"weight_bits": bits[0], "activation_bits": bits[1]}
        u = x & np.uint8(2 ** bits[1] - 1)
        at |= widths
        results.append(q_conv2d(u, w, bias, padding=(1, 1, 0, 2), **window, **at))
        results.append(
            q_conv2d(u, w[..., :3], bias[:3], padding=(1,) * 4, pool=(2, 3), **window, **at)
        )
        flat = u.reshape(u.shape[0], -1)
        dense = w.reshape(-1, 9)
        results.append(q_dense(flat[:, : len(dense)], dense, bias, **at))
    return results


@pytest.mark.slow
def test_arm_is_the_same_bits(arm_linker, emulated_board, network, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, 6, 7, 33)).astype(np.uint8)
    x[0] = 255
    params = {}
    for bits in ((8, 8), (1, 1), (1, 3), (2, 2), (4, 1), (5, 2)):
        most = max(1, 2 ** (bits[0] - 1) - 1)
        w = rng.integers(-most, most + 1, (3, 3, 33, 9)).astype(np.int8)
        w = np.where(w < 0, -1, 1).astype(np.int8) if bits[0] == 1 else w
        w[..., 0] = -most
        params[bits] = w
    bundle = deploy(layers, (params, x), target="cortex-a72", path=tmp_path / "layers")
    assert bundle.check(emulated_board).max_abs_error == 0
    g, codes, _, x = network
    bundle = deploy(g, (codes, x), target="cortex-a72", path=tmp_path / "network")
    np.testing.assert_array_equal(bundle.run(x, board=emulated_board), jax.jit(g)(codes, x))


LONG = (1060, 2110)  # inputs: words of 32 in two parts and a rest, and in three


def counted(params, x):
    """Dense layers of sums that no byte can hold, in 1 by 2 and 2 by 2 bits."""
    at = {"input_zero": 0, "result": "sums", "zero": 0, "lower": 0, "upper": 3}
    at |= {"shortcut": "none", "shortcut_zero": 0, "activation_bits": 2}
    return [
        q_dense(x[:, : len(w)], w, np.zeros(w.shape[1], np.int32), weight_bits=bits, **at)
        for bits, weights in params.items()
        for w in weights
    ]


@pytest.mark.slow
def test_long_sums_of_bits_are_exact_on_arm(arm_linker, emulated_board, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (3, LONG[-1])).astype(np.uint8)
    x[0] = 3
    params = {}
    for bits in (1, 2):
        params[bits] = [rng.choice([-1, 1], (depth, 37)).astype(np.int8) for depth in LONG]
        for w in params[bits]:
            w[:, 0] = -1
    bundle = deploy(counted, (params, x), target="cortex-a72", path=tmp_path / "b")
    results = bundle.run(x, board=emulated_board)
    expected = [x[:, : len(w)].astype(int) @ w for weights in params.values() for w in weights]
    for result, exact in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, exact)


def test_a_model_of_planes_on_a72_holds_its_roof(arm_linker, tmp_path):
    if shutil.which("llvm-mca") is None:
        pytest.skip("llvm-mca is not installed")
    case = conv2d(90, (1, 8, 8, 128), (3, 3, 128, 32), (1, 2), padding=(1, 1, 1, 1), result="codes")

    def f(params, x):
        return q_conv2d(x, *params, **case.attributes)

    x, *params = case.arrays
    (loop,) = deploy(f, (params, x), target="cortex-a72", path=tmp_path / "b").model()
    assert 74 <= loop.per_cycle <= 85.4  # three instructions for 128 products, two a cycle
    assert loop.spills == 0


@pytest.mark.slow
def test_fixed_point_is_the_same_bits_here_under_xla_and_on_arm(
    arm_linker, emulated_board, fixed_network, tmp_path
):
    g, codes, x = fixed_network
    expected = jax.jit(g)(codes, x)
    np.testing.assert_array_equal(deploy(g, (codes, x), path=tmp_path / "here").run(x), expected)
    there = deploy(g, (codes, x), target="cortex-a72", path=tmp_path / "there")
    np.testing.assert_array_equal(there.run(x, board=emulated_board), expected)


@pytest.mark.slow
def test_dot_products_of_a76_are_the_same_bits(arm_linker, emulator, network, tmp_path):
    g, codes, _, x = network
    bundle = deploy(g, (codes, x), target="cortex-a76", path=tmp_path / "b")
    result = bundle.run(x, board="emulated:cortex-a76")
    np.testing.assert_array_equal(result, jax.jit(g)(codes, x))


def test_a_model_of_a72_holds_its_roofs(arm_linker, network, tmp_path):
    if shutil.which("llvm-mca") is None:
        pytest.skip("llvm-mca is not installed")
    g, codes, _, x = network
    loops = deploy(g, (codes, x), target="cortex-a72", path=tmp_path / "b").model()
    rows = {loop.kernel.removesuffix("_compute_"): loop for loop in loops}
    conv, fc2 = rows["q_conv2d_dots"], rows["q_dense_dots"]  # fc1 has 2 by 4 and counts bits
    assert 6 <= conv.per_cycle <= 8.01  # its four features are one vector, and share few loads
    assert conv.spills == 0
    assert 7.2 <= fc2.per_cycle <= 8.01
    with pytest.raises(ToolchainError, match=r"llvm-mca has no model .* on no-core"):
        Bundle.load(tmp_path / "b").model("no-core")


@pytest.mark.slow
def test_a_model_says_what_is_missing(network, tmp_path, monkeypatch):
    g, codes, _, x = network
    bundle = deploy(g, (codes, x), path=tmp_path / "b")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"llvm-mca not found, .* apt-get install llvm"):
        bundle.model()


@pytest.mark.slow
def test_summary_of_an_exported_network_knows_its_bits(network):
    g, codes, _, x = network
    rows = {row.site: row for row in jaxeff.cost(g, codes, x).layers}
    assert (rows["conv1"].weight_bits, rows["conv1"].activation_bits) == (8, 8)
    assert (rows["fc1"].weight_bits, rows["fc1"].activation_bits) == (2, 4)


class Averaged(nnx.Module):
    """Means and sums over positions and windows, read as floats and as codes."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 12, (3, 3), rngs=rngs)
        self.fc = nnx.Linear(12, 4, rngs=rngs)

    def __call__(self, x):
        y = nnx.relu(self.conv(x))
        mean = y.mean((1, 2))
        return self.fc(mean), mean, y.sum((1, 2)), nnx.avg_pool(y, (3, 3), strides=(2, 2))


@pytest.mark.slow
@pytest.mark.parametrize("requantize", ["float", "fixed"])
def test_means_over_positions_are_the_same_bits_as_under_xla(requantize, tmp_path):
    """In float32, the order of the sum would show in nearly every result."""
    f, params = jaxeff.functional(Averaged(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (16, 13, 11, 3))
    spec = calibrate(f, params, [x], {"*:linear": Int(8)}).spec
    g = integer(f, spec, requantize=requantize)
    codes = g.convert(params, x)
    bundle, jitted = deploy(g, (codes, x), {**HOST, "num-cores": 1}), jax.jit(g)
    for seed in range(6):
        fresh = jax.random.normal(jax.random.key(seed), x.shape)
        expected = jitted(codes, fresh)
        for ours, theirs in zip(bundle.run(fresh), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    exact = jax.jit(quantized(f, spec))(params, fresh)
    for ours, theirs in zip(expected[1:], exact[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())
    damaged = fresh.at[1, 2].set(-np.inf)  # the smallest code, everywhere
    for ours, theirs in zip(bundle.run(damaged), jitted(codes, damaged), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.isfinite(ours).all()
    with pytest.raises(SignatureError, match="holds NaN"):
        bundle.run(fresh.at[0, 3:5].set(np.nan))


class Sequence(nnx.Module):
    """Attention's projections, a weight for each head, convolutions over time, a transpose."""

    def __init__(self, rngs):
        self.query = nnx.LinearGeneral(16, (2, 8), rngs=rngs)
        self.out = nnx.LinearGeneral((2, 8), 16, axis=(-2, -1), rngs=rngs)
        self.each = nnx.Einsum("bshk,hkd->bshd", (2, 8, 8), (2, 8), rngs=rngs)
        self.down = nnx.Conv(16, 24, (3,), strides=2, rngs=rngs)
        self.up = nnx.ConvTranspose(24, 16, (4,), strides=(2,), rngs=rngs)
        self.position = nnx.Param(jax.random.normal(rngs.params(), (6, 16)))
        self.last = nnx.Linear(16, 16, use_bias=False, rngs=rngs)

    def __call__(self, x):
        x = x + self.out(nnx.relu(self.query(x)))
        x = self.each(x.reshape(*x.shape[:2], 2, 8)).reshape(x.shape)
        x = self.up(nnx.relu(self.down(x))) + x
        return self.last(x) + self.position


@pytest.mark.slow
@pytest.mark.parametrize("any_batch", [False, True])
def test_products_over_other_axes_are_the_same_bits(any_batch, tmp_path):
    f, params = jaxeff.functional(Sequence(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (3, 6, 16))
    g = integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    codes = g.convert(params, x)
    assert sum(name.endswith("/codes") for name in codes.arrays) == 6
    bundle = deploy(g, (codes, x), path=tmp_path / "b", any_batch=any_batch)
    names = {row.name.rstrip("0123456789") for row in bundle.profile(number=1, repeat=1)}
    assert {"q_conv2d", "q_dense"} <= {name.rpartition("_")[0] for name in names}
    np.testing.assert_array_equal(bundle.run(x), jax.jit(g)(codes, x))


def test_a_recurrent_network_of_codes_is_deployed(tmp_path):
    model = nnx.RNN(nnx.GRUCell(4, 8, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(1))
    f, params = jaxeff.functional(model)
    x = jax.random.normal(jax.random.key(0), (2, 5, 4))
    g = integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    codes = g.convert(params, x)
    bundle = deploy(g, (codes, x), path=tmp_path / "b")
    assert bundle.check().passed
    # A sigmoid and a tanh per step of time, which the compilers round differently.
    output = bundle.run(x)
    np.testing.assert_allclose(output, jax.jit(g)(codes, x), rtol=0, atol=1e-6)
