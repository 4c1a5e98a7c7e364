"""The outer layout of a portable artifact: enough to say where and why one cannot be read.

MLIR bytecode is a magic number, a version, the writer's name up to a NUL, and sections of a known
length. A cut or overwritten file mostly shows here, before MLIR's reader is asked.
"""

from __future__ import annotations

import re

from jaxlib.mlir.dialects import stablehlo

MAGIC = b"ML\xefR"
_BYTECODE_VERSION = 6  # the newest that MLIR writes today
_SECTIONS = (
    "string", "dialect", "attribute and type", "attribute and type offset", "operation",
    "resource", "resource offset", "dialect version", "property",
)  # fmt: skip
_WRITER = re.compile(rb"StableHLO_v(\d{1,6})\.(\d{1,6})\.(\d{1,6})")


def layout_fault(data: bytes) -> str | None:
    """Describes the first fault of an artifact's layout, and its byte; None if there is none."""
    try:
        version, at = _number(data, len(MAGIC))
        if version > _BYTECODE_VERSION:
            return f"byte {len(MAGIC)}: bytecode version {version} is newer than this jaxlib reads"
        at = data.index(b"\0", at) + 1
        while at < len(data):
            start = at
            kind = data[at]
            size, at = _number(data, at + 1)
            if kind & 0x7F >= len(_SECTIONS):
                return f"byte {start}: no section is of kind {kind & 0x7F}"
            # The top bit announces an alignment, and padding up to a multiple of it.
            if kind & 0x80:
                alignment, at = _number(data, at)
                if alignment == 0 or alignment & (alignment - 1):
                    return f"byte {start}: the section's alignment of {alignment} is none"
                # Sections start at multiples of their alignment, with filling bytes before.
                at += -at % alignment
            # Checked before MLIR reads the section: it trusts the length.
            if at + size > len(data):
                return (
                    f"byte {start}: the {_SECTIONS[kind & 0x7F]} section should have {size} bytes, "
                    f"but the artifact ends after {max(len(data) - at, 0)}"
                )
            at += size
    except (IndexError, ValueError):
        return f"byte {len(data)}: the artifact ends within its head"
    return None


def newer_version(data: bytes) -> str | None:
    """Returns the StableHLO version that wrote the artifact if it is newer than jaxlib's."""
    writer = _WRITER.search(data, 0, 64)
    if writer is None:
        return None
    ours = tuple(int(part) for part in stablehlo.get_current_version().split("."))
    theirs = tuple(int(part) for part in writer.groups())
    return ".".join(map(str, theirs)) if theirs > ours else None


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Reads a variable-length integer; the first byte's trailing zeros count the bytes after it."""
    first = data[at]
    # Eight zero bits: the value is in the eight bytes that follow.
    if first == 0:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    more = (first & -first).bit_length() - 1
    value = int.from_bytes(data[at : at + more + 1], "little") >> (more + 1)
    return value, at + more + 1
