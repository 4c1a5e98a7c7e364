"""The manifest of a bundle: what the files are, what goes in and out, and what made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxeff_export.artifact.archive import sealed, unsealed
from jaxeff_export.artifact.signature import TensorSpec
from jaxeff_export.artifact.structure import Description, count_leaves

FORMAT = "jaxeff-bundle"
FORMAT_VERSION = 2
FORMAT_VERSION_ANY_BATCH = 3  # shapes with a size that may vary, and several recorded pairs

LIBRARY, PARAMETERS, DERIVED, ARTIFACT, SELFCHECK, PROGRAM = (
    "library.so",
    "parameters.npz",
    "derived.npz",
    "artifact.zip",
    "selfcheck.npz",
    "run.py",
)
FILES = (LIBRARY, PARAMETERS, DERIVED, ARTIFACT, SELFCHECK, PROGRAM)
MANIFEST = "manifest.json"


class BundleError(ValueError):
    """A folder that is no bundle, a damaged bundle, or one that cannot run where it should."""


@dataclass(frozen=True)
class Manifest:
    """Everything about a bundle except its bulk.

    Attributes:
      target_name: the target as it was asked for.
      target: the TVM target dict the library was compiled for.
      machine: the processor architecture of the library.
      processor_features: what the library may use of it, as /proc/cpuinfo names it.
      arguments: the names of the data arguments, which `run` takes.
      parameters: the bound arrays.
      derived: the arrays computed from them when the bundle was made.
      operands: what the library takes first, as indices into the parameters followed by the derived
        arrays.
      inputs: the flattened data arguments, which come after them.
      outputs: the flattened results.
      structure: the description of the result's pytree.
      versions: of the packages that made the bundle.
      files: per file name its size in bytes and SHA-256.
      kernels: per kernel whose sizes are known before the call the bytes `read` and `written`,
        those of parameters that are `bound`, the `products` it adds up and its `calls`; empty in
        bundles of older versions.
      batches: of the pairs of inputs and outputs recorded for the self-check, the example's own
        first, where the batch may vary; empty where it is fixed, and one pair is recorded.
    """

    target_name: str
    target: Mapping[str, Any]
    machine: str
    processor_features: tuple[str, ...]
    arguments: tuple[str, ...]
    parameters: tuple[TensorSpec, ...]
    derived: tuple[TensorSpec, ...]
    operands: tuple[int, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    structure: Description = field(repr=False)
    versions: Mapping[str, str]
    files: Mapping[str, Mapping[str, Any]] = field(repr=False)
    kernels: Mapping[str, Mapping[str, int]] = field(default_factory=dict, repr=False)
    batches: tuple[int, ...] = ()

    @property
    def any_batch(self) -> bool:
        """Whether the batch of its inputs may vary."""
        return bool(self.batches)

    def recorded(self) -> list[TensorSpec]:
        """What is recorded for the self-check, pair by pair: inputs, then outputs."""
        return [*self.inputs, *self.outputs] * max(1, len(self.batches))

    def to_bytes(self) -> bytes:
        """The content of ``manifest.json``, with a checksum of itself."""
        more = {"batches": list(self.batches)} if self.any_batch else {}
        return sealed(
            {
                "format": FORMAT,
                "format_version": FORMAT_VERSION_ANY_BATCH if more else FORMAT_VERSION,
                "target_name": self.target_name,
                "target": dict(self.target),
                "machine": self.machine,
                "processor_features": list(self.processor_features),
                "arguments": list(self.arguments),
                "parameters": [spec.to_json() for spec in self.parameters],
                "derived": [spec.to_json() for spec in self.derived],
                "operands": list(self.operands),
                "inputs": [spec.to_json() for spec in self.inputs],
                "outputs": [spec.to_json() for spec in self.outputs],
                "structure": self.structure,
                "versions": dict(self.versions),
                "files": {name: dict(facts) for name, facts in self.files.items()},
                "kernels": {name: dict(work) for name, work in self.kernels.items()},
                **more,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """The manifest of `to_bytes`.

        Raises:
          BundleError: if it is damaged, of another kind, or of another format version.
        """
        try:
            content = unsealed(data)
        except ValueError as error:
            raise BundleError(f"manifest.json is damaged: {error}") from error
        if content.get("format") != FORMAT:
            raise BundleError(f"manifest.json is of a {content.get('format')!r}, not a {FORMAT}")
        if content.get("format_version") not in (FORMAT_VERSION, FORMAT_VERSION_ANY_BATCH):
            raise BundleError(
                f"manifest.json has format version {content.get('format_version')}, this jaxeff "
                f"reads {FORMAT_VERSION} and {FORMAT_VERSION_ANY_BATCH}; deploy the model again"
            )
        try:
            manifest = cls(
                target_name=content["target_name"],
                target=content["target"],
                machine=content["machine"],
                processor_features=tuple(content["processor_features"]),
                arguments=tuple(content["arguments"]),
                parameters=_specs(content["parameters"]),
                derived=_specs(content["derived"]),
                operands=tuple(content["operands"]),
                inputs=_specs(content["inputs"]),
                outputs=_specs(content["outputs"]),
                structure=content["structure"],
                versions=content["versions"],
                files=content["files"],
                kernels=content.get("kernels", {}),
                batches=tuple(content.get("batches", ())),
            )
            leaves = count_leaves(manifest.structure)
        except (KeyError, TypeError, AttributeError) as error:
            raise BundleError(f"manifest.json lacks an entry: {error}") from error
        if leaves != len(manifest.outputs):
            raise BundleError("manifest.json contradicts itself: structure and outputs differ")
        if manifest.any_batch != any(spec.varies for spec in manifest.inputs):
            raise BundleError("manifest.json contradicts itself: batches and inputs differ")
        bound = range(len(manifest.parameters) + len(manifest.derived))
        if any(index not in bound for index in manifest.operands):
            raise BundleError("manifest.json contradicts itself: an operand is no bound array")
        return manifest


def own_files(data: bytes) -> frozenset[str]:
    """The files beside a manifest, of any format version, that are its bundle's.

    Those that it lists under a name that bundles give; whatever else it lists is not.

    Raises:
      BundleError: if it is damaged, or no bundle's.
    """
    try:
        content = unsealed(data)
    except ValueError as error:
        raise BundleError(f"it is damaged: {error}") from error
    files = content.get("files")
    if content.get("format") != FORMAT or not isinstance(files, dict):
        raise BundleError("it lists no files of a bundle")
    return frozenset(files).intersection(FILES)


def _specs(items: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec.from_json(item) for item in items)
