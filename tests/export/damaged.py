"""Bundles that say something else than they should."""

import dataclasses

from jaxeff_export import Bundle
from jaxeff_export.bundle.files import MANIFEST


def reseal(folder, **changes):
    """Rewrites the manifest consistently: a well-formed bundle that says something else."""
    manifest = dataclasses.replace(Bundle.load(folder).manifest, **changes)
    (folder / MANIFEST).write_bytes(manifest.to_bytes())
