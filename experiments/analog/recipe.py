"""How much is measured and trained at each size."""

from dataclasses import dataclass
from typing import Annotated, Literal

from experiments.harness import SELECTS, Count, Least
from experiments.recipes import Selected, Training

Part = Literal["models", "images", "speech", "order", "sequences"]


@dataclass(frozen=True)
class Settings(Training, Selected):
    """Chips, networks and epochs."""

    chips: tuple[int, ...] = (0, 1, 2, 3, 4)  # numbers of the synthetic chips
    data: str = "mnist"  # the image data set
    images: Count = 3000  # training images
    test_images: Count = 1500  # test images
    widths: tuple[Count, ...] = (64, 32)  # hidden layers of the image classifier
    digital: Count = 20  # epochs of digital training before anything analog
    # epochs of retraining (the thesis: 300); shares of them are the short loops
    retrain: Count = 30
    # weight matrices under which single rows, and full drive, are measured
    programs: Annotated[int, Least(2)] = 32
    order_chips: Annotated[int, Least(0)] = 5  # chips whose order is modelled
    # columns of each, with a model for every one (the thesis: 256); its tasks say how many
    order_columns: Annotated[int, Least(1), SELECTS] = 4
    event_programs: Count = 96  # weight matrices of the measurement of order
    # chips for networks through sequence models; 0 leaves them out
    sequence_chips: Annotated[int, Least(0)] = 3
    event_epochs: Count = 10  # epochs of the sequence models
    # rows and columns of their arrays, whose attention grows with the square
    sequence_size: Annotated[int, Least(8)] = 32
    sequence_images: Count = 1000  # training images of these networks, of 8 by 8 pixels
    speech: Annotated[int, Least(0)] = 1  # chips for keyword spotting; 0 leaves it out
    # hidden layers of its classifier (the thesis: 1024, 128)
    speech_widths: tuple[Count, ...] = (128, 64)
    sequence_retrain: Count = 18  # epochs of their retraining; the loop has a sixth
    speech_bands: Count = 16  # mel bands, and as many frames
    parts: Annotated[tuple[Part, ...], SELECTS] = ()  # parts to run; all if none is given


SIZES = {
    "fast": Settings(
        (0, 1), "digits", 1000, 360, (32,), 10, 12, programs=8, event_programs=16, event_epochs=3,
        order_chips=2, order_columns=2, sequence_chips=1, sequence_size=16, sequence_images=400,
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
