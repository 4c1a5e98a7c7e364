"""Timing every compiled operator where it runs: the instrument that each library carries.

TVM's interpreter, which runs the function `operator_by_operator`, calls an instrument before and
after each operator. ``instrument.c`` is one that lives in the library itself, so it works on a
board across RPC, to which no Python function can be sent, and adds no interpreter's time to an
operator's.

Sharp edge: a library has one instrument, so one virtual machine of it is profiled at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxeff_export.bundle.files import BundleError

_SOURCE = Path(__file__).with_name("instrument.c")


def instrument_sources() -> dict[str, list[str]]:
    """Lists what ``export_library`` takes to compile the instrument into a library."""
    from tvm_ffi import libinfo

    folders = (libinfo.find_include_path(), libinfo.find_dlpack_include_path())
    options = ["-O2", *(f"-I{folder}" for folder in dict.fromkeys(folders))]
    return {"addons": [str(_SOURCE)], "options": options}


class Instrument:
    """The instrument of a loaded library.

    Args:
      library: the library, on whatever board it was loaded.

    Raises:
      BundleError: if the library was built without one.
    """

    def __init__(self, library: Any) -> None:
        try:
            self._register = library.get_function("profile_register", True)
            self._entry = library.get_function("profile_entry", True)
        except AttributeError as error:
            raise BundleError(
                "the library carries no instrument; deploy the model again"
            ) from error

    def attach(self, machine: Any) -> None:
        """Sets it on a virtual machine of the library, with nothing recorded yet."""
        # A new one for each time: it has recorded nothing yet.
        machine.module["set_instrument"](self._register())

    def read(self) -> list[tuple[str, int, int]]:
        """Reads name, calls and nanoseconds of every operator that ran since it was attached."""
        recorded: list[tuple[str, int, int]] = []
        while line := self._entry(len(recorded)):
            calls, nanoseconds, name = line.split(" ", 2)
            recorded.append((name, int(calls), int(nanoseconds)))
        return recorded
