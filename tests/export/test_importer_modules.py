"""How modules are read: sources, functions, control flow, composites, and bad input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from importer_oracle import assert_agrees, export, run
from jax import lax
from jaxeff_export.importer import StableHLOParseError, UnsupportedOpError, import_stablehlo
from tvm import relax

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _double(x):
    return x * 2 + 1


def test_every_kind_of_source():
    exported = export(_double, X)
    lowered = jax.jit(_double).lower(X)
    sources = [
        exported,
        exported.mlir_module(),
        exported.mlir_module_serialized,
        lowered.as_text(),
        lowered.compiler_ir("stablehlo"),
    ]
    for source in sources:
        (got,) = run(import_stablehlo(source), X)
        np.testing.assert_array_equal(got, _double(X))


def test_source_of_another_type():
    with pytest.raises(TypeError, match="not int"):
        import_stablehlo(3)


def test_arguments_keep_their_order_and_results_may_be_arguments():
    def swap(tree, unused, y):
        return y, tree["a"], tree["b"] + y, jnp.float32(7), y

    tree = {"b": X + 1, "a": X}
    assert_agrees(swap, tree, X + 2, X + 3, keep_unused=True)


def test_nested_and_repeated_private_functions():
    inner = jax.jit(lambda x: jnp.sin(x) + 1)
    outer = jax.jit(lambda x: inner(x) * inner(inner(x)))
    assert_agrees(lambda x: outer(x) + outer(x + 1), X, atol=1e-6)


def test_branches():
    def branches(x, i, p):
        case = lax.switch(i, [lambda x: x, lambda x: x * 2, lambda x: x - 1], x)
        return case, lax.cond(p, lambda x: (x, x + 1), lambda x: (x * 3, x), x)

    for i in (-1, 0, 1, 2, 9):
        assert_agrees(branches, X, jnp.int32(i), jnp.asarray(i > 0))


def test_loops_of_known_length():
    def loops(x):
        carried, stacked = lax.scan(lambda c, row: (c * 0.5 + row, c), x[0], x)
        return carried, stacked, lax.fori_loop(0, 5, lambda i, v: v + i, x)

    assert_agrees(loops, X)


def test_lowered_text_with_chlo_operations():
    def chlo(x):
        return lax.erf(x), lax.erf_inv(x / 10), jnp.sinh(x), lax.lgamma(x + 1), jnp.arccosh(x + 1)

    (got_all) = run(import_stablehlo(jax.jit(chlo).lower(X).as_text()), X)
    for got, want in zip(got_all, chlo(X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def _scaled(x, *, factor):
    return x * factor


def test_composites_are_inlined_or_taken_from_the_registry():
    composite = lax.composite(_scaled, name="test.scaled", version=1)

    def function(x):
        return composite(x, factor=np.float32(3.0)) + 1

    (inlined,) = run(import_stablehlo(export(function, X)), X)
    np.testing.assert_array_equal(inlined, 3 * X + 1)

    seen = {}

    def lowering(bb: relax.BlockBuilder, x: relax.Expr, **attributes) -> relax.Expr:
        seen.update(attributes)
        return bb.emit(relax.op.multiply(x, relax.const(10.0, "float32")))

    module = import_stablehlo(export(function, X), composites={"test.scaled": lowering})
    (replaced,) = run(module, X)
    np.testing.assert_array_equal(replaced, 10 * X + 1)
    assert float(seen["factor"]) == 3.0


def test_unsupported_operations_are_reported_together():
    def function(x):
        return jnp.prod(lax.complex(x, x)).real, lax.linalg.schur(x.T @ x)[0]

    with pytest.raises(UnsupportedOpError) as caught:
        import_stablehlo(export(function, X))
    names = {op.name for op in caught.value.ops}
    assert {"stablehlo.reduce", "stablehlo.custom_call"} <= names
    message = str(caught.value)
    assert "tensor<2x3xcomplex<f32>>" in message
    assert "test_importer_modules.py" in message


def test_text_that_does_not_parse_says_where():
    with pytest.raises(StableHLOParseError, match=r"line 2, column \d+"):
        import_stablehlo("func.func public @main() {\n  what is this\n}")


@pytest.mark.parametrize("text", ["", "module {}"])
def test_module_without_a_public_function(text):
    with pytest.raises(StableHLOParseError, match="no single public function"):
        import_stablehlo(text)


def test_bytes_that_are_no_artifact():
    with pytest.raises(StableHLOParseError, match="neither"):
        import_stablehlo(b"\xff\xfe\x00")


def test_constants_of_every_bfloat16():
    bits = np.arange(2**16, dtype=np.uint16)
    many = bits.view(jnp.bfloat16.dtype)  # long constants are printed otherwise than short ones
    few = [many[i : i + 16] for i in (0, 0x3F80, 0x7F78, 0x7F90, 0x8000, 0xFF78)]

    def constants():
        return [lax.bitcast_convert_type(jnp.asarray(c), jnp.uint16) for c in (many, *few)]

    for got, want in zip(run(import_stablehlo(export(constants))), [many, *few], strict=True):
        np.testing.assert_array_equal(got, want.view(np.uint16))


def test_programs_of_constants():
    values = jnp.asarray([0.1, 1.5, 3.0], jnp.bfloat16)
    assert_agrees(lambda: (jnp.arcsinh(values), lax.acosh(values + 1), jnp.cosh(values)))
