"""Damaged, hostile and newer sources: a clear error, never a crash, a hang or another error."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest
from jaxeff_export.importer import StableHLOParseError, import_stablehlo

from tests.conformance.fuzz import Importer, judge, sources
from tests.conformance.sound_programs import artifacts

NEWER = b"StableHLO_v9.17.0"


@pytest.fixture(scope="module")
def importer():
    child = Importer()
    yield child
    child.stop()


@pytest.mark.process
def test_nothing_crashes_or_hangs_or_escapes(importer):
    faults = {}
    for kind, name, source in sources(texts=300, artifacts=20, seed=0):
        outcome, message = importer.outcome(source)
        fault = judge(kind, outcome, message)
        if fault is not None:
            faults[kind, name] = f"{fault}: {message[-500:]}"
    assert not faults


def test_a_cut_artifact_says_at_which_byte():
    artifact = artifacts()["network"]
    with pytest.raises(StableHLOParseError, match=r"byte \d+: the \w+ section should have \d+ by"):
        import_stablehlo(artifact[:-300])  # within the strings, however long its locations are


def test_a_newer_artifact_says_its_version():
    artifact = artifacts()["network"]
    version = artifact[artifact.index(b"StableHLO_v") :].split(b"\0")[0]
    newer = artifact.replace(version, NEWER[: len(version)].ljust(len(version), b"0"))
    with pytest.raises(StableHLOParseError, match=r"written by StableHLO 9\.17\.0\d*, newer than"):
        import_stablehlo(newer[:-40])


def test_an_interrupted_line_is_pointed_at():
    lines = ["func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {", "  %0 = stablehlo.abs %x :"]
    with pytest.raises(StableHLOParseError, match="line 2, column 2"):
        import_stablehlo("\n".join(lines))


def test_sources_repeat():
    def some():
        return list(itertools.islice(sources(texts=5, artifacts=5, seed=3), 200))

    assert some() == some()


def test_a_convolution_of_a_thousand_channels_is_no_damage():
    x, k = jnp.ones((1, 2, 2, 4)), jnp.ones((1, 1, 4, 1024))
    names = ("NHWC", "HWIO", "NHWC")
    f = lambda x: jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=names)  # noqa: E731
    text = jax.jit(f).lower(x).as_text()
    import_stablehlo(text)
    with pytest.raises(StableHLOParseError, match="dimension"):
        import_stablehlo(text.replace("[b, 0, 1, f]x", "[b, 1000, 1, f]x"))
