"""`BundleFolder`: reads a bundle's files, each checked against the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxeff.nn import Tokenizer
from jaxeff.store import atomic_folder, open_regular, write_atomically
from jaxeff_export.artifact import MOST_TEXT, Artifact, ArtifactError, digest
from jaxeff_export.bundle.files._arrays import unpack_arrays
from jaxeff_export.bundle.files._manifest import (
    ARTIFACT,
    DERIVED,
    MANIFEST,
    PARAMETERS,
    SELFCHECK,
    TOKENIZER,
    BundleError,
    Manifest,
    own_files,
)
from jaxeff_export.bundle.files._selfcheck import RecordedPair
from jaxeff_export.bundle.files._tokenizer import unpack_tokenizer

_RENEW = "copy the bundle again, or deploy the model again"


class BundleFolder:
    """The files of a bundle.

    Attributes:
      folder: where they are.
      manifest: what they hold.
      treedef: the exact structure of results, if this process knows it.
    """

    def __init__(self, folder: Path, manifest: Manifest, treedef: Any = None) -> None:
        self.folder = folder
        self.manifest = manifest
        self.treedef = treedef

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Opens a bundle and checks every file of it.

        A bundle is regular files in its folder, of the sizes that its manifest says, which inflate
        to what that promises.

        Raises:
          BundleError: naming the file that is missing, a link, a pipe or a device, damaged, cut
            short, or of another version, or the entry of the manifest that is wrong.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise BundleError(f"{folder} is no bundle: it is not a folder")
        try:
            with open_regular(folder / MANIFEST, links=False) as (file, size):
                # One byte more than is allowed shows that it is too long: never all of a huge file.
                data = file.read(min(size, MOST_TEXT) + 1)
        except OSError as error:
            raise BundleError(
                f"{folder} is no bundle: it has no readable {MANIFEST} ({error.strerror})"
            ) from error
        try:
            bundle = cls(folder, Manifest.from_bytes(data))
            # Everything is read and decoded once, so that damage shows here and not in some later
            # call.
            for name in bundle.manifest.files:
                bundle._read(name)
            bundle.manifest.require_artifact(bundle.artifact)
            _ = bundle.operands, bundle.recorded, bundle.tokenizer
        except BundleError as error:
            raise BundleError(f"{folder}: {error}") from error
        return bundle

    def save(self, path: str | Path) -> Self:
        """Copies the bundle to another folder, whole or not at all; returns the copy.

        Raises:
          BundleError: if a file of this bundle was damaged meanwhile.
          FileExistsError: if `path` holds anything but a bundle's own files.
        """
        path = Path(path)
        with atomic_folder(path, MANIFEST, own_files) as folder:
            for name in self.manifest.files:
                write_atomically(folder / name, self._read(name))
            write_atomically(folder / MANIFEST, self.manifest.to_bytes())
        return type(self)(path, self.manifest, self.treedef)

    @property
    def artifact(self) -> Artifact:
        """The StableHLO artifact the library was compiled from."""
        try:
            return Artifact.from_bytes(self._read(ARTIFACT), ARTIFACT)
        except ArtifactError as error:
            raise BundleError(str(error)) from error

    @property
    def parameters(self) -> list[np.ndarray]:
        """The bound arrays that the library takes, in the order of ``manifest.parameters``."""
        return self._arrays(PARAMETERS, self.manifest.parameters)

    @property
    def derived(self) -> list[np.ndarray]:
        """The arrays computed from the parameters when the bundle was made."""
        return self._arrays(DERIVED, self.manifest.derived)

    @property
    def operands(self) -> list[np.ndarray]:
        """The library's arguments before the data: parameters, and arrays derived from them."""
        bound = [*self.parameters, *self.derived]
        return [bound[index] for index in self.manifest.operands]

    @property
    def recorded(self) -> list[RecordedPair]:
        """Pairs that the self-check replays: the example first, then other batch sizes."""
        manifest = self.manifest
        arrays = self._arrays(SELFCHECK, manifest.recorded())
        inputs, size = len(manifest.inputs), len(manifest.inputs) + len(manifest.outputs)
        pairs = [
            RecordedPair(
                arrays[i * size :][:inputs], arrays[i * size + inputs :][: size - inputs], batch
            )
            for i, batch in enumerate(manifest.batches or (None,))
        ]
        # Checksums guard against damage; entries that contradict each other may be a stranger's.
        for pair in pairs:
            for array, spec in zip(pair.inputs, manifest.inputs, strict=True):
                if spec.varies and array.shape[:1] != (pair.batch,):
                    raise BundleError(
                        f"{SELFCHECK} has {spec.name} of shape {array.shape}, where batches of "
                        f"{MANIFEST} says {pair.batch}"
                    )
        return pairs

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What makes tokens of texts, if `deploy` was given it."""
        if TOKENIZER not in self.manifest.files:
            return None
        return unpack_tokenizer(self._read(TOKENIZER))

    def _arrays(self, name: str, specs: Sequence[Any]) -> list[np.ndarray]:
        try:
            return unpack_arrays(self._read(name), specs)
        except BundleError:
            raise
        except ValueError as error:
            raise BundleError(f"{name} is damaged: {error}") from error

    def _read(self, name: str) -> bytes:
        """Reads a file, if it is what the manifest says."""
        facts: Mapping[str, Any] = self.manifest.files[name]
        try:
            with open_regular(self.folder / name, links=False) as (file, size):
                # The size first: a file of another one, perhaps larger than memory, isn't read at
                # all.
                if size != facts["size"]:
                    raise BundleError(
                        f"{name} is damaged: it has {size} bytes instead of {facts['size']}; "
                        f"{_RENEW}"
                    )
                data = file.read(size)
        except OSError as error:
            raise BundleError(
                f"{name} is missing or unreadable ({error.strerror}); {_RENEW}"
            ) from error
        except MemoryError:
            raise BundleError(f"{name} has {size} bytes, more than memory holds") from None
        if digest(data) != facts["sha256"]:
            raise BundleError(
                f"{name} is damaged: its checksum differs from the manifest's; {_RENEW}"
            )
        return data
