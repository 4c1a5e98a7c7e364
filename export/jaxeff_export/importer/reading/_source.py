"""Turns any accepted source into a verified MLIR module.

Sharp edges: MLIR's bytecode reader is not safe on damaged bytes (it can corrupt the heap), so
artifacts are read in a child process. Text is parsed in this one, after ``hazards`` has seen it.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import jax.interpreters.mlir as jax_mlir
from jax.export import Exported
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

from jaxeff_export.importer.reading._artifact_layout import MAGIC, layout_fault, newer_version
from jaxeff_export.importer.reading._composites import restore_composites
from jaxeff_export.importer.reading._errors import StableHLOParseError, Unsupported, position_of
from jaxeff_export.importer.reading._expansions import LEGALIZE_CHLO, expand
from jaxeff_export.importer.reading._functions import operations
from jaxeff_export.importer.reading._hazards import position, refuse_hazards, without_strings
from jaxeff_export.importer.reading._types import is_dynamic

# Damage can send MLIR's reader into an endless loop; a sound artifact takes a fraction of this time
# of a processor. Should it wait for something instead, the clock ends it after many times as much.
_READ_SECONDS, _READ_BYTES_PER_SECOND, _WAITING = 15.0, 1e6, 40

_MAKE_STATIC = (
    "builtin.module(func.func(shape-legalize-to-stablehlo,stablehlo-canonicalize-dynamism),"
    "stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism))"
)
_CHECK_SHAPES = "builtin.module(func.func(stablehlo-check-shape-assertions))"
_DYNAMIC = tuple(
    f"stablehlo.{name}"
    for name in (
        *("dynamic_broadcast_in_dim", "dynamic_conv", "dynamic_gather", "dynamic_iota"),
        *("dynamic_pad", "dynamic_reshape", "real_dynamic_slice"),
    )
)

Source: TypeAlias = str | bytes | ir.Module | Exported


def load_module(source: Source) -> ir.Module:
    """Parses ``source``.

    Args:
        source: StableHLO text, the bytes of a portable artifact, an MLIR module (left
            unchanged), or an ``Exported``.

    Returns:
        A module in a context of its own.

    Raises:
        StableHLOParseError: the source cannot be read; the message says at which position.
        TypeError: the source is of another type.
    """
    if isinstance(source, Exported):
        text = source.mlir_module().encode()
    elif isinstance(source, ir.Module):
        # By way of text, like all sources: the caller's module is neither changed nor kept alive.
        text = source.operation.get_asm(enable_debug_info=True).encode()
    elif isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        text = _artifact_text(data) if data.startswith(MAGIC) else data
    elif isinstance(source, str):
        text = source.encode("utf-8", "surrogatepass")  # what is not UTF-8 is refused below
    else:
        raise TypeError(
            "import_stablehlo takes StableHLO text, portable-artifact bytes, an MLIR module or a "
            f"jax.export.Exported, not {type(source).__name__}"
        )
    return _parse(text)


def legalize(module: ir.Module) -> None:
    """Lowers CHLO, deprecated operations and known dynamism to plain StableHLO, in place.

    Raises:
        StableHLOParseError: that fails; the message says at which position.
    """
    with module.context, ir.Location.unknown(), _diagnosed():
        PassManager.parse(LEGALIZE_CHLO).run(module.operation)
        expand(module)
        # Costs two passes over the module, so only for modules that need it.
        if any(
            op.name in _DYNAMIC or any(is_dynamic(result.type) for result in op.results)
            for op, _ in operations(module.operation)
        ):
            PassManager.parse(_MAKE_STATIC).run(module.operation)


def of_size(module: ir.Module, arguments: Sequence[ir.Type], size: int) -> ir.Module:
    """Returns a copy in which every dynamic dimension of the arguments has one size.

    Args:
        module: not yet legalized.
        arguments: the types of the public function's arguments.
        size: size of each of their dynamic dimensions.

    Raises:
        Unsupported: the module does not accept that.
    """
    text = module.operation.get_asm(enable_debug_info=True)
    types = ",".join(str(kind).replace("?", str(size)) for kind in arguments)
    refine = f"builtin.module(stablehlo-refine-arguments{{types={types}}},stablehlo-refine-shapes)"
    # Passes change modules in place; a parse of the text is a copy in a context of its own.
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        copy = ir.Module.parse(text)
        try:
            PassManager.parse(refine).run(copy.operation)
            PassManager.parse(_CHECK_SHAPES).run(copy.operation)
        except ir.MLIRError as error:
            raise Unsupported(f"with all dynamic dimensions {size}: {_diagnosis(error)}") from error
        restore_composites(copy)
    legalize(copy)
    return copy


def _parse(text: bytes) -> ir.Module:
    _refuse_other_encodings(text)
    # Before the parser sees the text: it may crash the process rather than raise.
    refuse_hazards(text, without_strings(text))
    stablehlo.register_stablehlo_passes()
    # A context of its own: unknown dialects of other modules can't leak into this one.
    with jax_mlir.make_ir_context(), ir.Location.unknown(), _diagnosed():
        return ir.Module.parse(text)


@contextlib.contextmanager
def _diagnosed() -> Iterator[None]:
    try:
        yield
    except ir.MLIRError as error:
        raise StableHLOParseError(
            f"the source is not valid StableHLO: {_diagnosis(error)}"
        ) from error
    except StableHLOParseError:
        raise
    except ValueError as error:  # the bindings' own
        raise StableHLOParseError(
            f"the source is not valid StableHLO, at a position that MLIR does not tell: {error}"
        ) from error


def _refuse_other_encodings(text: bytes) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StableHLOParseError(
            f"the {len(text)} bytes are neither a StableHLO portable artifact (these start with "
            f"{MAGIC!r}) nor UTF-8 text: {position(text, error.start)}: byte "
            f"0x{text[error.start]:02x}"
        ) from error


def _artifact_text(data: bytes) -> bytes:
    # Cheap, and names the byte; the child process can only report that it failed.
    fault = layout_fault(data)
    if fault is not None:
        raise _unreadable(data, fault)
    reader = pathlib.Path(__file__).with_name("_read_artifact.py")
    seconds = math.ceil(_READ_SECONDS + len(data) / _READ_BYTES_PER_SECOND)
    try:
        child = subprocess.run(
            # Isolated: neither the environment nor the working directory decides what is imported.
            [sys.executable, "-I", str(reader), str(seconds)],
            input=data,
            capture_output=True,
            check=False,
            timeout=_WAITING * seconds,
        )
        late = child.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
    except subprocess.TimeoutExpired:
        late = True
    if late:
        reason = f"the reader did not finish within {seconds} s"
        raise _unreadable(data, f"within {len(data)} bytes: {reason}")
    if child.returncode != 0:
        reason = _one_line(child.stderr.decode("utf-8", "replace")) or "the reader crashed on it"
        raise _unreadable(data, f"within {len(data)} bytes: {reason}")
    return child.stdout


def _unreadable(data: bytes, reason: str) -> StableHLOParseError:
    newer = newer_version(data)
    if newer is not None:
        return StableHLOParseError(
            f"the artifact was written by StableHLO {newer}, newer than the "
            f"{stablehlo.get_current_version()} of this jaxlib; update jaxlib, or serialize the "
            f"module for the older version ({reason})"
        )
    return StableHLOParseError(
        "the bytes are not a readable StableHLO artifact (truncated or damaged; make it again): "
        f"{reason}"
    )


def _diagnosis(error: ir.MLIRError) -> str:
    """Formats MLIR's first diagnostics, each with its position."""
    found = [
        f"{position_of(ir.Location.from_attr(d.location.attr))}: {d.message}"
        for d in error.error_diagnostics[:3]
    ]
    return _one_line("; ".join(found) or str(error))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
