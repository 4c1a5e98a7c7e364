"""Manifest of a bundle: its files, arguments and results, and the versions that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxeff_export.artifact import (
    COUNT,
    SPEC,
    Artifact,
    Description,
    MappingOf,
    TensorSpec,
    add_checksum,
    require_form,
    require_structure,
    specs_from_json,
    state_places,
    verify_checksum,
    version_complaint,
)

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
TOKENIZER = "tokenizer.json"
OPTIONAL_FILES = (TOKENIZER,)
MANIFEST = "manifest.json"


_FILE = {"size": COUNT, "sha256": str}
_WORK = {name: COUNT for name in ("read", "written", "bound", "products", "calls")}
_TARGET = {
    **{name: str for name in ("kind", "mcpu", "mtriple", "mfloat-abi", "mabi")},
    **{name: COUNT for name in ("num-cores", "vector-width")},
    "mattr": [str],
}
_FORM = {
    **{name: str for name in ("target_name", "machine")},
    **{name: [str] for name in ("processor_features", "arguments")},
    "target": {"kind": str},
    "operands": [COUNT],
    **{name: [SPEC] for name in ("parameters", "derived", "inputs", "outputs")},
    "structure": {},
    "rounds_inputs": bool,
    "versions": {name: str for name in ("apache-tvm", "apache-tvm-ffi")},
    "files": dict.fromkeys(FILES, _FILE),
}


class BundleError(ValueError):
    """A folder that is no bundle, a damaged bundle, or one that cannot run where it should."""


@dataclass(frozen=True)
class Manifest:
    """Everything about a bundle except its bulk.

    Attributes:
      target_name: the target as it was asked for.
      target: the TVM target dict the library was compiled for.
      machine: the processor architecture of the library.
      processor_features: number of features of the processor that the library may use, as in
        /proc/cpuinfo.
      arguments: the names of the data arguments, which `run` takes.
      parameters: the bound arrays.
      derived: the arrays computed from them when the bundle was made.
      operands: leading arguments of the library, as indices into the parameters followed by the
        derived arrays.
      inputs: the flattened data arguments, which come after them.
      outputs: the flattened results.
      structure: the description of the result's pytree.
      rounds_inputs: whether the function rounds its data to codes, which have no NaN, so that a
        call refuses data that hold it.
      versions: versions of the packages that made the bundle.
      files: per file name its size in bytes and SHA-256; a tokenizer is among them where `deploy`
        was given one.
      kernels: per kernel whose sizes are known before the call the bytes `read` and `written`,
        those of parameters that are `bound`, the `products` it adds up and its `calls`; empty in
        bundles of older versions.
      batches: batches of the pairs of inputs and outputs recorded for the self-check, the example's
        own first, where the batch may vary; empty where it is fixed, and one pair is recorded.
      verdict: what is known of the results beside their values, as it was given to `deploy`.
      state: names of the arguments that sessions keep and update, in the order of the results.
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
    rounds_inputs: bool
    versions: Mapping[str, str]
    files: Mapping[str, Mapping[str, Any]] = field(repr=False)
    kernels: Mapping[str, Mapping[str, int]] = field(default_factory=dict, repr=False)
    batches: tuple[int, ...] = ()
    verdict: str = ""
    state: tuple[str, ...] = ()

    @property
    def places(self) -> list[tuple[int, int]]:
        """Pairs the arrays of state: indices of those among `inputs` and among `outputs`."""
        return state_places(self.state, self.arguments, self.inputs, self.outputs, self.structure)

    @property
    def any_batch(self) -> bool:
        """Whether the batch of its inputs may vary."""
        return bool(self.batches)

    def recorded(self) -> list[TensorSpec]:
        """Lists the specs of what the self-check replays, pair by pair: inputs, then outputs."""
        return [*self.inputs, *self.outputs] * max(1, len(self.batches))

    def to_bytes(self) -> bytes:
        """Writes the content of ``manifest.json``, with a checksum of itself."""
        # Older readers refuse the newer version, so only a bundle that needs it carries it.
        more = {"batches": list(self.batches)} if self.any_batch else {}
        return add_checksum(
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
                "rounds_inputs": self.rounds_inputs,
                "versions": dict(self.versions),
                "files": {name: dict(facts) for name, facts in self.files.items()},
                "kernels": {name: dict(work) for name, work in self.kernels.items()},
                **more,
                **({"verdict": self.verdict} if self.verdict else {}),
                **({"state": list(self.state)} if self.state else {}),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Reads the manifest of `to_bytes`.

        Raises:
          BundleError: if it is damaged, of another kind, or of another format version.
        """
        try:
            content = verify_checksum(data)
        except ValueError as error:
            raise BundleError(f"manifest.json is damaged: {error}") from error
        if content.get("format") != FORMAT:
            raise BundleError(f"manifest.json is of a {content.get('format')!r}, not a {FORMAT}")
        # Before the entries: those of another version may have any form.
        if wrong := version_complaint(content, (FORMAT_VERSION, FORMAT_VERSION_ANY_BATCH)):
            raise BundleError(f"manifest.json has {wrong}; deploy the model again")
        try:
            return cls._checked(content)
        except ValueError as error:
            raise BundleError(f"{MANIFEST} is of no bundle: {error}") from error

    @classmethod
    def _checked(cls, content: dict[str, Any]) -> Manifest:
        """Checks a document of any origin; a ValueError names the entry that is wrong."""
        require_form(content, _FORM, "")
        require_form(content["versions"], MappingOf(str), "versions")
        require_form(content.get("kernels", {}), MappingOf(_WORK), "kernels")
        require_form(content["files"], MappingOf(_FILE), "files")
        require_form(content.get("batches", []), [COUNT], "batches")
        require_form(content.get("verdict", ""), str, "verdict")
        require_form(content.get("state", []), [str], "state")
        target = content["target"]
        # Settings of a target are optional, and TVM has more of them: those known are checked.
        said = {name: form for name, form in _TARGET.items() if name in target}
        require_form(target, said, "target")
        # A name may lead anywhere; files beside these are never opened.
        known = (*FILES, *OPTIONAL_FILES)
        if foreign := [name for name in content["files"] if name not in known]:
            raise ValueError(f"files names {foreign[0]!r}, which no bundle has")
        manifest = cls(
            target_name=content["target_name"],
            target=target,
            machine=content["machine"],
            processor_features=tuple(content["processor_features"]),
            arguments=tuple(content["arguments"]),
            parameters=specs_from_json(content["parameters"], "parameters"),
            derived=specs_from_json(content["derived"], "derived"),
            operands=tuple(content["operands"]),
            inputs=specs_from_json(content["inputs"], "inputs"),
            outputs=specs_from_json(content["outputs"], "outputs"),
            structure=content["structure"],
            rounds_inputs=content["rounds_inputs"],
            versions=content["versions"],
            files=content["files"],
            kernels=content.get("kernels", {}),
            batches=tuple(content.get("batches", ())),
            verdict=content.get("verdict", ""),
            state=tuple(content.get("state", ())),
        )
        # Each entry fits its form; now whether they agree, which all later code relies on.
        if require_structure(manifest.structure) != len(manifest.outputs):
            raise ValueError("structure and outputs differ in how many arrays they have")
        _ = manifest.places  # raises where state and the arrays differ
        if manifest.any_batch != any(spec.varies for spec in manifest.inputs):
            raise ValueError("batches and inputs differ in whether the batch may vary")
        if manifest.any_batch != (content["format_version"] == FORMAT_VERSION_ANY_BATCH):
            raise ValueError("format_version and batches differ in whether the batch may vary")
        if 0 in manifest.batches:
            raise ValueError("batches has an empty one")
        if target.get("num-cores") == 0:
            raise ValueError("target.num-cores is 0")
        if varying := [s.name for s in (*manifest.parameters, *manifest.derived) if s.varies]:
            raise ValueError(
                f"parameters and derived are bound, but the shape of {varying[0]} varies"
            )
        bound = len(manifest.parameters) + len(manifest.derived)
        if any(index >= bound for index in manifest.operands):
            raise ValueError(
                "an operand is no bound array: operands has an index beyond parameters and derived"
            )
        # Missing or twice, it would be an operand that the library doesn't take.
        if sorted(manifest.operands) != list(range(bound)):
            raise ValueError("operands does not have each of parameters and derived once")
        if any(spec.name != f"derived[{i}]" for i, spec in enumerate(manifest.derived)):
            raise ValueError("derived has another name than its arrays are given")
        return manifest

    def require_artifact(self, artifact: Artifact) -> None:
        """Refuses an artifact that the library cannot have been compiled from.

        Raises:
          BundleError: naming the entry that differs.
        """
        bound = len(artifact.inputs) - len(self.inputs)
        count = len(artifact.arguments) - len(self.arguments)
        # In the artifact's order, each at most once.
        taken = iter(artifact.inputs[: max(bound, 0)])
        same = {
            "inputs": bound >= 0 and artifact.inputs[bound:] == self.inputs,
            "arguments": count >= 0
            and artifact.arguments[count:] == self.arguments
            and artifact.leaf_count(count) == bound,
            "outputs": artifact.outputs == self.outputs,
            "structure": artifact.structure == self.structure,
            "rounds_inputs": artifact.rounds_inputs == self.rounds_inputs,
            "parameters": all(spec in taken for spec in self.parameters),
        }
        if differing := [name for name, agrees in same.items() if not agrees]:
            raise BundleError(f"{MANIFEST} and {ARTIFACT} differ in {differing[0]}")


def own_files(data: bytes) -> frozenset[str]:
    """Lists the files beside a manifest, of any format version, that are its bundle's.

    They are the listed files whose names bundles give; other listed names are ignored.

    Raises:
      BundleError: if it is damaged, or no bundle's.
    """
    try:
        content = verify_checksum(data)
    except ValueError as error:
        raise BundleError(f"it is damaged: {error}") from error
    files = content.get("files")
    if content.get("format") != FORMAT or not isinstance(files, dict):
        raise BundleError("it lists no files of a bundle")
    # The answer says what may be replaced: a stranger's manifest must not name other files.
    return frozenset(files).intersection((*FILES, *OPTIONAL_FILES))
