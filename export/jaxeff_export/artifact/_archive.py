"""Documents with a checksum of themselves, so that damage is noticed, and zip files from elsewhere.

Checksums catch transmission errors and accidents. An attacker can compute them as well, so the size
of everything read is bounded: zeros deflate to a thousandth of their size in memory.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from typing import Any

MOST_TEXT = 1 << 24
"""Bytes of a document: those of a network of a hundred thousand arrays."""

_ROOM, _RATIO = 1 << 28, 64


def digest(data: bytes) -> str:
    """Returns the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def add_checksum(document: dict[str, Any]) -> bytes:
    """Writes a JSON document with a checksum of itself under ``sha256``."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    # The checksum is of the canonical form: indentation and order of the file don't matter.
    body["sha256"] = digest(_canonical(body))
    return json.dumps(body, indent=2).encode()


def verify_checksum(data: bytes) -> dict[str, Any]:
    """Reads the document of `add_checksum`.

    Raises:
      ValueError: if it is no JSON object, too large or too deep, or its checksum does not match.
    """
    # Before parsing: JSON takes many times its bytes as Python objects.
    if len(data) > MOST_TEXT:
        raise ValueError(f"it has {len(data)} bytes, more than the {MOST_TEXT} that are read")
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        body = {key: value for key, value in document.items() if key != "sha256"}
        if document.get("sha256") != digest(_canonical(body)):
            raise ValueError("its checksum does not match its content")
    except RecursionError:
        raise ValueError("it is nested deeper than any that jaxeff writes") from None
    return body


def version_complaint(document: Mapping[str, Any], known: tuple[int, int]) -> str:
    """Says that a document's format version is none of the known ones; empty if it is."""
    version = document.get("format_version")
    if version in known:
        return ""
    return f"format version {version}, this jaxeff reads {known[0]} and {known[1]}"


def max_inflated_size(size: int) -> int:
    """Limits the bytes that a file of `size` bytes may be inflated to.

    Codes of one bit take a byte each in memory, eight times their size in the file. Any computer
    has room for small files.
    """
    return max(_ROOM, _RATIO * size)


def require_member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Finds a member of a zip file, if reading a part of it inflates no more than that part.

    Raises:
      ValueError: if there is none, or it is neither stored nor deflated.
    """
    try:
        member = archive.getinfo(name)
    except KeyError:
        raise ValueError(f"it has no {name}") from None
    # Other methods inflate whole blocks, however little is read of them.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its {name} is compressed in another way than deflated")
    return member


def read_member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Reads the content of a zip file's member, of at most `most` bytes.

    Raises:
      ValueError: if there is none, or it inflates to more.
    """
    with archive.open(require_member(archive, name)) as member:
        # One byte more than allowed tells too large a member without inflating the rest of it.
        content = member.read(most + 1)
    if len(content) > most:
        raise ValueError(
            f"its {name} inflates to more than {most} bytes, which nothing in it needs"
        )
    return content


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
