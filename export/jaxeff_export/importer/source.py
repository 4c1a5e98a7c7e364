"""Turn any accepted source into a verified MLIR module.

Sharp edge: MLIR's bytecode reader is not safe on damaged bytes (it can corrupt the heap), so
artifacts are read in a child process; text is parsed in this one.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import TypeAlias

import jax.interpreters.mlir as jax_mlir
from jax.export import Exported
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

from .errors import StableHLOParseError

# Damage can send MLIR's reader into an endless loop; a sound artifact takes a fraction of this.
_READ_SECONDS = 20.0
_READ_BYTES_PER_SECOND = 1e6

Source: TypeAlias = str | bytes | ir.Module | Exported

_BYTECODE_MAGIC = b"ML\xefR"


def load_module(source: Source) -> ir.Module:
    """Parse ``source`` and lower its CHLO operations to StableHLO.

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
        text = source.mlir_module()
    elif isinstance(source, ir.Module):
        text = source.operation.get_asm(enable_debug_info=True)
    elif isinstance(source, bytes | bytearray | memoryview):
        text = _artifact_text(bytes(source))
    elif isinstance(source, str):
        text = source
    else:
        raise TypeError(
            "import_stablehlo takes StableHLO text, portable-artifact bytes, an MLIR module or a "
            f"jax.export.Exported, not {type(source).__name__}"
        )
    return _parse(text)


def _parse(text: str) -> ir.Module:
    context = jax_mlir.make_ir_context()
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
            stablehlo.register_stablehlo_passes()
            # jaxlib's CHLO decompositions are XLA's own, so the numbers agree with XLA's.
            pipeline = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
            PassManager.parse(pipeline).run(module.operation)
        except ir.MLIRError as error:
            raise StableHLOParseError(
                f"the source is not valid StableHLO: {_one_line(str(error))}"
            ) from error
    return module


def _artifact_text(data: bytes) -> str:
    if not data.startswith(_BYTECODE_MAGIC):
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise StableHLOParseError(
                f"the {len(data)} bytes are neither a StableHLO portable artifact (these start "
                f"with {_BYTECODE_MAGIC!r}) nor UTF-8 text"
            ) from error
    reader = pathlib.Path(__file__).with_name("_read_artifact.py")
    try:
        child = subprocess.run(
            [sys.executable, "-I", str(reader)],
            input=data,
            capture_output=True,
            check=False,
            timeout=_READ_SECONDS + len(data) / _READ_BYTES_PER_SECOND,
        )
    except subprocess.TimeoutExpired as error:
        raise StableHLOParseError(
            f"the {len(data)} bytes are not a readable StableHLO artifact (damaged): the reader "
            f"did not finish within {error.timeout:.0f} s"
        ) from error
    if child.returncode != 0:
        reason = _one_line(child.stderr.decode("utf-8", "replace")) or "the reader crashed on it"
        raise StableHLOParseError(
            f"the {len(data)} bytes are not a readable StableHLO artifact (truncated, damaged or "
            f"of a newer version): {reason}"
        )
    return child.stdout.decode("utf-8")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
