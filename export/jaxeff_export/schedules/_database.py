"""The folder that keeps measurements, for every later compilation of the same kernels.

    jaxeff-tuning.json             what this folder is, and the TVM that made it
    <target>/target.json           the target, in full
    <target>/choices.jsonl         per kernel, what a session found best
    <target>/<space>/*.jsonl       MetaSchedule's database: every candidate measured

Everything below a target's folder was measured for that target, so targets cannot be confused.
Files only grow, a line at a time: a killed process loses only the candidate it was measuring.

Sharp edge: traces are programs for TVM's scheduler, so a database of unknown origin should be
treated like code of unknown origin.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxeff.store import CheckpointError, add_line, read_lines, repair_lines, write_atomically
from jaxeff_export.schedules import TuningError

if TYPE_CHECKING:
    from tvm.s_tir import meta_schedule as ms

HEADER = "jaxeff-tuning.json"
_FORMAT = "jaxeff-tuning"
_FORMAT_VERSION = 1
FAILED = 1e10  # seconds, MetaSchedule's sign of a candidate that failed


@dataclass(frozen=True)
class ScheduleChoice:
    """A session's decision for one kernel.

    Attributes:
      workload: the structural hash of the kernel.
      trace: the schedule that beat the default one, as MetaSchedule writes it; None if none did.
      microseconds: one call of the kernel so scheduled.
      default: a digest of the default schedule it was compared with.
      default_microseconds: one call with that, measured alternately.
      trials: number of candidates measured by then.
      space: source that proposed them.
    """

    workload: str
    trace: Any
    microseconds: float
    default: str
    default_microseconds: float
    trials: int
    space: str


class TuningDatabase:
    """A database's folder.

    Args:
      path: the folder; it is made by the first record.

    Raises:
      TuningError: if `path` holds something else, or the work of another TVM.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._check()

    def choices(self, target: Mapping[str, Any]) -> dict[str, ScheduleChoice]:
        """Reads the choices for a target: of each kernel the latest one."""
        file = self.folder(target) / "choices.jsonl"
        try:
            choices = [ScheduleChoice(**value) for value in _lines(file)]
        except TypeError as error:
            raise TuningError(f"{file} is no list of choices: {error}") from error
        # Lines are only ever added: of one kernel's the last one wins.
        return {choice.workload: choice for choice in choices}

    def choose(self, target: Mapping[str, Any], choice: ScheduleChoice) -> None:
        """Adds a decision; it replaces earlier ones for that kernel."""
        add_line(self._open(target) / "choices.jsonl", asdict(choice))

    def records(self, target: Mapping[str, Any], space: str) -> ms.database.JSONDatabase:
        """Opens MetaSchedule's database for a target and a space, mended if it was cut short.

        Raises:
          TuningError: if it is damaged otherwise.
        """
        from tvm.s_tir import meta_schedule as ms

        folder = self._open(target) / space
        folder.mkdir(exist_ok=True)
        workloads, records = folder / "workloads.jsonl", folder / "records.jsonl"
        # Records name their workload by its line, so that the two files have to fit.
        known = len(_mended(workloads))
        for number, value in enumerate(_mended(records), 1):
            if not isinstance(value, list) or not 0 <= value[0] < known:
                raise TuningError(
                    f"line {number} of {records} belongs to no line of {workloads.name}; the two "
                    f"files are not of one database; delete {folder} to measure again"
                )
        try:
            return ms.database.JSONDatabase(str(workloads), str(records))
        except Exception as error:
            reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
            raise TuningError(
                f"TVM cannot read {folder} ({reason}); delete it to measure again"
            ) from error

    def folder(self, target: Mapping[str, Any]) -> Path:
        """Names the folder of a target's measurements."""
        # The hash covers every setting of the target: another core count is another folder.
        text = _written(target)
        name = str(target.get("mcpu", target.get("kind", "target")))
        return self.path / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @contextmanager
    def locked(self, target: Mapping[str, Any]) -> Iterator[None]:
        """Keeps other processes from adding to a target's measurements.

        Raises:
          TuningError: if one is doing so.
        """
        with (self._open(target) / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TuningError(
                    f"another process is tuning into {self.path} for this target; wait for it, "
                    "or give another folder"
                ) from None
            yield

    def _open(self, target: Mapping[str, Any]) -> Path:
        """Opens a target's folder, and makes it if need be."""
        folder = self.folder(target)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _write_once(self.path / HEADER, json.dumps(_header(), indent=1))
            folder.mkdir(exist_ok=True)
            _write_once(folder / "target.json", _written(target))
        except OSError as error:
            raise TuningError(f"{self.path} cannot be written to: {error.strerror}") from error
        # A line cut short by a killed process would swallow the next one.
        _mend(folder / "choices.jsonl")
        return folder

    def _check(self) -> None:
        # Hidden files may be left of a write that was killed before the header existed.
        if not self.path.exists() or (self.path.is_dir() and not _visible(self.path)):
            return
        try:
            header = json.loads((self.path / HEADER).read_bytes())
            form, number, tvm_version = (header[key] for key in _header())
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise TuningError(
                f"{self.path} is no tuning database: it has no readable {HEADER}; give a folder "
                "that is empty or does not exist yet"
            ) from None
        if (form, number) != (_FORMAT, _FORMAT_VERSION):
            raise TuningError(
                f"{self.path} has format {form} {number}, this jaxeff reads {_FORMAT} "
                f"{_FORMAT_VERSION}; tune into another folder"
            )
        # Structural hashes and traces hold for one version of TVM only.
        if tvm_version != (here := _header()["apache-tvm"]):
            raise TuningError(
                f"{self.path} was made by TVM {tvm_version}, this is TVM {here}, whose kernels and "
                f"schedules differ; tune into another folder, or install apache-tvm=={tvm_version}"
            )


def has_failed(seconds: float) -> bool:
    """Tells whether a recorded time is that of a candidate that failed."""
    # Well below FAILED, and still far above any real time.
    return seconds >= 0.1 * FAILED


def _header() -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "apache-tvm": metadata.version("apache-tvm"),
    }


def _written(target: Mapping[str, Any]) -> str:
    return json.dumps(dict(target), sort_keys=True)


def _write_once(path: Path, text: str) -> None:
    """Writes a small file whole or not at all, unless it exists."""
    if not path.exists():
        write_atomically(path, text)


def _visible(folder: Path) -> list[Path]:
    """Lists a folder's files but hidden ones, which a killed process may leave."""
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _lines(path: Path) -> list[Any]:
    try:
        return read_lines(path)
    except CheckpointError as error:
        raise TuningError(str(error)) from error


def _mend(path: Path) -> None:
    try:
        repair_lines(path)
    except CheckpointError as error:
        raise TuningError(str(error)) from error


def _mended(path: Path) -> list[Any]:
    _mend(path)
    return _lines(path)
