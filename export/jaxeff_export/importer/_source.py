"""Turns any accepted source into a verified MLIR module.

What would end the process is refused before MLIR sees it. MLIR's bytecode reader is not safe on
damaged bytes (it can corrupt the heap), so artifacts are read in a child process, by the script
``_read_artifact``; ``layout_fault`` says first where and why one cannot be read. Bytecode is a
magic number, a version, the writer's name up to a NUL, and sections of a known length, so a cut or
overwritten file mostly shows there. Text is parsed in this process, after ``refuse_hazards``: MLIR
parses, prints and folds by recursion, expands aliases in full when it prints, and trusts the
dimension numbers of a convolution as the size of a list. Sound programs are far from all of these
limits, and the checks are a few passes in C over the text, so they cost little beside the parser.
"""

import contextlib
import math
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import jax.interpreters.mlir as jax_mlir
import numpy as np
from jax.export import Exported
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

from jaxeff_export.importer._expansions import LEGALIZE_CHLO, expand, operations, restore_composites
from jaxeff_export.importer._graph import StableHLOParseError, Unsupported, is_dynamic, position_of

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


MAX_NESTING = 500  # brackets; MLIR overflows an 8 MB stack from about 3,000
MAX_EXPANSION = 1_000_000  # aliases in one alias, those that its aliases name included
MAX_DIMENSION_NUMBER = 3  # digits

_OPENING, _CLOSING = b"([{<", b")]}>"
_NOT_BRACKETS = bytes(c for c in range(256) if c not in _OPENING + _CLOSING)
_STEPS = np.zeros(256, np.int8)
_STEPS[list(_OPENING)] = 1
_STEPS[list(_CLOSING)] = -1
_OPAQUE = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|//[^\n]*|->')
_TOKEN = re.compile(_OPAQUE.pattern + rb"|[\[\](){}<>]")
_ALIAS = re.compile(rb"^[ \t]*([#!][\w$.-]+)[ \t]*=([^\n]*)", re.MULTILINE)
_ALIAS_NAME = re.compile(rb"[#!][\w$.-]+")
_AFFINE = re.compile(rb"(?P<found>\baffine_(?:map|set)\b)")
_DIMENSION_NUMBER = re.compile(
    # Up to what comes after the numbers: types behind them may have a thousand channels.
    rb"(?:dim_numbers\s*=\s*|#stablehlo\.conv<\s*)[^<>{:\n]*?(?P<found>\d{%d,})"
    % (MAX_DIMENSION_NUMBER + 1)
)


def without_strings(text: bytes) -> bytes:
    """Returns ``text`` without strings, comments and arrows: short, whatever constants it holds."""
    return _OPAQUE.sub(b"", text)


def refuse_hazards(text: bytes, bare: bytes) -> None:
    """Checks that MLIR's parser can be trusted with ``text``.

    `bare` is the source without strings.

    Raises:
        StableHLOParseError: it cannot; the message says why and at which line and column.
    """
    # Whole arrays at once: texts with large constants have many millions of bytes.
    brackets = np.frombuffer(bare.translate(None, _NOT_BRACKETS), np.uint8)
    if len(brackets) > MAX_NESTING:
        depths = np.cumsum(_STEPS[brackets], dtype=np.int64)
        if depths.max() > MAX_NESTING:
            raise _refusal(
                text,
                _deepest(text),
                f"brackets nest more than {MAX_NESTING} deep; StableHLO that a compiler wrote "
                "nests less than a hundred",
            )
    if _AFFINE.search(bare):
        raise _refusal(
            text,
            _first(_AFFINE, text),
            "affine maps and sets are no part of StableHLO; lower the module to StableHLO, or "
            "remove the attribute",
        )
    if _DIMENSION_NUMBER.search(bare):
        raise _refusal(
            text,
            _first(_DIMENSION_NUMBER, text),
            "this is not the number of a convolution's dimension; a tensor has fewer dimensions",
        )
    _refuse_expansion(text, bare)


def position(text: bytes, offset: int) -> str:
    """Formats where in ``text`` a byte is, as MLIR counts: lines and columns from one."""
    line, column = text.count(b"\n", 0, offset) + 1, offset - text.rfind(b"\n", 0, offset)
    return f"line {line}, column {column}"


def _refuse_expansion(text: bytes, bare: bytes) -> None:
    expansions: dict[bytes, int] = {}
    for match in _ALIAS.finditer(bare):
        alias, body = match.groups()
        # Aliases are defined before use, so one pass in order finds every expansion's full size.
        expansions[alias] = 1 + sum(expansions.get(a, 1) for a in _ALIAS_NAME.findall(body))
        if expansions[alias] > MAX_EXPANSION:
            raise _refusal(
                text,
                text.index(alias),
                f"the alias {alias.decode()} stands for more than {MAX_EXPANSION} others; write "
                "the module without aliases",
            )


def _first(pattern: re.Pattern[bytes], text: bytes) -> int:
    match = pattern.search(text)
    return match.start("found") if match else 0


def _deepest(text: bytes) -> int:
    depth = 0
    for match in _TOKEN.finditer(text):
        if len(match[0]) == 1:
            depth += 1 if match[0] in _OPENING else -1
            if depth > MAX_NESTING:
                return match.start()
    return len(text)


def _refusal(text: bytes, offset: int, reason: str) -> StableHLOParseError:
    return StableHLOParseError(
        f"the source is not valid StableHLO: {position(text, offset)}: {reason}"
    )


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

    It is StableHLO text, the bytes of a portable artifact, an MLIR module (left unchanged), or an
    ``Exported``. Returns a module in a context of its own.

    Raises:
        StableHLOParseError: the source cannot be read; the message says at which position.
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

    The module isn't legalized yet; `arguments` are the types of the public function's arguments.
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
    messages = [
        f"{position_of(ir.Location.from_attr(d.location.attr))}: {d.message}"
        for d in error.error_diagnostics[:3]
    ]
    return _one_line("; ".join(messages) or str(error))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
