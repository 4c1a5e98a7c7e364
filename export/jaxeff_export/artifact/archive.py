"""Documents with a checksum of themselves, so that damage is noticed.

Checksums catch transmission errors and accidents, not an attacker, who can compute them as well.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(data: bytes) -> str:
    """The SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sealed(document: dict[str, Any]) -> bytes:
    """A JSON document with a checksum of itself under ``sha256``."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    body["sha256"] = digest(_canonical(body))
    return json.dumps(body, indent=2).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """The document of `sealed`.

    Raises:
      ValueError: if it is no JSON object, or its checksum does not match.
    """
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    body = {key: value for key, value in document.items() if key != "sha256"}
    if document.get("sha256") != digest(_canonical(body)):
        raise ValueError("its checksum does not match its content")
    return body


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
