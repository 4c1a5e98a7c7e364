"""A submission to MLPerf Tiny as a folder: the system, the code, logs and results.

The layout is that of MLCommons' repositories of results (v1.3)::

    open/SUBMITTER/systems/SYSTEM.json
    open/SUBMITTER/code/keyword_spotting/SYSTEM/...
    open/SUBMITTER/results/SYSTEM/kws/performance/{log.txt,results.txt,results.json}
    open/SUBMITTER/results/SYSTEM/kws/accuracy/{log.txt,results.txt,results.json}

Sharp edges:
    The division is the open one: the closed one has the reference's weights, and the runner's logs.
    Logs of these functions are none of the runner's: run it, and put its files in their place.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxeff import uncertainty
from jaxeff.core import instance_of, path_like, sequence_of, static_integer, validate
from jaxeff.store import atomic_folder
from jaxeff_export.clib import CLibrary
from jaxeff_export.mlperf_tiny._device import Inference, TinyDevice

_MARK = "submission.json"


@dataclasses.dataclass(frozen=True)
class Task:
    """A benchmark of MLPerf Tiny.

    Attributes:
      model: what the firmware calls its network.
      code: the folder of its code.
      metric: what its quality is measured by.
      target: the quality that the closed division asks for.
      bytes: bytes of an input, as the runner sends it.
    """

    model: str
    code: str
    metric: str
    target: float
    bytes: int


TASKS: Mapping[str, Task] = {
    "ic": Task("ic01", "image_classification", "Top-1", 0.85, 32 * 32 * 3),
    "kws": Task("kws01", "keyword_spotting", "Top-1", 0.90, 49 * 10),
    "vww": Task("vww01", "person_detection", "Top-1", 0.80, 96 * 96 * 3),
    "ad": Task("ad01", "anomaly_detection", "AUC", 0.85, 4 * 640),
}
"""The benchmarks, by their names in a submission."""

# Keys of a system's file, as all submissions of v1.3 have them.
_SYSTEM = (
    "Submitter", "Division", "Status", "Board Name",
    "Board Memory capacity (not including SoC, processor, or accelerator)", "Board Memory type",
    "Board storage capacity", "Board storage type", "SoC Name",
    "SoC Memory capacity (not including processor or accelerator)", "SoC Memory type",
    "SoC storage capacity", "SoC storage type", "Processor(s) Name", "Processor(s) Frequencies",
    "Processor memory type and capacity", "Processor storage type and capacity", "Accelerator",
    "Accelerator(s) Frequencies", "Accelerator memory type and capacity",
    "Accelerator storage type and capacity", "Hardware Notes", "Inference Framework",
    "Software Libraries", "Operating System", "Other Software Stack", "Software Notes",
    "Quantization Method", "Training framework (open division)", "ML Model Compiler(s)",
    "General Compiler(s)", "Other Software", "Training and Quantization Notes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Entry:
    """One benchmark of a submission.

    Attributes:
      task: ``"ic"``, ``"kws"``, ``"vww"`` or ``"ad"``.
      library: the C library in its firmware, or its folder, which is copied as the code.
      performance: calls on some inputs, timed by the device.
      outcomes: calls on the inputs whose labels are known.
      labels: of these the classes, or, of anomaly detection, whether they are anomalies.
      instructions: that a call executes, counted in an emulator, which has no clock.
      log: what the device was sent, and said.
    """

    task: str
    library: CLibrary | str | Path
    performance: Sequence[Inference] = ()
    outcomes: Sequence[Inference] = ()
    labels: Sequence[int] = ()
    instructions: int | None = None
    log: Sequence[str] = ()

    @property
    def quality(self) -> float | None:
        """Share of right classes, or area under the ROC curve; None without outcomes."""
        if not self.outcomes:
            return None
        # One result of a sound, as many of others as there are classes.
        results = np.array([outcome.results for outcome in self.outcomes])
        labels = np.asarray(self.labels)
        if TASKS[self.task].metric == "Top-1":
            return float((results.argmax(1) == labels).mean())
        scores = results[:, 0]
        return float(uncertainty.auroc(scores[labels == 0], scores[labels != 0]))


@validate(
    inputs=sequence_of(instance_of(bytes)),
    calls=static_integer(),
    warmups=static_integer(0),
)
def measure(
    device: TinyDevice, inputs: Sequence[bytes], *, calls: int = 1, warmups: int = 0
) -> list[Inference]:
    """Runs the network of a device on several inputs, one after the other.

    ```python
    from jaxeff_export.mlperf_tiny import Inference, TinyDevice, measure

    class Imagined(TinyDevice):                          # a real one: TinyDevice("/dev/ttyACM0")
        def infer(self, data, calls=1, warmups=0):
            return Inference((float(data[0]),), 250 * calls, calls)

    timed = measure(Imagined("none"), [b"a", b"b"], calls=100, warmups=10)
    assert [window.throughput for window in timed] == [4000, 4000]
    ```

    Args:
      device: an open one.
      inputs: all bytes of each.
      calls: number of timed calls on each. The rules ask for ten seconds of them.
      warmups: number of calls before these.

    Raises:
      BoardError: if the device refuses an input, or is lost.
    """
    return [device.infer(data, calls, warmups) for data in inputs]


@validate(
    path=path_like,
    entries=sequence_of(instance_of(Entry)),
    submitter=instance_of(str),
    system=instance_of(str),
    facts=instance_of(Mapping),
)
def submission(
    path: str | Path,
    entries: Sequence[Entry],
    *,
    submitter: str,
    system: str,
    facts: Mapping[str, str],
) -> Path:
    """Writes a submission's folder, of the open division, whole or not at all.

    ```python
    import jax
    from jaxeff_export import deploy, mlperf_tiny

    def scores(weights, x):                                  # 490 bytes, as the runner sends them
        return jax.nn.softmax(x.astype("float32") @ weights)

    weights = jax.numpy.zeros((490, 12))
    bundle = deploy(scores, (weights, jax.numpy.zeros((1, 490), "int8")))
    library = bundle.export_c("net_c", name="net")
    entry = mlperf_tiny.Entry("kws", library, instructions=61_000)
    folder = mlperf_tiny.submission(
        "sent", [entry], submitter="us", system="m4", facts={"Board Name": "an emulated Cortex-M4"},
    )
    assert (folder / "results/m4/kws/performance/results.txt").exists()
    ```

    Args:
      path: the folder; one that was written before is replaced.
      entries: the benchmarks, each once.
      submitter: who submits, the name of a folder.
      system: what is measured, the name of files and folders.
      facts: what is known of it, by the keys of MLPerf Tiny's description of a system.

    Returns:
      The submitter's folder in it.

    Raises:
      ValueError: if a name is none of a folder, a key isn't known, a benchmark comes twice or isn't
        known, or outcomes and labels differ in number.
      NotADirectoryError: if a library's folder isn't there.
      FileExistsError: if `path` holds anything but a submission's files.
    """
    _require_sound(entries, submitter, system, facts)
    path = Path(path)
    with atomic_folder(path, _MARK, json.loads) as folder:
        _write_home(folder / "open" / submitter, entries, system, {"Submitter": submitter, **facts})
        names = [
            file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
        ]
        # Lists what is the submission's, so that nothing else is replaced with it.
        (folder / _MARK).write_text(_json(sorted(names)))
    return path / "open" / submitter


def _write_home(
    home: Path, entries: Sequence[Entry], system: str, facts: Mapping[str, str]
) -> None:
    """Writes a submitter's folder."""
    described = dict.fromkeys(_SYSTEM, "") | {
        "Division": "Open", "Status": "Research", "Inference Framework": "jaxeff",
        "Software Libraries": "none", "Training framework (open division)": "JAX",
        "ML Model Compiler(s)": "jaxeff, TVM",
    }  # fmt: skip
    _write(home / "systems" / f"{system}.json", _json(described | dict(facts)))
    # By the reference's names, as reviewers look for a benchmark's code.
    for entry in entries:
        code = home / "code" / TASKS[entry.task].code / system
        library = entry.library
        shutil.copytree(library.folder if isinstance(library, CLibrary) else library, code)
        _write_results(entry, home / "results" / system / entry.task)


def _require_sound(
    entries: Sequence[Entry], submitter: str, system: str, facts: Mapping[str, str]
) -> None:
    # Names of the folders that the rules ask for.
    for what, name in (("submitter", submitter), ("system", system)):
        if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
            raise ValueError(
                f"{what}={name!r} becomes the name of a folder: letters, digits, '_', '-' and '.'"
            )
    if odd := sorted({*facts} - {*_SYSTEM}):
        raise ValueError(f"facts: {odd[0]!r} is no key of a system; they are {', '.join(_SYSTEM)}")
    tasks = [entry.task for entry in entries]
    if not tasks or len(set(tasks)) < len(tasks) or not {*tasks} <= {*TASKS}:
        raise ValueError(f"entries: each of {', '.join(TASKS)} once at most, got {tasks}")
    for entry in entries:
        if not isinstance(entry.library, CLibrary) and not Path(entry.library).is_dir():
            raise NotADirectoryError(f"entry {entry.task}: {entry.library} is no library's folder")
        if len(entry.outcomes) != len(entry.labels):
            raise ValueError(
                f"entry {entry.task}: {len(entry.outcomes)} outcomes and {len(entry.labels)} labels"
            )


def _write_results(entry: Entry, folder: Path) -> None:
    """Writes what was measured: what was not leaves no file."""
    said = [f"jaxeff.mlperf_tiny: {entry.task}, not measured by MLCommons' runner"]
    # As the runner: the median over windows, in calls a second.
    if entry.performance:
        rates = [window.throughput for window in entry.performance]
        said.append(f"Median throughput is {np.median(rates):.3f} inf./sec.")
    if entry.instructions is not None:
        said.append(f"Instructions of a call: {entry.instructions} (emulated: no throughput)")
    windows = [window._asdict() for window in entry.performance]
    measured = {"windows": windows, "instructions": entry.instructions}
    _write_run(folder / "performance", said, measured, entry.log)
    quality = entry.quality
    if quality is not None:
        task = TASKS[entry.task]
        text = f"{100 * quality:.1f} %" if task.metric == "Top-1" else f"{quality:.3f}"
        said = [said[0], f"{task.metric} = {text} of {len(entry.labels)} inputs"]
        said.append(f"The closed division asks for {task.target:g}")
        files = [
            {"class": int(label), "results": outcome.results}
            for label, outcome in zip(entry.labels, entry.outcomes, strict=True)
        ]
        _write_run(folder / "accuracy", said, {"quality": quality, "files": files}, entry.log)


def _write_run(folder: Path, said: Sequence[str], measured: Any, log: Sequence[str]) -> None:
    _write(folder / "results.txt", "\n".join(said) + "\n")
    _write(folder / "results.json", _json(measured))
    _write(folder / "log.txt", "\n".join([*said, *log]) + "\n")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
