"""The study of keyword spotting: its claims hold where pieces fit, and fail where they don't."""

import dataclasses
import shutil
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import jaxeff
from experiments.beyond.keyword_spotting.__main__ import STUDY, Settings, board_row, stage_row
from experiments.beyond.keyword_spotting.network import spotter
from experiments.beyond.keyword_spotting.recordings import FRONT, features, tones
from experiments.beyond.keyword_spotting.training import CLASSES, Stage, logits, standardized
from experiments.harness import Report
from jaxeff.compression import Int, calibrate

SETTINGS = Settings(speech=False, emulated=4)


def _verdicts(*rows):
    report = Report("keyword_spotting", "default", dataclasses.asdict(SETTINGS), list(rows))
    STUDY.judge(report)
    return {check["name"].partition(":")[0]: check["passed"] for check in report.checks}


@pytest.mark.slow
def test_claims_fail_where_pieces_do_not_fit():
    """A random network, whose integers stand for it; then one piece is another network's."""
    if not all(map(shutil.which, ("arm-none-eabi-gcc", "qemu-system-arm"))):
        pytest.skip("arm-none-eabi-gcc and qemu-system-arm not found")
    sounds = tones(4)
    x, held = (features(audio) for audio, _ in (sounds.test, sounds.held))
    bare, params = jaxeff.functional(
        spotter(FRONT.cepstra or FRONT.bands, CLASSES, 8, 1, nnx.Rngs(0))
    )
    standard = standardized(x.mean((0, 1, 2)), x.std((0, 1, 2)))

    def f(params, x):
        return bare(params, standard(x))

    spec = calibrate(f, params, [x], {"*:linear": Int(8)}).spec
    g = jaxeff.integer(f, spec)
    codes = g.convert(params, x[:1])

    def stage(name, f, params):
        return Stage(name, f, params, *(logits(f, params, part) for part in (held, x)))

    grid = stage("trained on its grid", jaxeff.quantized(f, spec), params)
    whole = stage("integer", g, codes)
    # Labels that the network has right: every word is taken whose logits are apart enough.
    labels = {part: getattr(whole, part).argmax(1).astype(np.int32) for part in ("held", "test")}
    sounds = dataclasses.replace(
        sounds, held=(sounds.held[0], labels["held"]), test=(sounds.test[0], labels["test"])
    )
    run: Any = SimpleNamespace(say=lambda text: None)
    row = board_row(run, whole, sounds, SETTINGS)
    agreeing = stage_row(whole, grid, sounds, SETTINGS.share)
    found = _verdicts(row, agreeing)
    places = tuple(
        name for name in found if name.startswith(("recordings with", "test recordings"))
    )
    assert len(places) == 2
    assert all(found[name] for name in places), row
    assert found["integers decide as the grid that they were trained on"], agreeing
    assert row["right"] > 0
    # Logits of other parameters: the library's decisions aren't those of the stage any more.
    others = jax.tree.map(lambda w: -w, params)
    stranger = dataclasses.replace(grid, test=logits(f, others, x))
    apart = _verdicts(stage_row(whole, stranger, sounds, SETTINGS.share))
    assert not apart["integers decide as the grid that they were trained on"]
    swapped = {**row, "in_batches": row["in_batches"] - 1, "same": row["same"] - 1}
    assert not any(_verdicts(swapped)[name] for name in places)
