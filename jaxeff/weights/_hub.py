"""Models on the Hub of Hugging Face: parameters, the spec of a transform, and a card of both.

A repository holds `model.safetensors` (parameters by path, with a checksum, as `jaxeff.store`
writes them), `jaxeff.json` (the spec: settings of jaxeff by pattern) and `README.md` (the card).
`huggingface_hub` speaks with the Hub and keeps what it fetched in its own cache.

Sharp edges:
    A function isn't stored: it is made where the model's code is, as `functional` makes it.
    A spec may hold settings that a room of jaxeff offers, no classes of one's own: a file that
    names others is refused, and none is read as code.
    Without a connection the last version in the cache is taken.
    A second push replaces all three files: texts of the card go into `about`.
"""

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import describe_value, parameter_tree, spec_of, string, string_mapping, validate
from jaxeff.store import CheckpointError, load_pytree, save_pytree, write_atomically
from jaxeff.weights._files import WeightsError

_ARRAYS, _FACTS, _CARD = "model.safetensors", "jaxeff.json", "README.md"
_FORMAT = 1
_MOST_BYTES = 1 << 24  # of a spec
_ROOM = re.compile(r"jaxeff\.[a-z_]+")
_SAFE = re.compile(r"[\w.-]+/[\w.-]+")


class HubModel(NamedTuple):
    """What `load_from_hub` returns.

    Attributes:
        params: The parameters.
        spec: The spec that came with them; None without.
        card: The model card, as Markdown.
        folder: Folder of the files.
    """

    params: Any
    spec: dict[str, Any] | None
    card: str
    folder: Path


def _repository(where: str, value: Any) -> None:
    """Checks for the name of a repository, or a path."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(
            f"{where} must be the name of a repository, 'owner/name', or a pathlib.Path of a "
            f"folder, not {describe_value(value)}."
        )


def _has_markdown(where: str, value: Any) -> None:
    if not isinstance(getattr(value, "markdown", None), str):
        raise TypeError(f"{where} must be what jaxeff.report returns, not {describe_value(value)}.")


def _hub(where: str, value: Any) -> None:
    missing = [n for n in ("create_repo", "upload_folder", "snapshot_download")
               if not callable(getattr(value, n, None))]  # fmt: skip
    if missing:
        raise TypeError(
            f"{where} must be a huggingface_hub.HfApi: {describe_value(value)} has no {missing[0]}."
        )


@validate(
    repo=_repository, params=parameter_tree, spec=spec_of(), report=_has_markdown,
    about=string_mapping, api=_hub,
)  # fmt: skip
def push_to_hub(
    repo: str | os.PathLike[str],
    params: Any,
    *,
    spec: Mapping[str, Any] | None = None,
    report: Any = None,
    about: Mapping[str, str] | None = None,
    private: bool = False,
    api: Any = None,
) -> str:
    """Puts parameters, the spec of a transform and a model card on the Hub of Hugging Face.

    Args:
        repo: The repository's name, `owner/name`, made if there is none; or a `pathlib.Path`, a
            folder to write into.
        params: A pytree of arrays.
        spec: Settings by pattern, such as `compression.calibrate` returns; None without.
        report: What `jaxeff.report` measured, for the card.
        about: Further texts of the card, by their headings.
        private: Whether a new repository is seen by its owner alone.
        api: A `huggingface_hub.HfApi`; by default one that is logged in by `hf auth login`.

    Returns:
        The address of what was put there, or the folder.

    Raises:
        ImportError: The package `huggingface_hub` isn't there.
        TypeError: A setting of the spec is of a class of your own.
        WeightsError: The Hub refuses, or isn't reached; nothing is there then.

    ```python
    from pathlib import Path
    import jaxeff
    from jaxeff.nn import small_classifier
    from jaxeff.weights import load_from_hub, push_to_hub

    f, params, (x, y) = small_classifier()
    spec = jaxeff.compression.calibrate(f, params, x, {"*:linear": jaxeff.Int(8)}).spec
    push_to_hub(Path("digits"), params, spec=spec)          # or "owner/digits"
    g = jaxeff.integer(f, load_from_hub("digits").spec)
    ```
    """
    facts = _facts(spec)
    card = _card(repo, params, spec, report, about or {})
    # Texts name repositories, so that a misspelt folder isn't sent to somebody's account.
    if isinstance(repo, os.PathLike):
        _write(Path(repo), params, facts, card)
        return os.fspath(repo)
    _require_name("push_to_hub", repo)
    api = _api("push_to_hub") if api is None else api
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), params, facts, card)
        # The folder is sent in one commit: a repository has all three files, or none of them.
        try:
            api.create_repo(repo, private=private, exist_ok=True)
            sent = api.upload_folder(repo_id=repo, folder_path=folder)
        except Exception as error:  # of the connection, the Hub, or its client
            raise WeightsError(_said("push_to_hub", repo, error, writes=True)) from error
    return str(getattr(sent, "commit_url", sent))


@validate(repo=_repository, revision=string, api=_hub)
def load_from_hub(
    repo: str | os.PathLike[str], *, like: Any = None, revision: str | None = None, api: Any = None
) -> HubModel:
    """Loads what `push_to_hub` put on the Hub, from there, its local cache, or a folder.

    Args:
        repo: The repository's name, `owner/name`, or a folder that holds its files.
        like: A pytree of the structure, shapes and dtypes to expect; by default nested dicts.
        revision: A commit, branch or tag of the repository; by default the newest.
        api: A `huggingface_hub.HfApi` with an endpoint or token of its own.

    Returns:
        The parameters, the spec, the card and the folder.

    Raises:
        ImportError: The package `huggingface_hub` isn't there.
        CheckpointError: A file is damaged, or the parameters aren't like `like`.
        WeightsError: The repository isn't there, can't be reached, or holds no model of jaxeff.

    ```python
    from pathlib import Path
    import jax.numpy as jnp
    from jaxeff.weights import load_from_hub, push_to_hub

    push_to_hub(Path("small"), {"layer": {"kernel": jnp.ones((2, 3))}})
    print(load_from_hub("small").params["layer"]["kernel"].shape)
    ```
    """
    # A folder is taken for itself even where the Hub has a repository of this name.
    folder = Path(repo)
    if not folder.is_dir():
        folder = _fetched(repo, revision, api)
    if not (folder / _FACTS).is_file() or not (folder / _ARRAYS).is_file():
        there = ", ".join(sorted(each.name for each in folder.iterdir())[:10]) or "nothing"
        raise WeightsError(
            f"load_from_hub: {os.fspath(repo)!r} has no {_FACTS} and {_ARRAYS}, as push_to_hub "
            f"writes them: in {folder} there is {there}. Weights of other libraries go into a "
            "model's parameters by jaxeff.load_weights(params, path)."
        )
    spec = _read_spec(folder / _FACTS)
    card = folder / _CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    return HubModel(load_pytree(folder / _ARRAYS, like), spec, text, folder)


def _write(folder: Path, params: Any, facts: Any, card: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_pytree(folder / _ARRAYS, params)
    write_atomically(folder / _FACTS, json.dumps(facts, indent=1) + "\n")
    write_atomically(folder / _CARD, card)


def _api(where: str) -> Any:
    try:
        import huggingface_hub  # optional
    except ImportError as error:
        raise ImportError(
            f"{where} needs the package huggingface_hub: pip install jaxeff[hub]. A folder, given "
            "as a pathlib.Path, is read and written without it."
        ) from error
    return huggingface_hub.HfApi(library_name="jaxeff", library_version=version("jaxeff"))


def _require_name(where: str, repo: str) -> None:
    if not _SAFE.fullmatch(repo):
        raise WeightsError(
            f"{where}: {repo!r} is no folder and no name of a repository, 'owner/name'; write a "
            "folder as pathlib.Path(...)."
        )


def _fetched(repo: str | os.PathLike[str], revision: str | None, api: Any) -> Path:
    """Fetches a repository's files into the cache, or finds them there."""
    if isinstance(repo, os.PathLike):
        raise WeightsError(f"load_from_hub: there is no folder {os.fspath(repo)!r}.")
    _require_name("load_from_hub", repo)
    api = _api("load_from_hub") if api is None else api
    # Others may hold checkpoints of any size beside the files that are read here.
    names = [_ARRAYS, _FACTS, _CARD]
    try:
        return Path(api.snapshot_download(repo, revision=revision, allow_patterns=names))
    except Exception as error:  # of the connection, the Hub, or its client
        raise WeightsError(_said("load_from_hub", repo, error, revision=revision)) from error


def _said(
    where: str, repo: str, error: Exception, *, revision: str | None = None, writes: bool = False
) -> str:
    """Says what became of a call to the Hub, and the way out."""
    # By name: a connection's errors are classes of several packages.
    kinds = {cls.__name__ for cls in type(error).__mro__}
    if "GatedRepoError" in kinds:
        told = f"is gated: ask for access at https://huggingface.co/{repo}"
    elif "RevisionNotFoundError" in kinds:
        told = f"has no revision {revision!r}: give a commit, branch or tag that it has"
    elif "RepositoryNotFoundError" in kinds:
        told = "isn't on the Hub, or is private: check its name, or log in by `hf auth login`"
    elif kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled"} and not writes:
        told = (
            "isn't in the local cache, and the Hub can't be reached: load it once with a "
            "connection, or give a folder that holds its files"
        )
    elif kinds & {"OfflineModeIsEnabled", "ConnectError", "ConnectionError", "TimeoutException"}:
        told = (
            "can't be reached: try again with a connection, or write a folder, given as a "
            "pathlib.Path, and send it later by `hf upload`"
        )
    else:
        told = "is refused: log in by `hf auth login` as one who may write it" if writes else (
            "can't be fetched: check its name and the connection"
        )  # fmt: skip
    reason = str(error).strip().partition("\n")[0][:200]
    return f"{where}: the repository {repo!r} {told}. ({type(error).__name__}: {reason})"


def _facts(spec: Mapping[str, Any] | None) -> dict[str, Any]:
    # Without a spec there is none to apply; an empty one says that no layer is changed.
    stored = None if spec is None else {p: _to_json(f"spec of {p!r}", s) for p, s in spec.items()}
    return {"format": _FORMAT, "jaxeff": version("jaxeff"), "spec": stored}


def _to_json(where: str, value: Any) -> Any:
    """Returns a setting as numbers, texts and lists, with the names of its classes."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return {"tuple": [_to_json(where, entry) for entry in value]}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        # JSON's numbers are float64, which holds every narrower float exactly.
        plain = array if array.dtype.kind in "biu" else array.astype(np.float64)
        return {"array": plain.tolist(), "dtype": array.dtype.name}
    # Modules move between versions; the room that offers a class is what its users import.
    cls = type(value)
    room = ".".join(cls.__module__.split(".")[:2])
    if not dataclasses.is_dataclass(cls) or _setting(room, cls.__name__) is not cls:
        raise TypeError(
            f"push_to_hub: the {where} holds a {cls.__name__}, which is no setting that a room of "
            "jaxeff offers: leave the spec out, and say in the card what it is."
        )
    fields = {
        f.name: _to_json(where, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init
    }
    return {"setting": cls.__name__, "room": room, "fields": fields}


def _setting(room: str, name: str) -> type | None:
    """Finds a class of settings that a room offers."""
    if not _ROOM.fullmatch(room):
        return None
    # Rooms alone are imported, and nothing is called but a dataclass that one of them offers.
    cls = getattr(import_module(room), name, None)
    return cls if isinstance(cls, type) and dataclasses.is_dataclass(cls) else None


def _read_spec(path: Path) -> dict[str, Any] | None:
    """Reads a spec; a file that is none says so."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than the {_MOST_BYTES:,} bytes that any spec has")
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["format"] != _FORMAT:
            raise ValueError(f"it is of format {facts['format']!r}: update jaxeff")
        spec = facts["spec"]
        return None if spec is None else {str(p): _from_json(s) for p, s in spec.items()}
    # A file of anybody's: whatever is missing or of another kind there.
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, RecursionError) as error:
        raise CheckpointError(f"{path} holds no spec of jaxeff: {error}") from error


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(map(_from_json, value["tuple"]))
    if "array" in value:
        return jnp.asarray(np.asarray(value["array"]), jnp.dtype(value["dtype"]))
    cls = _setting(value["room"], value["setting"])
    if cls is None:
        raise ValueError(f"{value['room']}.{value['setting']} is no setting")
    return cls(**{name: _from_json(field) for name, field in value["fields"].items()})


def _card(
    repo: Any, params: Any, spec: Mapping[str, Any] | None, report: Any, about: Mapping[str, str]
) -> str:
    """Writes the model card: what was done, how large it is, and what was measured."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(params)]
    count, size = (sum(getattr(leaf, n) for leaf in leaves) for n in ("size", "nbytes"))
    name = Path(repo).name
    lines = [
        "---", "library_name: jaxeff", f"tags: [jax, jaxeff{', quantization' if spec else ''}]",
        "---", "", f"# {name}", "",
        f"{count:,} parameters, {size:,} bytes, in `{_ARRAYS}`.", "",
    ]  # fmt: skip
    if spec is not None:
        lines += ["## Settings", "", "| layers | setting |", "|---|---|"]
        lines += [f"| `{pattern}` | {_cell(setting)} |" for pattern, setting in spec.items()]
        lines.append("")
    for heading, text in about.items():
        lines += [f"## {heading}", "", text, ""]
    lines += [
        "## Use", "", "```python", "from jaxeff.weights import load_from_hub", "",
        f"params, spec, card, folder = load_from_hub({os.fspath(repo)!r})", "```", "",
    ]  # fmt: skip
    # What wasn't measured is said, too: a card without numbers is often read as one of good ones.
    if report is None:
        lines += ["Accuracy and what it costs weren't measured: `jaxeff.report` does.", ""]
        return "\n".join(lines)
    text = report.markdown
    if text.startswith("---"):
        text = text.split("\n---\n", 1)[-1]  # without its metadata
    return "\n".join(lines) + re.sub(r"^# ", "## ", text.lstrip(), count=1)


def _cell(setting: Any) -> str:
    shown = "unchanged" if setting is None else f"`{setting!r}`"
    return " ".join(shown.split()).replace("|", r"\|")
