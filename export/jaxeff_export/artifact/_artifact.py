"""From a JAX function to a StableHLO artifact: the portable half of an export.

`export` lowers ``f(*args)`` with ``jax.export``, for fixed shapes or for any batch, and keeps what
the StableHLO module itself forgets: the names of the arguments (pytree paths), and the structure of
the result.

Saved, an artifact is one zip file: ``model.stablehlo`` (the portable MLIR bytecode, for any
StableHLO consumer), ``model.jax`` (the same with JAX's calling convention, for ``artifact.call``)
and ``artifact.json`` (names, shapes, dtypes, versions, checksums).

Sharp edges: all shapes are static but for one batch. Arguments the function does not use are kept,
so that the module's arguments are the function's. Arrays that `f` closes over become constants of
the module: pass what should stay exchangeable as an argument.

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

import io
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from jaxeff.core import any_of, boolean, function_of_form, static_integer, string_sequence, validate
from jaxeff.store import open_regular, write_atomically
from jaxeff_export.artifact._archive import (
    MOST_TEXT,
    add_checksum,
    digest,
    max_inflated_size,
    read_member,
    verify_checksum,
    version_complaint,
)
from jaxeff_export.artifact._forms import SPEC, MappingOf, require_form
from jaxeff_export.artifact._signature import (
    BATCH,
    SignatureError,
    TensorSpec,
    argument_names,
    batched_arguments,
    common_batch,
    flatten_named,
    specs_from_json,
    with_grids,
)
from jaxeff_export.artifact._state import belongs
from jaxeff_export.artifact._structure import Description, describe, require_structure
from jaxeff_export.targets import require_extra

FORMAT = "jaxeff-artifact"
FORMAT_VERSION = 1
FORMAT_VERSION_ANY_BATCH = 2  # shapes with a size that may vary; nothing else is new

_INTEGER = b"jaxeff.q_"  # how the names of composites of integer layers begin
_MODULE, _CALLABLE, _INDEX = "model.stablehlo", "model.jax", "artifact.json"

_FORM = {
    "arguments": [str],
    "inputs": [SPEC],
    "outputs": [SPEC],
    "structure": {},
    "versions": {},
    "files": {_MODULE: str, _CALLABLE: str},
}


class ArtifactError(ValueError):
    """Raised for a file that is no artifact, is damaged, or has another format version."""


@dataclass(frozen=True)
class Artifact:
    """A function lowered to StableHLO, for fixed shapes or for any batch.

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
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    structure: Description = field(repr=False)
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
        files = {_MODULE: self.stablehlo, _CALLABLE: self.exported}
        index = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION_ANY_BATCH if self.any_batch else FORMAT_VERSION,
            "versions": dict(self.versions),
            "arguments": list(self.arguments),
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
            "structure": self.structure,
            "files": {name: digest(content) for name, content in files.items()},
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
                require_form(index, _FORM, "")
                require_form(index["versions"], MappingOf(str), "versions")
                # Checked while reading: a small file must not fill the memory.
                most = max_inflated_size(len(data))
                files = {part: read_member(archive, part, most) for part in (_MODULE, _CALLABLE)}
            for part, content in files.items():
                if digest(content) != index["files"][part]:
                    raise ArtifactError(f"{name} is damaged: the checksum of {part} differs")
            artifact = cls(
                stablehlo=files[_MODULE],
                exported=files[_CALLABLE],
                arguments=tuple(index["arguments"]),
                inputs=specs_from_json(index["inputs"], "inputs"),
                outputs=specs_from_json(index["outputs"], "outputs"),
                structure=index["structure"],
                versions=index["versions"],
            )
            # A checksum does not prove that jaxeff wrote it: parts may contradict each other.
            if artifact.any_batch != (index["format_version"] == FORMAT_VERSION_ANY_BATCH):
                raise ValueError("format_version and inputs differ in whether the batch may vary")
            if require_structure(artifact.structure) != len(artifact.outputs):
                raise ValueError("structure and outputs differ in how many arrays they have")
            return artifact
        except ArtifactError:
            raise
        except Exception as error:  # at a zip file that is none, nearly any
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
    parameters=static_integer(0),
    any_batch=any_of(boolean, string_sequence),
)
def export(
    f: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    any_batch: bool | Collection[str] = False,
    parameters: int = 1,
) -> Artifact:
    """Lowers ``f(*example_args)`` to StableHLO.

    Args:
      f: a pure function of arrays and pytrees of arrays, jitted or not.
      example_args: the arguments; only shapes and dtypes matter, so leaves may also be
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
    require_extra("flatbuffers", "export")
    names = argument_names(f, len(example_args))
    batched = batched_arguments(names, parameters, any_batch)
    # Refuses what is no array by name before JAX traces anything.
    leaves, _ = flatten_named(example_args, names)
    structs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    fixed = jax.tree.unflatten(jax.tree.structure(tuple(example_args)), structs)
    if not batched:
        return _lowered(f, names, fixed)
    arguments = _of_any_batch(fixed, names, batched)
    jax.eval_shape(f, *fixed)  # what is wrong whatever the batch is said as it is
    try:
        return _lowered(f, names, arguments)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise SignatureError(
            f"JAX cannot trace the function without knowing the batch: {lines[0]} -- let nothing "
            "but shapes depend on it (x.shape[0], or -1 in a reshape), name in any_batch only what "
            "has one, or leave any_batch out"
        ) from error


def _of_any_batch(
    arguments: Sequence[Any], names: Sequence[str], batched: Collection[str]
) -> list[Any]:
    """Replaces the batch of abstract arguments by one that may vary."""
    specs = flatten_named(arguments, names)[1]
    # One symbol for all arguments: their batches are the same by construction.
    (size,) = jax.export.symbolic_shape(BATCH)
    owners = [
        name for name, tree in zip(names, arguments, strict=True) for _ in jax.tree.leaves(tree)
    ]
    pairs = zip(specs, owners, strict=True)
    shapes = [(s.name, s.shape) for s, name in pairs if name in batched and s.shape]
    if common_batch(shapes) is None:
        raise SignatureError(f"any_batch: no array in {', '.join(batched)} has an axis")

    def generalize(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype) if leaf.shape else leaf

    return [
        jax.tree.map(generalize, tree) if name in batched else tree
        for name, tree in zip(names, arguments, strict=True)
    ]


def _lowered(f: Callable[..., Any], names: Sequence[str], arguments: Sequence[Any]) -> Artifact:
    """Lowers a function of abstract arguments to an artifact."""
    leaves, inputs = flatten_named(arguments, names)
    treedef = jax.tree.structure(tuple(arguments))

    def flat(*flat_args: Any) -> tuple[Any, ...]:
        result = f(*jax.tree.unflatten(treedef, flat_args))
        # Python numbers among the results become arrays, as a compiled library returns.
        return tuple(jnp.asarray(leaf) for leaf in jax.tree.leaves(result))

    result = jax.eval_shape(f, *arguments)
    _, outputs = flatten_named([result], ["result"])
    # `jaxeff.integer(...).coded(...)` says what its codes stand for; parameters come before data.
    of_data, of_results = getattr(f, "code_grids", ((), ()))
    inputs, outputs = with_grids(inputs, of_data), with_grids(outputs, of_results)
    # Unused arguments are kept, so that the module's signature is the function's.
    exported = jax.export.export(jax.jit(flat, keep_unused=True), platforms=["cpu"])(*leaves)
    return Artifact(
        stablehlo=exported.mlir_module_serialized,
        exported=bytes(exported.serialize()),
        arguments=tuple(names),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        structure=describe(result),
        versions=package_versions("jaxeff", "jax", "jaxlib"),
    )


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
