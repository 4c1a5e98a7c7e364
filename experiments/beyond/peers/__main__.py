"""Beside what a user would pick instead; run it with `python -m experiments.beyond.peers`.

Each row is a ratio of ours over a peer's, or a count of ours, beside what is asked of it. Times are
of the process, so that others on the machine don't slow them, and of one thread (but for
`threads`): a subject is measured by a process of its own on a single processor. Ours and the peer's
take turns, and a ratio is the median over rounds. A peer that isn't installed is named, and its row
is empty. Before anything is timed, results are held against the peer's, or against JAX's.

1. `start`, `memory`: a process loads a bundle and computes its first result, over ONNX Runtime.
2. `deploy`: seconds of `jaxeff_export.deploy`, TVM loaded before; `disk`: the folder's bytes over
   those of ONNX's file (int8: by ONNX Runtime's static quantizer, with a scale for each channel).
3. `layers`: padded max pooling, LSTM and GRU over ONNX Runtime, and int8 depthwise over float.
4. `again`: programs that a second call with other data of the same shapes compiles.
5. `members`: a step and a forward pass of five networks as an ensemble, over five apart; again
   where the allocator keeps memory between steps.
6. `conformal`, `calibration`, `laplace`, `pruning`: over MAPIE, torchmetrics, laplace-torch and
   Torch-Pruning, whose network is run by ONNX Runtime.
7. `quantized`: its equations and its compilation over the function's own; `report`: its seconds.
8. `threads`: bundles on two threads over one, by the clock, which wants a quiet machine; nothing is
   asked of calls that one thread makes in less than 5 ms.
9. `mesh`: an epoch of `fit` on two devices over jitted steps on batches that are cut by hand.
10. `limits`: layers of a bundle over what the core can do at most, which a program in C measures
   that multiplies bytes or floats and does nothing else, or reads memory.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, get_args

from matplotlib.axes import Axes

from experiments import harness as h

Subject = Literal[
    "start", "deploy", "layers", "again", "members", "conformal", "calibration", "laplace",
    "pruning", "quantized", "report", "threads", "mesh", "limits",
]  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    rounds: h.Count = 7  # rounds of each timing
    subjects: Annotated[tuple[Subject, ...], h.SELECTS] = get_args(Subject)  # what is measured
    pixels: h.Count = 224  # of MobileNetV2's images, which is 32 wide in its stem
    narrow: bool = False  # whether networks are narrow, and have few layers
    examples: h.Count = 100_000  # predictions of 100 classes
    images: h.Count = 500  # images of the report


KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "1000000000"}
"""For glibc, which gives blocks above 32 MB back to the system and fetches them page by page."""


def measured(run: h.Run[Settings], subject: str) -> list[h.Row]:
    """Measures a subject in a process of its own, which has one processor."""
    rows = _rows(run.settings, subject, {})
    if subject == "members":
        kept = _rows(run.settings, subject, KEEPS_MEMORY)
        rows += [row | {"what": f"{row['what']}, memory kept"} for row in kept]
    for row in rows:
        if "missing" in row:
            run.say(f"without {row['peer']}: {row['missing']}")
    return rows


def _rows(settings: Settings, subject: str, environment: dict[str, str]) -> list[h.Row]:
    flags = "--xla_cpu_multi_thread_eigen=false"
    if subject == "mesh":
        flags += " --xla_force_host_platform_device_count=2"
    of_all = {"XLA_FLAGS": flags, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", f"{__package__}.worker", subject, json.dumps(asdict(settings))],
        env=os.environ | of_all | environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    rows: list[h.Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


def _asked(row: dict[str, Any]) -> Any:
    return row["asked"]


def _shares(report: h.Report) -> list[h.Row]:
    """Divides the ratios by those that are asked."""
    ratios = [row for row in report.rows if row["unit"] == "ratio" and "value" in row]
    return [row | {"of asked": row["value"] / row["asked"]} for row in ratios]


def _upright(axis: Axes, report: h.Report) -> None:
    """Turns the names, which are long."""
    del report
    axis.tick_params(axis="x", labelrotation=90)


STUDY = h.Study(
    "peers", __doc__,
    {
        "fast": Settings(3, pixels=32, narrow=True, examples=2000, images=16),
        "default": Settings(),
        "full": Settings(rounds=21),
    },
    (h.Part(lambda run: run.settings.subjects, measured),),
    (
        h.Claim("{what}: results agree", lambda row: int(row["agrees"]), h.equals(1), 1,
                h.having("agrees")),
        h.Claim("{what} over {peer}", "value", h.at_most(_asked), _asked,
                h.where(unit="ratio"), "default", when=lambda row: "value" in row),
        h.Claim("{what}: {unit}", "value", h.at_most(_asked), _asked, h.having("value"), "default",
                when=lambda row: row["unit"] != "ratio" and row["asked"] is not None),
    ),
    (
        h.Plot("ratios", h.Bars("what", {"of asked": "of what is asked"}, _shares, guides=(1.0,),
                                then=_upright, axes={"ylabel": "ratio, of the one that is asked",
                                                     "yscale": "log"}), size=(9, 5)),
    ),
    (
        h.Listing("beside peers", ("what", "peer", "unit", "value", "asked", "ours", "theirs"),
                  h.having("value")),
        h.Listing("not installed", ("what", "peer", "missing"), h.having("missing")),
    ),
    differences=(
        "The thesis compares with none of these.",
        "Parameters are random where speed doesn't depend on them.",
        "ONNX's files are written by `to_onnx`; LSTM and GRU are ONNX's own operators.",
        "TVM's runtime imports PyTorch where it is installed; processes of `start` have none.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
