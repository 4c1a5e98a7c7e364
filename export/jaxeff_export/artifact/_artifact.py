"""From a JAX function to a StableHLO artifact: the portable half of an export.

`export` lowers ``f(*args)`` with ``jax.export``, for fixed shapes or for any batch, and keeps what
the StableHLO module itself forgets: the names of the arguments (pytree paths), and the structure of
the result.

A function with state takes it as arguments and returns it anew, after everything else, in a tuple:
``step(params, token, cache) -> (logits, cache)``.

```python
from jaxeff.nn import small_classifier
from jaxeff_export import Artifact, export

f, params, (x, y) = small_classifier(10)
artifact = export(f, (params, x))
artifact.save("net.zip")
assert "stablehlo.convolution" in Artifact.load("net.zip").text
```
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from jaxeff.core import (
    any_of,
    boolean,
    call_arguments,
    function_of_form,
    static_integer,
    string_sequence,
    validate,
)
from jaxeff.moment_propagation import MomentsWarning
from jaxeff.program import methods_chosen
from jaxeff.store import max_inflated_size, open_regular, read_member, write_atomically
from jaxeff_export.artifact import _signature as signature
from jaxeff_export.targets import require_extra

MOST_TEXT = 1 << 24
"""Bytes of a document: those of a network of a hundred thousand arrays."""


_DOORS = {
    ".onnx": "jaxeff_export.from_onnx(path)",
    **dict.fromkeys((".pt", ".pth"), "jaxeff.functional(module)"),
    **dict.fromkeys((".keras", ".h5"), "jaxeff.functional(model)"),
}
"""What reads the files of other libraries, by their ending."""


def digest(data: bytes) -> str:
    """Returns the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def add_checksum(document: dict[str, Any]) -> bytes:
    """Writes a JSON document with a checksum of itself under ``sha256``.

    Documents carry a checksum of themselves, which catches transmission errors and accidents. An
    attacker can compute it as well, so the size of everything read is bounded: zeros deflate to a
    thousandth of their size in memory.
    """
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


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def belongs(spec: signature.TensorSpec, name: str) -> bool:
    """Tells whether an array is a leaf of the argument of that name."""
    # What follows the name has to begin a path: `x` is no prefix of `x2`.
    return spec.name.startswith(name) and spec.name[len(name) :][:1] in ("", "[", ".")


def state_places(
    state: Sequence[str],
    arguments: Sequence[str],
    inputs: Sequence[signature.TensorSpec],
    outputs: Sequence[signature.TensorSpec],
    structure: signature.Description,
) -> list[tuple[int, int]]:
    """Pairs the arrays of state among the arguments with those among the results.

    Args:
      state: names of the arguments that are state, in the order of the results.
      arguments: names of the arguments that are data.
      inputs: their arrays.
      outputs: arrays of the results.
      structure: description of the results.

    Returns:
      Per array its indices in `inputs` and in `outputs`.

    Raises:
      SignatureError: naming an argument that is unknown or named twice, or an array that changes
        its place in the tree, shape or dtype.
    """
    for name in state:
        if name not in arguments or list(state).count(name) > 1:
            twice = "twice" if name in arguments else "no argument that is data"
            raise signature.SignatureError(
                f"state names {name}, which is {twice}; those that are data are "
                f"{', '.join(arguments) or 'none'}"
            )
    if not state:
        return []
    items = structure.get("items", []) if structure["kind"] == "tuple" else []
    if len(items) < len(state):
        raise signature.SignatureError(
            "a function with state returns a tuple, whose last elements are the new "
            f"{', '.join(state)}; this one returns a {structure['kind']}"
        )
    pairs = []
    # Where the leaves of each element of the tuple begin, and what is before the state.
    counts = [signature.count_leaves(item) for item in items]
    for offset, name in enumerate(state):
        place = len(items) - len(state) + offset
        first = sum(counts[:place])
        news = list(enumerate(outputs))[first : first + counts[place]]
        olds = [(i, spec) for i, spec in enumerate(inputs) if belongs(spec, name)]
        if not olds:
            raise signature.SignatureError(f"state names {name}, which has no arrays")
        if len(olds) != len(news):
            raise signature.SignatureError(
                f"the state {name} has {len(olds)} arrays, what replaces it (result[{place}]) has "
                f"{len(news)}; return it in the same tree"
            )
        for (i, old), (j, new) in zip(olds, news, strict=True):
            _require_same(old, new, old.name[len(name) :], f"result[{place}]")
            pairs.append((i, j))
    return pairs


def _require_same(
    old: signature.TensorSpec, new: signature.TensorSpec, path: str, result: str
) -> None:
    if old.varies:
        raise signature.SignatureError(
            f"the state {old.name} has the shape {old.shape}, which varies; leave its argument out "
            "of any_batch"
        )
    # Paths within the trees: a dict with other keys has as many leaves.
    if new.name != result + path:
        raise signature.SignatureError(
            f"the state {old.name} is replaced by {new.name}; return it in the same tree"
        )
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        ours, theirs = (f"{spec.dtype}{list(spec.shape)}" for spec in (old, new))
        raise signature.SignatureError(
            f"the state {old.name} is {ours}, what replaces it ({new.name}) {theirs}; return it in "
            "the same shape and dtype"
        )


FORMAT = "jaxeff-artifact"
FORMAT_VERSION = 1
FORMAT_VERSION_ANY_BATCH = 2  # shapes with a size that may vary; nothing else is new

_INTEGER = b"jaxeff.q_"  # how the names of composites of integer layers begin
_MODULE, _CALLABLE, _INDEX = "model.stablehlo", "model.jax", "artifact.json"

_FORM = {
    "arguments": [str],
    "inputs": [signature.SPEC],
    "outputs": [signature.SPEC],
    "structure": {},
    "versions": {},
    "files": {_MODULE: str, _CALLABLE: str},
}


class ArtifactError(ValueError):
    """Raised for a file that is no artifact, is damaged, or has another format version."""


@dataclass(frozen=True)
class Artifact:
    """A function lowered to StableHLO, for fixed shapes or for any batch.

    Saved, an artifact is one zip file: ``model.stablehlo`` (the portable MLIR bytecode, for any
    StableHLO consumer), ``model.jax`` (what JAX's calling convention adds to it, for
    ``artifact.call``) and ``artifact.json`` (names, shapes, dtypes, versions, checksums).

    Attributes:
      stablehlo: the module as a StableHLO portable artifact (MLIR bytecode, versioned).
      exported: the module with JAX's calling convention, as ``jax.export`` serializes it.
      arguments: the names of the function's arguments.
      inputs: the flattened arguments, in the module's order.
      outputs: the flattened results, in the module's order.
      structure: the description of the result's pytree.
      versions: versions of the packages that made it.
    """

    stablehlo: bytes = field(repr=False)
    exported: bytes = field(repr=False)
    arguments: tuple[str, ...]
    inputs: tuple[signature.TensorSpec, ...]
    outputs: tuple[signature.TensorSpec, ...]
    structure: signature.Description = field(repr=False)
    versions: Mapping[str, str] = field(repr=False)

    def leaf_count(self, arguments: int) -> int:
        """Counts the inputs that are leaves of the first `arguments` arguments."""
        names = self.arguments[:arguments]
        return sum(any(belongs(spec, name) for name in names) for spec in self.inputs)

    @property
    def any_batch(self) -> bool:
        """Tells whether the batch of the inputs may vary."""
        return any(spec.varies for spec in self.inputs)

    @property
    def rounds_inputs(self) -> bool:
        """Tells whether the function has integer layers, which round data to codes."""
        if any(spec.grid is not None for spec in self.inputs):
            return False  # its data are codes already
        # The names of composites stand in the portable bytes as they are, so nothing is parsed.
        return _INTEGER in self.stablehlo

    @property
    def text(self) -> str:
        """Returns the module as MLIR text."""
        return str(jax.export.deserialize(bytearray(self.exported)).mlir_module())

    def call(self, *leaves: Any) -> list[Any]:
        """Runs the module with JAX on flattened arguments; returns the flattened results."""
        return list(jax.export.deserialize(bytearray(self.exported)).call(*leaves))

    def to_bytes(self) -> bytes:
        """Returns the content of the file that `save` writes."""
        # What JAX serializes has the module in it, which is written once; checksums are of both.
        before, module, after = self.exported.partition(self.stablehlo)
        files = {_MODULE: self.stablehlo, _CALLABLE: before + after}
        checked = {_MODULE: self.stablehlo, _CALLABLE: self.exported}
        index = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION_ANY_BATCH if self.any_batch else FORMAT_VERSION,
            "versions": dict(self.versions),
            "arguments": list(self.arguments),
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
            "structure": self.structure,
            **({"module_at": len(before)} if module else {}),
            "files": {name: digest(content) for name, content in checked.items()},
        }
        members = {**files, _INDEX: add_checksum(index)}
        data = _zipped(members, zipfile.ZIP_DEFLATED)
        if max(map(len, files.values())) > max_inflated_size(len(data)):
            return _zipped(members, zipfile.ZIP_STORED)  # otherwise nobody would read it
        return data

    def save(self, path: str | Path) -> Path:
        """Writes the artifact to one file, whole or not at all."""
        path = Path(path)
        write_atomically(path, self.to_bytes())
        return path

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the artifact") -> Artifact:
        """Reads the artifact of `to_bytes`.

        Raises:
          ArtifactError: naming `name` and what is wrong with it.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                index = verify_checksum(read_member(archive, _INDEX, MOST_TEXT))
                if index.get("format") != FORMAT:
                    raise ArtifactError(f"{name} is a {index.get('format')!r}, not a {FORMAT}")
                if wrong := version_complaint(index, (FORMAT_VERSION, FORMAT_VERSION_ANY_BATCH)):
                    raise ArtifactError(f"{name} has {wrong}; export it again")
                # A checksum doesn't tell who wrote it: its form is checked before it is used.
                signature.require_form(index, _FORM, "")
                signature.require_form(index["versions"], signature.MappingOf(str), "versions")
                # Checked while reading: a small file must not fill the memory.
                most = max_inflated_size(len(data))
                files = {part: read_member(archive, part, most) for part in (_MODULE, _CALLABLE)}
            if (place := index.get("module_at")) is not None:
                signature.require_form(place, signature.COUNT, "module_at")
                rest = files[_CALLABLE]
                files[_CALLABLE] = rest[:place] + files[_MODULE] + rest[place:]
            for part, content in files.items():
                if digest(content) != index["files"][part]:
                    raise ArtifactError(f"{name} is damaged: the checksum of {part} differs")
            artifact = cls(
                stablehlo=files[_MODULE],
                exported=files[_CALLABLE],
                arguments=tuple(index["arguments"]),
                inputs=signature.specs_from_json(index["inputs"], "inputs"),
                outputs=signature.specs_from_json(index["outputs"], "outputs"),
                structure=index["structure"],
                versions=index["versions"],
            )
            # A checksum does not prove that jaxeff wrote it: parts may contradict each other.
            if artifact.any_batch != (index["format_version"] == FORMAT_VERSION_ANY_BATCH):
                raise ValueError("format_version and inputs differ in whether the batch may vary")
            if signature.require_structure(artifact.structure) != len(artifact.outputs):
                raise ValueError("structure and outputs differ in how many arrays they have")
            return artifact
        except ArtifactError:
            raise
        except Exception as error:  # at a zip file that is none, nearly any
            door = _DOORS.get(Path(name).suffix.lower())
            if door is not None:
                raise ArtifactError(
                    f"{name} is a model of another library: f, params = {door}, and then "
                    "jaxeff_export.export(f, (params, x)).save(...) makes an artifact of it, or "
                    "jaxeff_export.deploy(f, (params, x)) a bundle"
                ) from error
            raise ArtifactError(f"{name} is damaged or no artifact: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Artifact:
        """Reads a saved artifact.

        Raises:
          ArtifactError: if the file is missing, no regular file, cut short, altered, or of another
            format version.
        """
        path = Path(path)
        try:
            with open_regular(path) as (file, _):
                data = file.read()
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
        return cls.from_bytes(data, str(path))


@validate(
    f=function_of_form("f(*args)"),
    args=call_arguments,
    parameters=static_integer(0),
    any_batch=any_of(boolean, string_sequence),
)
def export(
    f: Callable[..., Any],
    args: Sequence[Any],
    *,
    any_batch: bool | Collection[str] = False,
    parameters: int = 1,
) -> Artifact:
    """Lowers ``f(*args)`` to StableHLO.

    Sharp edges: all shapes are static but for one batch. Arguments the function does not use are
    kept, so that the module's arguments are the function's. Arrays that `f` closes over become
    constants of the module: pass what should stay exchangeable as an argument.

    Args:
      f: a pure function of arrays and pytrees of arrays, jitted or not.
      args: the arguments; only shapes and dtypes matter, so leaves may also be
        ``jax.ShapeDtypeStruct``.
      any_batch: True if the first axis of everything that is data is a batch, the same for all,
        which may have any size from 1; or the names of the arguments that have one. Leaves without
        axes have none.
      parameters: number of leading arguments that are no data.

    Returns:
      The artifact, lowered for CPUs.

    Raises:
      MissingExtraError: if flatbuffers, which JAX writes artifacts with, is not installed.
      SignatureError: if a leaf of the arguments is no array, `any_batch` names what is no data, the
        batches differ, or JAX cannot trace the function without knowing the batch.
      TypeError: if the result's structure cannot be written down.
    """
    return export_traced(f, args, any_batch=any_batch, parameters=parameters).artifact


@dataclass(frozen=True)
class TracedExport:
    """An artifact, and the function that it was lowered from as JAX has traced it.

    Attributes:
      artifact: what `export` returns.
      call: the function compiled by JAX, of flattened arguments, with flattened results. Of
        arguments of the exported shapes and dtypes nothing is traced again.
      treedef: the exact structure of results.
    """

    artifact: Artifact
    call: Callable[..., tuple[Any, ...]]
    treedef: Any


_CHOSEN = (
    "moments(f) has chosen the linear method, a pass backward for each result, which is dear in a "
    "compiled function: deploy(moments(f), ...) takes the diagonal pass, but not inside of another "
    "function. Say there which is meant, moments(f, method='diagonal') or method='linear'."
)


def export_traced(
    f: Callable[..., Any],
    args: Sequence[Any],
    *,
    any_batch: bool | Collection[str],
    parameters: int,
) -> TracedExport:
    """Lowers a function as `export` does, and keeps what JAX itself would compute it by."""
    require_extra("flatbuffers", "export")
    names = signature.argument_names(f, len(args))
    batched = signature.batched_arguments(names, parameters, any_batch)
    # Refuses what is no array by name before JAX traces anything.
    leaves, _ = signature.flatten_named(args, names)
    treedef = jax.tree.structure(tuple(args))
    structs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    fixed = jax.tree.unflatten(treedef, structs)
    structures: list[Any] = []  # of the results, the same for every batch

    def flat(*flat_args: Any) -> tuple[Any, ...]:
        results, structure = jax.tree.flatten(f(*jax.tree.unflatten(treedef, flat_args)))
        structures.append(structure)
        # Python numbers among the results become arrays, as a compiled library returns.
        return tuple(jnp.asarray(leaf) for leaf in results)

    # One function for all that follows, so that JAX finds it traced already. Unused arguments are
    # kept, so that the module's signature is the function's.
    jitted = jax.jit(flat, keep_unused=True)

    def lowered(arguments: Sequence[Any]) -> TracedExport:
        leaves, inputs = signature.flatten_named(arguments, names)
        traced = jitted.trace(*leaves)
        if "linear" in methods_chosen(traced.jaxpr):
            warnings.warn(_CHOSEN, MomentsWarning, stacklevel=4)
        result = jax.tree.unflatten(structures[-1], traced.out_info)
        _, outputs = signature.flatten_named([result], ["result"])
        # `jaxeff.integer(...).coded(...)` says what its codes stand for; parameters come before
        # data.
        of_data, of_results = getattr(f, "code_grids", ((), ()))
        exported = jax.export.export(jitted, platforms=["cpu"])(*leaves)
        artifact = Artifact(
            stablehlo=exported.mlir_module_serialized,
            exported=bytes(exported.serialize()),
            arguments=tuple(names),
            inputs=tuple(signature.with_grids(inputs, of_data)),
            outputs=tuple(signature.with_grids(outputs, of_results)),
            structure=signature.describe(result),
            versions=package_versions("jaxeff", "jax", "jaxlib"),
        )
        return TracedExport(artifact, jitted, structures[-1])

    if not batched:
        return lowered(fixed)
    arguments = _of_any_batch(fixed, names, batched)
    jax.eval_shape(jitted, *structs)  # what is wrong whatever the batch is said as it is
    try:
        return lowered(arguments)
    except Exception as error:
        raise _needs_batch(error) from error


def _needs_batch(error: Exception) -> signature.SignatureError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return signature.SignatureError(
        f"JAX cannot trace the function without knowing the batch: {lines[0]} -- let nothing but "
        "shapes depend on it (x.shape[0], or -1 in a reshape), name in any_batch only what has "
        "one, or leave any_batch out"
    )


def _of_any_batch(
    arguments: Sequence[Any], names: Sequence[str], batched: Collection[str]
) -> list[Any]:
    """Replaces the batch of abstract arguments by one that may vary."""
    specs = signature.flatten_named(arguments, names)[1]
    # One symbol for all arguments: their batches are the same by construction.
    (size,) = jax.export.symbolic_shape(signature.BATCH)
    owners = [
        name for name, tree in zip(names, arguments, strict=True) for _ in jax.tree.leaves(tree)
    ]
    pairs = zip(specs, owners, strict=True)
    shapes = [(s.name, s.shape) for s, name in pairs if name in batched and s.shape]
    if signature.common_batch(shapes) is None:
        raise signature.SignatureError(f"any_batch: no array in {', '.join(batched)} has an axis")

    def generalize(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype) if leaf.shape else leaf

    return [
        jax.tree.map(generalize, tree) if name in batched else tree
        for name, tree in zip(names, arguments, strict=True)
    ]


def _zipped(members: Mapping[str, bytes], how: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            # A fixed date, so that equal artifacts are equal files.
            member = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(member, content, how)
    return buffer.getvalue()


def package_versions(*names: str) -> dict[str, str]:
    """Returns the installed versions of packages."""
    return {name: metadata.version(name) for name in names}
