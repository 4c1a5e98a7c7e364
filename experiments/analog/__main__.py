"""Networks on analog chips: models learnt from a chip's answers, and retraining with them.

    python -m experiments.analog

1. linear, columnar and white-box models, fitted to what chips answer to integer codes: their errors
   over the number of active rows (Klein's thesis, figure 5.6);
2. whether the order of a sum's terms matters, and what a transformer that knows it gains over one
   that doesn't, with order-free chips as the control (section 5.4);
3. retraining by every strategy of the thesis: digital, quantized, noisy, through the white box with
   and without (growing) noise, with the chip in the loop, and combinations (table 5.1), on digits
   and on spoken words;
4. the same through transformers of every column, with and without the order of events
   (tables 5.2 and 5.3).

No chip is at hand. Those here are synthetic (`jaxeff.analog_hardware.Chip`), published before
any network was trained on them: the order of results can be compared with the thesis', its numbers
can't.
Source: Klein's thesis, chapter 5.
"""

from collections.abc import Callable
from typing import Any

from experiments.analog import chips, findings, training
from experiments.analog.recipe import SIZES, Part, Settings
from experiments.harness import Kept, Row, Run, Study

DIFFERENCES = (
    "every chip is synthetic: BrainScaleS-2 was not at hand, and absolute accuracies mean nothing",
    "images of digits stand in for the full Speech Commands, of which only the test recordings are "
    "at hand; keyword spotting is trained on four fifths of their speakers",
    "the thesis' 300 epochs of retraining are a tenth or fewer (`config` says), and the short "
    "loops the same shares",
    "hidden layers are narrower than the thesis' 1024 and 128 but at full size; those of the "
    "digits were chosen among four by how far the plain network falls, before any retraining",
    "the white box has the factors of the synthetic chips' own circuits, so it is well specified "
    "by construction; chips of circuits have the form of no model. The thesis' table is free, its "
    "chip real",
    "sizes of the chips' effects were chosen so that order matters; whether it does is no finding",
    "the thesis permutes all vectors alike and says that this destroys their order; positions that "
    "are learnt find it again, so order is judged against one shuffled anew for every vector and "
    "against none, and networks' non-ordered model has none",
    "the sequence models are of a few columns of a chip and 32 events, not of 256 and all rows; "
    "networks are trained through models of a whole small array, on digits of 8 by 8 pixels",
)


def _problem(run: Run[Settings], make: Any, devices: tuple[int, ...], name: str) -> list[Row]:
    """All rows of a data set: retraining, and the time of a step."""

    def rows() -> list[Row]:
        problem: training.Problem = make(run)
        boxes = [chips.white_box(run, d) for d in devices]
        trainer = training.Trainer(run, problem, devices, boxes)
        return [*trainer.rows(), training.step_times(problem, boxes[0])]

    return run.keep({"task": "training", "data": name}, rows)


def _asked(name: Part, make: Callable[[Run[Settings]], Any]) -> Kept[Settings]:
    """Declares a part that is run where the settings ask for it."""
    return Kept(lambda run: make(run) if run.settings.runs(name) else [])


def _images(run: Run[Settings]) -> list[Row]:
    return _problem(run, training.images, run.settings.chips, run.settings.data)


def _speech(run: Run[Settings]) -> list[Row]:
    devices = run.settings.chips[: run.settings.speech]
    return _problem(run, training.speech, devices, "speech-commands") if devices else []


PARTS = (
    _asked("models", chips.fidelities),
    _asked("images", _images),
    _asked("speech", _speech),
    _asked("order", chips.orders),
    _asked("sequences", lambda run: chips.sequences(run) if run.settings.sequence_chips else []),
)
STUDY = Study(
    "analog", __doc__, SIZES,
    PARTS, findings.CLAIMS, findings.PLOTS, findings.TABLES, DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
