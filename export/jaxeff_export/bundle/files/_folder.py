"""A bundle's folder: its manifest, and the files in it, each checked against the manifest.

The manifest lists the files, the arguments and results, and the versions that made the bundle. A
tokenizer is a file too, so that a decoder's bundle is all that texts need.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxeff.contrib import Tokenizer
from jaxeff.store import atomic_folder, open_regular, write_atomically
from jaxeff_export.artifact import (
    COUNT,
    MOST_TEXT,
    SPEC,
    Artifact,
    ArtifactError,
    Description,
    MappingOf,
    TensorSpec,
    add_checksum,
    digest,
    require_form,
    require_structure,
    specs_from_json,
    state_places,
    verify_checksum,
    version_complaint,
)
from jaxeff_export.bundle.files._arrays import (
    ArrayPlaces,
    RecordedPair,
    unpack_arrays,
    unpack_places,
)
from jaxeff_export.runtime import BundleError

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
TOKENIZER, UNPACKED, PLACES = "tokenizer.json", "unpacked.npz", "places.npz"
OPTIONAL_FILES = (TOKENIZER, UNPACKED, PLACES)
MANIFEST = "manifest.json"


_FILE = {"size": COUNT, "sha256": str}
_WORK = {name: COUNT for name in ("read", "written", "bound", "products", "calls")}
_TARGET = {
    **{name: str for name in ("kind", "mcpu", "mtriple", "mfloat-abi", "mabi")},
    **{name: COUNT for name in ("num-cores", "vector-width")},
    "mattr": [str],
    "processor": {"name": str},
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
      calls: the kernels in the order they are called, each with the parameters of the artifact
        that it reads, laid out anew or not, as indices.
      tiles: by kernel of a product the last extents of its result that registers hold at
        once; empty in bundles of older versions.
      batches: batches of the pairs of inputs and outputs recorded for the self-check, the example's
        own first, where the batch may vary; empty where it is fixed, and one pair is recorded.
      verdict: what is known of the results beside their values, as it was given to `deploy`.
      state: names of the arguments that sessions keep and update, in the order of the results.
      placed: by name of a parameter that the library takes in a layout of its own, where its
        numbers are: which derived array has them, which places are theirs, and how many there are.
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
    calls: tuple[tuple[str, tuple[int, ...]], ...] = field(default=(), repr=False)
    tiles: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    batches: tuple[int, ...] = ()
    verdict: str = ""
    state: tuple[str, ...] = ()
    placed: Mapping[str, tuple[int, int, int]] = field(default_factory=dict, repr=False)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Pairs the arrays of state: indices of those among `inputs` and among `outputs`."""
        return state_places(self.state, self.arguments, self.inputs, self.outputs, self.structure)

    @property
    def model(self) -> str:
        """Hash of function, parameters and kernels, by which a firmware of it is known."""
        sums = [str(self.files[name]["sha256"]) for name in (ARTIFACT, PARAMETERS, LIBRARY)]
        return hashlib.sha256("".join(sums).encode()).hexdigest()[:16]

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
                "calls": [{"kernel": kernel, "reads": list(reads)} for kernel, reads in self.calls],
                "tiles": {name: list(tile) for name, tile in self.tiles.items()},
                **more,
                # Said twice: an entry of a file that is lost is missed.
                **({"unpacked": True} if UNPACKED in self.files else {}),
                **({"placed": {n: list(p) for n, p in self.placed.items()}} if self.placed else {}),
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
        _require_forms(content)
        manifest = cls(
            target_name=content["target_name"],
            target=content["target"],
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
            calls=tuple((c["kernel"], tuple(c["reads"])) for c in content.get("calls", ())),
            tiles={name: tuple(tile) for name, tile in content.get("tiles", {}).items()},
            batches=tuple(content.get("batches", ())),
            verdict=content.get("verdict", ""),
            state=tuple(content.get("state", ())),
            placed={name: tuple(p) for name, p in content.get("placed", {}).items()},
        )
        manifest._require_agreement(content["format_version"])
        return manifest

    def _require_agreement(self, format_version: int) -> None:
        """Checks whether entries agree, each of its own form, which all later code relies on."""
        if require_structure(self.structure) != len(self.outputs):
            raise ValueError("structure and outputs differ in how many arrays they have")
        _ = self.places  # raises where state and the arrays differ
        if self.any_batch != any(spec.varies for spec in self.inputs):
            raise ValueError("batches and inputs differ in whether the batch may vary")
        if self.any_batch != (format_version == FORMAT_VERSION_ANY_BATCH):
            raise ValueError("format_version and batches differ in whether the batch may vary")
        if 0 in self.batches:
            raise ValueError("batches has an empty one")
        if self.target.get("num-cores") == 0:
            raise ValueError("target.num-cores is 0")
        if varying := [s.name for s in (*self.parameters, *self.derived) if s.varies]:
            raise ValueError(
                f"parameters and derived are bound, but the shape of {varying[0]} varies"
            )
        bound = len(self.parameters) + len(self.derived)
        if any(index >= bound for index in self.operands):
            raise ValueError(
                "an operand is no bound array: operands has an index beyond parameters and derived"
            )
        # Missing or twice, it would be an operand that the library doesn't take.
        if sorted(self.operands) != list(range(bound)):
            raise ValueError("operands does not have each of parameters and derived once")
        if any(len(p) != 3 or p[0] >= len(self.derived) for p in self.placed.values()):
            raise ValueError("placed has an entry that names no derived array")
        if any(spec.name != f"derived[{i}]" for i, spec in enumerate(self.derived)):
            raise ValueError("derived has another name than its arrays are given")

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
            "calls": all(index < bound for _, reads in self.calls for index in reads),
            "parameters": all(spec in taken for spec in self.parameters),
        }
        if differing := [name for name, agrees in same.items() if not agrees]:
            raise BundleError(f"{MANIFEST} and {ARTIFACT} differ in {differing[0]}")


def _require_forms(content: dict[str, Any]) -> None:
    """Checks the form of every entry of a document, and the names of files."""
    require_form(content, _FORM, "")
    require_form(content["versions"], MappingOf(str), "versions")
    require_form(content.get("kernels", {}), MappingOf(_WORK), "kernels")
    require_form(content["files"], MappingOf(_FILE), "files")
    require_form(content.get("calls", []), [{"kernel": str, "reads": [COUNT]}], "calls")
    require_form(content.get("tiles", {}), MappingOf([COUNT]), "tiles")
    require_form(content.get("batches", []), [COUNT], "batches")
    require_form(content.get("verdict", ""), str, "verdict")
    require_form(content.get("unpacked", False), bool, "unpacked")
    if content.get("unpacked", False) != (UNPACKED in content["files"]):
        raise ValueError(f"unpacked and files differ in whether there is {UNPACKED}")
    require_form(content.get("placed", {}), MappingOf([COUNT]), "placed")
    if bool(content.get("placed")) != (PLACES in content["files"]):
        raise ValueError(f"placed and files differ in whether there is {PLACES}")
    require_form(content.get("state", []), [str], "state")
    target = content["target"]
    # Settings of a target are optional, and TVM has more of them: those known are checked.
    said = {name: form for name, form in _TARGET.items() if name in target}
    require_form(target, said, "target")
    # A name may lead anywhere; files beside these are never opened.
    known = (*FILES, *OPTIONAL_FILES)
    if foreign := [name for name in content["files"] if name not in known]:
        raise ValueError(f"files names {foreign[0]!r}, which no bundle has")


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


_LISTS = ("tokens", "merges", "special")


def pack_tokenizer(tokenizer: Tokenizer) -> bytes:
    """Writes a tokenizer."""
    content = {
        "tokens": list(tokenizer.tokens),
        "merges": list(tokenizer.merges),
        "special": sorted(tokenizer.special),
        "cut": tokenizer.cut,
        "end": tokenizer.end,
    }
    return json.dumps(content, ensure_ascii=False).encode()


def unpack_tokenizer(data: bytes) -> Tokenizer:
    """Reads what `pack_tokenizer` wrote.

    Raises:
      BundleError: if it is of another form, or its parts contradict each other.
    """
    try:
        content = json.loads(data)
        require_form(content, {**{name: [str] for name in _LISTS}, "cut": str}, "")
        if (end := content.get("end")) is not None:
            require_form(end, COUNT, "end")
        tokens, merges, special = (content[name] for name in _LISTS)
        return Tokenizer(tokens, merges, frozenset(special), content["cut"], end)
    # Of a stranger's making: deep nesting and broken UTF-8 are its errors too.
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{TOKENIZER} is damaged: {error}") from error


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
            _ = bundle.operands, bundle.recorded, bundle.tokenizer, bundle.unpacked
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
    def unpacked(self) -> list[np.ndarray] | None:
        """All parameters as they were given, if the bundle has those that it packed."""
        artifact = self.artifact
        bound = artifact.inputs[: len(artifact.inputs) - len(self.manifest.inputs)]
        stored = [spec.name for spec in self.manifest.parameters]
        placed = self.placements
        packed = [spec for spec in bound if spec.name not in {*stored, *placed}]
        if packed and UNPACKED not in self.manifest.files:
            return None
        arrays = dict(zip(stored, self.parameters, strict=True))
        if packed:
            names = (spec.name for spec in packed)
            arrays |= zip(names, self._arrays(UNPACKED, packed), strict=True)
        derived = self.derived if placed else []
        try:
            arrays |= {s.name: placed[s.name].read(derived, s) for s in bound if s.name in placed}
        except ValueError as error:
            raise BundleError(f"{PLACES} is damaged: {error}") from error
        return [arrays[spec.name] for spec in bound]

    @property
    def placements(self) -> dict[str, ArrayPlaces]:
        """Where the numbers of packed parameters are, by the parameters' names."""
        placed = self.manifest.placed
        if not placed:
            return {}
        counts = {number: count for _, number, count in placed.values()}
        try:
            if sorted(counts) != list(range(len(counts))):
                raise ValueError("placed leaves a number out")
            arrays = unpack_places(self._read(PLACES), [counts[i] for i in range(len(counts))])
        except BundleError:
            raise
        except ValueError as error:
            raise BundleError(f"{PLACES} is damaged: {error}") from error
        return {name: ArrayPlaces(at, arrays[number]) for name, (at, number, _) in placed.items()}

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
