"""QONNX files compute what `quantized` does, by QONNX's runtime and by the formula of `Quant`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.compression import calibrate
from jaxeff.nn import SmallCNN

onnx = pytest.importorskip("onnx")
from jaxeff_export import OnnxError, to_qonnx  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx.reference.op_run import OpRun  # noqa: E402

DOMAIN = "qonnx.custom_op.general"


class Quant(OpRun):
    """QONNX's operator by its definition: scaled, moved, clipped to whole ends, rounded, back."""

    op_domain = DOMAIN

    def _run(self, x, scale, zero, bits, signed=None, narrow=None, rounding_mode=None):
        assert rounding_mode == "ROUND"  # halves to even
        low = -(2 ** (int(bits) - 1)) + narrow if signed else 0
        high = 2 ** (int(bits) - 1) - 1 if signed else 2 ** int(bits) - 1 - narrow
        codes = np.round(np.clip(x / scale + zero, low, high))
        return (((codes - zero) * scale).astype(np.float32),)


@pytest.fixture(scope="module")
def net():
    f, params = jaxeff.functional(SmallCNN(rngs=nnx.Rngs(0)))
    x = jax.random.uniform(jax.random.key(1), (16, 28, 28, 1))
    return f, params, x


@pytest.mark.parametrize(
    "setting",
    [
        jaxeff.Int(8),
        jaxeff.Int(8, symmetric="weights"),
        jaxeff.Int(4, 8, symmetric="weights"),
        jaxeff.Int(3, 5, symmetric=True, per="channel"),
    ],
)
def test_a_file_computes_what_quantized_does(net, setting, tmp_path):
    f, params, x = net
    spec = calibrate(f, params, [x], {"*:linear": setting}).spec
    file = to_qonnx(f, (params, x), spec, tmp_path / "net.onnx")
    model = onnx.load(file.path)
    expected = jaxeff.quantized(f, spec)(params, x)
    assert not np.allclose(expected, f(params, x), atol=1e-5)
    nodes = [n for n in model.graph.node if n.op_type == "Quant"]
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    weights, activations = (
        {int(constants[n.input[3]]) for n in nodes if (n.input[0] in constants) is constant}
        for constant in (True, False)
    )
    assert activations == {setting.activation_bits or setting.bits}
    # Around a zero point that isn't 0, codes need a bit more.
    assert weights <= {setting.bits, setting.bits + (setting.symmetric is False)}
    assert {n.domain for n in nodes} == {DOMAIN}
    assert sum(n.input[0] in constants for n in nodes) == len(spec)
    (ours,) = ReferenceEvaluator(model, new_ops=[Quant]).run(None, {file.inputs[0]: np.asarray(x)})
    # A value next to the middle of two codes may become the other one in one of the two.
    assert np.mean(np.abs(ours - expected) > 1e-5) < 0.02
    np.testing.assert_allclose(ours, expected, atol=0.1)


def test_qonnxs_runtime_computes_it(net, tmp_path):
    pytest.importorskip("qonnx")
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    f, params, x = net
    spec = calibrate(f, params, [x], {"*:linear": jaxeff.Int(4, 8, symmetric="weights")}).spec
    file = to_qonnx(f, (params, x), spec, tmp_path / "net.onnx")
    model = ModelWrapper(str(file.path)).transform(InferShapes())
    results = execute_onnx(model, {file.inputs[0]: np.asarray(x)})
    expected = jaxeff.quantized(f, spec)(params, x)
    assert np.mean(np.abs(results[file.outputs[0]] - expected) > 1e-5) < 0.02


def test_what_quant_cannot_say_is_refused(net, tmp_path):
    f, params, x = net
    path = tmp_path / "net.onnx"
    with pytest.raises(OnnxError, match="ranges that are known"):
        to_qonnx(f, (params, x), {"*:linear": jaxeff.Int(8)}, path)
    with pytest.raises(OnnxError, match="the spec quantizes nothing; to_onnx"):
        to_qonnx(f, (params, x), {"*:linear": None}, path)
    assert not path.exists()
    spec = calibrate(f, params, [x], {"*:linear": jaxeff.Int(8)}).spec
    with pytest.raises(OnnxError, match="rounds nothing itself"):
        to_qonnx(lambda p, x: jnp.round(f(p, x)), (params, x), spec, path)
