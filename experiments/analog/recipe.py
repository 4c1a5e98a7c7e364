"""How much is measured and trained at each size."""

from dataclasses import dataclass
from typing import Annotated, Literal

from experiments.harness import SELECTS, Count, Least
from experiments.recipes import Selected, Training

Part = Literal["models", "images", "speech", "order", "sequences"]


@dataclass(frozen=True)
class Settings(Training, Selected):
    """Chips, networks and epochs.

    Attributes:
        chips: Numbers of the synthetic chips.
        data: The image data set.
        images: Training images.
        test_images: Test images.
        widths: Hidden layers of the image classifier.
        digital: Epochs of digital training before anything analog.
        retrain: Epochs of retraining (the source: 300); shares of them are the short loops.
        programs: Weight matrices under which single rows, and full drive, are measured.
        event_programs: Weight matrices of the measurement of order.
        event_epochs: Epochs of the sequence models.
        order_chips: Chips whose order is modelled.
        sequence_chips: Chips for networks through sequence models; 0 leaves them out.
        sequence_size: Rows and columns of their arrays, whose attention grows with the square.
        sequence_images: Training images of these networks, of 8 by 8 pixels.
        sequence_retrain: Epochs of their retraining; the loop has a sixth.
        speech: Chips for keyword spotting; 0 leaves it out.
        speech_widths: Hidden layers of its classifier (the source: 1024, 128).
        speech_bands: Mel bands, and as many frames.
        hours: Of drift.
        parts: Parts to run; all if none is given.
    """

    chips: tuple[int, ...] = (0, 1, 2, 3, 4)
    data: str = "mnist"
    images: Count = 3000
    test_images: Count = 1500
    widths: tuple[Count, ...] = (64, 32)
    digital: Count = 20
    retrain: Count = 30
    programs: Annotated[int, Least(2)] = 32
    order_chips: Annotated[int, Least(0)] = 5
    event_programs: Count = 96
    sequence_chips: Annotated[int, Least(0)] = 3
    hours: float = 24.0
    event_epochs: Count = 10
    sequence_size: Annotated[int, Least(8)] = 32
    sequence_images: Count = 1000
    speech: Annotated[int, Least(0)] = 1
    speech_widths: tuple[Count, ...] = (128, 64)
    sequence_retrain: Count = 18
    speech_bands: Count = 16
    parts: Annotated[tuple[Part, ...], SELECTS] = ()


SIZES = {
    "fast": Settings(
        (0, 1), "digits", 1000, 360, (32,), 10, 6, programs=8, event_programs=16, event_epochs=3,
        order_chips=1, sequence_chips=1, sequence_size=16, sequence_images=400,
        sequence_retrain=6, speech=0, batch_size=50, rate=1e-3,
    ),
    "default": Settings(batch_size=50, rate=1e-3),
    "full": Settings(
        images=60_000, test_images=10_000, widths=(1024, 128), retrain=300, batch_size=100,
        rate=1e-3, event_programs=512, event_epochs=100, sequence_chips=5, sequence_size=64,
        sequence_retrain=300, speech=5, speech_widths=(1024, 128),
        speech_bands=32,
    ),
}  # fmt: skip
