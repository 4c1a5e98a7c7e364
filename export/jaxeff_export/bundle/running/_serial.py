"""A bundle whose C library is in the firmware of a board on a serial line."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxeff_export import artifact
from jaxeff_export.boards import BoardError, SerialBoard
from jaxeff_export.bundle import files
from jaxeff_export.bundle.running import _session
from jaxeff_export.bundle.running import _timing as timing
from jaxeff_export.bundle.running._runner import Runner


class SerialRunner(Runner):
    """Calls a firmware, by frames on a serial line.

    Args:
      manifest: the bundle's.
      recorded: pairs that the self-check replays.
      board: an open board.
      treedef: the exact structure of results, where this process knows it.

    Raises:
      BoardError: if the firmware is of another model.
    """

    def __init__(
        self,
        manifest: files.Manifest,
        recorded: Sequence[files.RecordedPair],
        board: SerialBoard,
        treedef: Any = None,
    ) -> None:
        self._keep(manifest, recorded, board, treedef)
        self._serial = board
        self._places = _state_places(manifest)
        board.require_model(manifest.model)

    def close(self) -> None:
        """Does nothing: the firmware stays, and whoever opened the line closes it."""

    def benchmark(
        self, number: int = 10, repeat: int = 10, batch: int | None = None
    ) -> timing.Timing:
        """Times the function by the board's counter, as `Runner.benchmark` does."""
        runs = self._runs(number, repeat, batch)
        cycles = [run.cycles / number for run in runs]
        times = tuple(1000 * count / self._serial.hertz for count in cycles)
        return timing.Timing(self._serial.name, number, times, float(np.median(cycles)))

    def profile(
        self, number: int = 10, repeat: int = 5, batch: int | None = None
    ) -> timing.OperatorTimes:
        """Counts what each kernel takes, as `Runner.profile` does."""
        with self._serial.turn:
            kernels = self._serial.kernels()
        hertz, calls = self._serial.hertz, Counter(kernels)
        measurements = []
        for run in self._runs(number, repeat, batch):
            cycles: Counter[str] = Counter()
            for kernel, count in zip(kernels, run.steps, strict=True):
                cycles[kernel] += count
            measurements.append(
                [
                    (kernel, calls[kernel] * number, round(1e9 * cycles[kernel] / hertz))
                    for kernel in calls
                ]
            )
        return timing.OperatorTimes(
            dataclasses.replace(one, cycles=one.ms * hertz / 1000)
            for one in timing.operator_times(measurements, number)
        )

    def _runs(self, number: int, repeat: int, batch: int | None) -> list[Any]:
        """Runs the recorded inputs, and refuses a counter that stands still."""
        if number < 1 or repeat < 1:
            raise ValueError(f"number and repeat must be positive, got {number} and {repeat}")
        inputs = artifact.with_batch(self._recorded[0].inputs, self._manifest.inputs, batch)
        runs = [self._run(inputs, number) for _ in range(repeat)]
        if not all(run.cycles for run in runs):
            name = self._serial.firmware.name
            raise BoardError(
                f"{self._serial.name}: the counter that {name}_serial_count returns stands still; "
                "DWT's has to be started, as serial_main.c does"
            )
        return runs

    def _memory(self, shared: _session.Session | None) -> _session.StateMemory:
        if shared is not None:
            raise files.BundleError(f"{self._board.name} shares no state between bundles")
        return _session.HostMemory(self._call, self._recorded[0].inputs, self._manifest)

    def _call(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        return artifact.arrays_of_bytes(self._run(leaves, 1).results, self._manifest.outputs)

    def _run(self, leaves: Sequence[np.ndarray], number: int) -> Any:
        arguments = b"".join(np.asarray(leaf).tobytes() for leaf in leaves)
        with self._serial.turn:
            return self._serial.run(self._manifest.model, arguments, number, self._places)


def _state_places(manifest: files.Manifest) -> list[tuple[int, int, int]]:
    """Finds the state among the bytes of arguments and of results."""
    olds, news = (
        np.cumsum([0, *map(_bytes_of, specs)]) for specs in (manifest.inputs, manifest.outputs)
    )
    return [
        (int(olds[old]), int(news[new]), int(olds[old + 1] - olds[old]))
        for old, new in manifest.places
    ]


def _bytes_of(spec: artifact.TensorSpec) -> int:
    count = math.prod(int(n) for n in spec.shape)
    return count * artifact.dtype_of(spec.dtype).itemsize
