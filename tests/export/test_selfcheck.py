"""The comparison behind a self-check: rounding passes, anything else does not."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from c_programs import require
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxeff_export import BundleError, SignatureError, deploy
from jaxeff_export.artifact import TensorSpec
from jaxeff_export.bundle import BatchWarning, DisagreementWarning
from jaxeff_export.bundle.files import RecordedPair, compare, compare_data, tolerance
from jaxeff_export.bundle.running import Runner

from jaxeff.core import InterruptedRun


def check(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    spec = TensorSpec("y", theirs.shape, str(theirs.dtype))
    return compare("board", [spec], [[ours]], [RecordedPair([], [theirs])])


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(0, 1e-2))
def test_float32_passes_up_to_its_tolerance(scale, relative):
    theirs = np.array([scale, -scale / 3], np.float32)
    ours = theirs.astype(np.float64) + relative * float(theirs[0]) * np.array([0, 1])
    result = check(ours, theirs)
    assert result.max_relative_error == pytest.approx(relative, rel=1e-6, abs=1e-12)
    assert result.passed == (
        result.outputs[0].max_abs_error <= tolerance(theirs.dtype) * scale
    ) or (
        # the edge itself, where float32's rounding of the scale decides
        relative == pytest.approx(tolerance(theirs.dtype), rel=1e-5)
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([np.nan, 1.0], [1.0, 1.0]),
        ([np.inf, 1.0], [1.0, 1.0]),
        ([1.0, np.inf], [1.0, -np.inf]),
        ([1.0, 1.0], [1.0, -np.inf]),
        ([1.0, 1.0], [1.0, np.nan]),
        ([np.nan, 1.0], [1.0, np.nan]),
    ],
)
def test_what_is_not_finite_must_be_the_same(ours, theirs):
    report = check(np.float32(ours), np.float32(theirs))
    assert not report.passed
    assert "NaN or infinity where JAX's result has other numbers" in str(report) or np.inf in ours


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_nan_is_nan(dtype):
    ours = np.array([[1, np.nan, 3], [4, 5, 6], [7, 9, 8]], dtype)
    theirs = ours.copy()
    ours.view(np.uint8).reshape(-1)[ours.itemsize] ^= 1  # one of many patterns
    report = check(ours, theirs)
    assert report.passed
    assert report.max_abs_error == 0
    spec = TensorSpec("y", (1, 3), str(theirs.dtype))
    if dtype is np.complex64:
        return
    report = compare_data("board", [ours], [theirs], np.array([1, 2, 1]), [spec])
    assert (report.same, report.agreeing, report.undecided) == (3, 3, 1)
    # A score that is NaN decides nothing, whatever its label says.
    assert (report.right, report.right_in_jax) == (2, 2)
    assert "off by" not in str(report)
    assert "1 whose scores are NaN in JAX" in str(report)
    ours[0, 1] = 2
    report = compare_data("board", [ours], [theirs], np.array([1, 2, 1]), [spec])
    assert (report.same, report.agreeing, report.passed) == (2, 2, False)


def test_equal_infinities_zeros_and_nothing_pass():
    assert check(np.float32([1, -np.inf]), np.float32([1, -np.inf])).passed
    assert check(np.zeros(3, np.float32), np.zeros(3, np.float32)).max_relative_error == 0
    assert check(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).passed
    assert not check(np.float32([1e-30]), np.float32([0])).passed


def test_tolerances_by_dtype():
    assert tolerance(np.dtype(np.int32)) == tolerance(np.dtype(bool)) == 0
    assert tolerance(np.dtype(np.float64)) < 1e-12 < tolerance(np.dtype(np.float32)) < 2e-4
    assert tolerance(np.dtype(np.float16)) < 1e-2 < tolerance(np.dtype(ml_dtypes.bfloat16)) < 0.1
    assert not check(np.int32([1, 2]), np.int32([1, 3])).passed
    assert check([True, False], [True, False]).passed
    assert not check([True, True], [True, False]).passed
    assert check(np.complex64([1 + 1j]), np.complex64([1 + 1j])).passed


def test_data_are_counted_by_decisions_bits_and_labels():
    spec = TensorSpec("y", (1, 3), "float32")
    theirs = np.float32([[0, 2, 1], [3, 0, 1], [0, 0, 9], [5, 1, 1]])
    ours = theirs.copy()
    ours[0] += np.float32(1e-6)  # other bits, one decision
    ours[1] = [0, 3, 1]  # another decision
    report = compare_data("board", [ours], [theirs], np.array([1, 1, 2, 1]), [spec])
    assert (report.examples, report.same, report.agreeing) == (4, 2, 3)
    assert (report.right, report.right_in_jax) == (3, 2)
    assert (report.accuracy, report.agreement) == (0.75, 0.75)
    assert not report  # the second differs by 3
    assert "accuracy 0.75 (JAX: 0.5), 3 decided as by JAX, 2 with JAX's bits" in str(report)
    assert repr(report) == str(report)
    nothing = compare_data("board", [ours[:, :1]], [theirs[:, :1]], None, [spec])
    assert nothing.agreement is None
    assert nothing.accuracy is None
    with pytest.raises(ValueError, match="neither scores of classes nor a class"):
        compare_data("board", [ours[:, :1]], [theirs[:, :1]], np.arange(4), [spec])
    codes = np.int32([1, 0, 2])
    assert compare_data("board", [codes], [codes], np.array([1, 1, 2]), [spec]).right == 2


def scores(w, x):
    return x @ w


W = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(7, 8)).astype(np.float32)
Y = (X @ W).argmax(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "board"), [("host", "local"), ("cortex-m4", "emulated"), ("cortex-a7", "emulated")]
)
@pytest.mark.parametrize("form", ["batch", "single", "any"])
def test_a_data_set_on_a_board(target, board, form):
    """Numpy's decisions are the oracle; seven examples are no multiple of three."""
    if target != "host":
        require(*TOOLS[target])
    if form == "any" and target != "host":
        return  # a C library has one batch
    example = X[0] if form == "single" else X[:3]
    bundle = deploy(scores, (W, example), target=target, any_batch=form == "any")
    labels = Y.copy()
    labels[2] = (labels[2] + 1) % 4
    report = bundle.check(board, data=(X, labels))
    assert report
    assert (report.examples, report.agreeing, report.right) == (7, 7, 6)
    assert bundle.check(board, data=(X, None)).accuracy is None


TOOLS = {
    "cortex-m4": ("arm-none-eabi-gcc", "qemu-system-arm"),
    "cortex-a7": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
}


def test_data_that_a_bundle_does_not_take():
    bundle = deploy(scores, (W, X[:3]))
    for data, said in [
        (X, "must be a pair"),
        ((X, Y[:-1]), r"the same number of examples.*\(7, 8\), \(6,\)"),
        (((X, X), Y), "holds 2 arrays, the bundle takes 1: x"),
        ((X[:, :5], Y), "x has shape"),
        ((X.astype(np.float64), Y), "float64"),
    ]:
        with pytest.raises(SignatureError, match=said):
            bundle.check(data=data)


def test_state_begins_as_in_the_example():
    def step(w, x, state):
        return x @ w + state, state + 1.0

    args = (W, X[:1], jnp.ones((1, 4), jnp.float32))
    bundle = deploy(step, args, state=("state",))
    report = bundle.check(data=(X, (X @ W).argmax(1)))
    assert report
    assert report.right == 7


def test_deploy_says_that_a_library_disagrees(monkeypatch):
    plain = Runner._call
    monkeypatch.setattr(Runner, "_call", lambda self, leaves: [r + 1 for r in plain(self, leaves)])
    with pytest.warns(DisagreementWarning, match="disagrees with JAX.*data="):
        deploy(scores, (W, X[:3]))
    deploy(scores, (W, X[:3]), check=False)  # without a word, as asked


def test_ctrl_c_in_deploy_says_what_is_left(monkeypatch, tmp_path):
    def interrupted(line):
        if line == stops_at:
            raise KeyboardInterrupt

    stops_at = "linking"
    with pytest.raises(InterruptedRun, match="nothing was written") as error:
        deploy(scores, (W, X[:3]), path=tmp_path / "b", progress=interrupted)
    assert error.value.result is None
    assert not (tmp_path / "b").exists()
    stops_at = "comparing with JAX"
    with pytest.raises(InterruptedRun, match="before the check") as error:
        deploy(scores, (W, X[:3]), path=tmp_path / "b", progress=interrupted)
    assert error.value.result.check()


def test_parameters_that_are_not_kept_cannot_be_compared(monkeypatch):
    from jaxeff_export.bundle import Bundle

    bundle = deploy(scores, (W, X[:3]))
    monkeypatch.setattr(Bundle, "unpacked", None)
    with pytest.raises(BundleError, match="up to 16 MiB"):
        bundle.check(data=(X, Y))


@pytest.mark.parametrize(
    ("args", "target", "came"),
    [
        ({"w": jnp.eye(3)}, jnp.ones((2, 3)), r"args is a dict, and an array float32\[2, 3\]"),
        (jnp.eye(3), np.ones((2, 3)), r"args is an array float32\[3, 3\], and an array float64"),
        (jnp.eye(3), "host", r"args is an array float32\[3, 3\]"),
        ((jnp.eye(3),), jnp.ones((2, 3)), "args is a tuple, and an array"),
        ({"w": jnp.eye(3)}, "host", "args is a dict"),
        (None, "host", "args is a NoneType"),
        ((), "host", "args is empty"),
    ],
)
def test_arguments_are_given_as_one_tuple(args, target, came):
    with pytest.raises(SignatureError, match=came) as refused:
        deploy(lambda params, x: x @ params["w"], args, target)
    assert "(params, " in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.slow
def test_a_batch_for_a_microcontroller_is_warned_of():
    require("arm-none-eabi-gcc", "qemu-system-arm")
    w = jnp.ones((64, 10))
    with pytest.warns(BatchWarning, match=r"x has shape \(256, 64\).*75,776 bytes.*x\[:1\]"):
        deploy(lambda w, x: x @ w, (w, jnp.ones((256, 64))), "cortex-m4")
    # One example, few of them, and a result without the axis are as they are meant.
    deploy(lambda w, x: x @ w, (w, jnp.ones((1, 64))), "cortex-m4")
    deploy(lambda w, x: x @ w, (w, jnp.ones((8, 64))), "cortex-m4")
    deploy(lambda w, x: (x @ w).mean(0), (w, jnp.ones((256, 64))), "cortex-m4")
