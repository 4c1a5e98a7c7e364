"""Networks on analog chips: models learnt from a chip's answers, and retraining with them.

    python -m experiments.analog

1. linear, columnar and white-box models, fitted to what chips answer to integer codes: their errors
   over the number of active rows (Klein's thesis, figure 5.6);
2. whether the order of a sum's terms matters, and what a transformer that knows it gains over one
   that doesn't, with order-free chips as the control (section 5.4);
3. retraining by every strategy of the source: digital, quantized, noisy, through the white box with
   and without (growing) noise, with the chip in the loop, and combinations (table 5.1), on digits
   and on spoken words;
4. the same through transformers of every column, with and without the order of events
   (tables 5.2 and 5.3);
5. drift, and recalibration of the columns.

No chip is at hand. Those here are synthetic (`jaxeff.analog_hardware.crossbar`), published before
any network was trained on them: the order of results can be compared with the source's, its numbers
can't.
Source: Klein's thesis, chapter 5.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments.analog import chips, figure, judging, problems
from experiments.analog.recipe import SIZES, Settings
from experiments.analog.sequences import sequences
from experiments.analog.training import Problem, Trainer, step_times
from experiments.harness import Found, Report, Row, Run, Study, Table

DIFFERENCES = (
    "every chip is synthetic: BrainScaleS-2 was not at hand, and absolute accuracies mean nothing",
    "images of digits stand in for the full Speech Commands, of which only the test recordings are "
    "at hand; keyword spotting is trained on four fifths of their speakers",
    "300 epochs of retraining are 30 here (`config` says), and the short loops the same shares",
    "hidden layers are narrower than the source's 1024 and 128 but at full size; those of the "
    "digits were chosen among four by how far the plain network falls, before any retraining",
    "the sequence models are of two columns of a chip and 32 events, not of 256 and all rows; "
    "networks are trained through models of a whole array of 32 by 32, on digits of 8 by 8 pixels",
    "seconds are of the whole stage, compilation included, over the chips that ran at once",
)


def run(run: Run[Settings]) -> Found:
    """Measures chips, then retrains for them."""
    settings = run.settings
    rows: list[Row] = []
    if settings.runs("models"):
        rows += chips.fidelities(run)
    if settings.runs("images"):
        rows += _problem(run, problems.images, settings.chips, settings.data)
    if settings.speech and settings.runs("speech"):
        devices = settings.chips[: settings.speech]
        rows += _problem(run, problems.speech, devices, "speech-commands")
    if settings.runs("order"):
        rows += chips.orders(run)
    if settings.sequence_chips and settings.runs("sequences"):
        rows += sequences(run)
    arrays = chips.column(run, settings.chips[0]) if settings.runs("models") else {}
    return Found(rows, arrays=arrays)


def _problem(run: Run[Settings], make: Any, devices: tuple[int, ...], name: str) -> list[Row]:
    """All rows of a data set: retraining, drift, the time of a step."""

    def rows() -> list[Row]:
        problem: Problem = make(run)
        boxes = [chips.white_box(run, d) for d in devices]
        stacked = jax.tree.map(lambda *a: jnp.stack([jnp.asarray(x) for x in a]), *boxes)
        trainer = Trainer(run, problem, devices, stacked)
        return [*trainer.rows(), *trainer.drift_rows(), step_times(problem, boxes[0])]

    return run.keep({"task": "training", "data": name}, rows)


def tables(report: Report) -> Sequence[Table]:
    """The source's tables beside ours."""
    rows = report.rows
    shown = [
        Table.from_rows(
            f"{data}: retraining for synthetic chips, accuracy in %",
            judging.strategies(rows, data),
            ("strategy", "chips", "epochs", "seconds", "software", "on_chip", "worst", "best"),
        )
        for data in dict.fromkeys(r["data"] for r in judging.of(rows, kind="training"))
    ]
    fidelity = judging.of(rows, kind="fidelity")
    models = [
        {"model": model, "chips": "synthetic" if ordered else "synthetic, order-free", "active": n,
         "error": judging.mean(own, "error"), "noise": judging.mean(own, "noise"),
         "ratio": judging.mean(own, "ratio")}
        for ordered in (True, False)
        for model in chips.MODELS
        for n in (8, 32, 128)
        if (own := judging.of(fidelity, model=model, ordered=ordered, active=n))
    ]  # fmt: skip
    order = ("chip", "rms", "control", "noise", "mse_time", "mse_permuted", "mse_none", "mse_ratio")
    drift = ("data", "chip", "hours", "fresh", "drifted", "recalibrated")
    step = ("data", "chip", "quantized", "white box", "ratio")
    return [
        *shown,
        Table.from_rows("errors of models in counts", models),
        Table.from_rows(
            "networks through models of sequences, accuracy in %",
            judging.through_sequences(rows),
            ("model", "chips", "data", *judging.SEQUENCE_COLUMNS),
        ),
        Table.from_rows("effects of order in counts", judging.of(rows, kind="order"), order),
        Table.from_rows("drift: accuracy in %", judging.of(rows, kind="drift"), drift),
        Table.from_rows("seconds of a training step", judging.of(rows, kind="step"), step),
    ]


STUDY = Study(
    "analog", __doc__, SIZES, (run,), (judging.judge,), (figure.draw,), (tables,), DIFFERENCES
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
