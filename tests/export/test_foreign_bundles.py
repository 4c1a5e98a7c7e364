"""Bundles that somebody else made, by mistake or by malice: refused with the reason, or the same.

What the library refuses, the program for devices in every bundle refuses too.
"""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import shutil
import signal
import tracemalloc
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxeff_export import Artifact, ArtifactError, Bundle, BundleError, deploy
from jaxeff_export.artifact import TensorSpec, add_checksum, digest, verify_checksum
from jaxeff_export.bundle.files import (
    ARTIFACT,
    DERIVED,
    FILES,
    MANIFEST,
    PARAMETERS,
    pack_arrays,
    unpack_arrays,
)
from jaxeff_export.runtime import _device_runner as device_runner

from jaxeff.moment_propagation import Gaussian
from jaxeff.store import _archives as archives
from tests.edited import DELETED, with_edit

CHANGES = [
    *(DELETED, None, True, -1, 0, 2**70, float("nan"), 1.5, "", "../other", "O", "f4,f4"),
    *([], {}, [[[]]], [{}], {"kind": "dict"}),
]
NAMED = {"batches": ("batches", "selfcheck.npz")}
NAMED |= {"format": (MANIFEST,), "format_version": (MANIFEST,)}
"""What an error names for an entry, where that isn't the entry or something in it."""

LABELS = (
    "target", "target_name", "machine", "processor_features", "versions", "kernels", "calls",
    "tiles",
)  # fmt: skip
"""Entries that say what a bundle is for and made by, which other text changes in good form."""


def small(params, x):
    mean = x @ params["w"]
    return {"y": Gaussian(mean, jnp.square(x) @ jnp.square(params["w"])), "last": [mean.sum()]}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    example = {"w": jnp.ones((2, 3)), "unused": jnp.zeros(2)}, jnp.ones((2, 2))
    return deploy(small, example, path=tmp_path_factory.mktemp("one") / "b", any_batch=True)


@pytest.fixture(scope="module")
def folder(original):
    """A copy whose manifest tests write anew."""
    return shutil.copytree(original.folder, original.folder.with_name("copy"))


@pytest.fixture
def damaged(original, tmp_path):
    """A copy for one test, in which a read that has no end is an error."""

    def never(*_):
        raise AssertionError("it is still being read")

    before = signal.signal(signal.SIGALRM, never)
    signal.alarm(60)
    yield shutil.copytree(original.folder, tmp_path / "b")
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refused(folder):
    """Why the library and the device refuse a bundle."""
    with pytest.raises(BundleError) as ours:
        Bundle.load(folder)
    with pytest.raises(device_runner.Refused) as theirs:
        device_runner.Model(folder)
    return str(ours.value), str(theirs.value)


def rewrite(folder, name, content, **entries):
    """Replaces a file and what the manifest says of it."""
    document = verify_checksum((folder / MANIFEST).read_bytes()) | entries
    document["files"][name] = {"size": len(content), "sha256": digest(content)}
    (folder / name).write_bytes(content)
    (folder / MANIFEST).write_bytes(add_checksum(document))


def zipped(members, how=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def places(value, path=()):
    """Every entry of a document."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def edits(document):
    """Documents that differ in one entry, with its path and what it became."""
    content = json.dumps(document)
    for path in places(document):
        for change in CHANGES:
            edited = with_edit(document, path, change)
            if json.dumps(edited) != content:
                yield path, change, edited


@contextlib.contextmanager
def quietly():
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def loaded(folder):
    """What a bundle is, apart from its labels; or why it is refused."""
    try:
        manifest = Bundle.load(folder).manifest
    except BundleError as error:
        return str(error)
    return dataclasses.replace(manifest, **dict.fromkeys(LABELS))


@pytest.mark.slow
def test_every_edit_of_a_manifest_is_refused_or_changes_nothing(original, folder):
    document = verify_checksum((original.folder / MANIFEST).read_bytes())
    same, accepted, wrong = loaded(folder), set(), []
    assert not isinstance(same, str)
    for path, change, edited in edits(document):
        (folder / MANIFEST).write_bytes(add_checksum(edited))
        found = loaded(folder)
        if isinstance(found, str):
            names = NAMED.get(path[0], path)
            if not any(name in found for name in names if type(name) is str) or len(found) > 500:
                wrong.append((path, change, found))
        elif found != same:
            wrong.append((path, change, found))
        else:
            accepted.add(path[0])
    assert not wrong
    assert accepted <= {*LABELS}


@pytest.mark.slow
def test_what_other_labels_leave_runs_as_before_or_is_refused(original, folder):
    document = verify_checksum((original.folder / MANIFEST).read_bytes())
    x = np.float32([[1, 2], [3, 4], [5, 6]])
    expected, ran = jax.tree.leaves(original.run(x)), 0
    labels = {name: document[name] for name in LABELS if name not in ("kernels", "calls", "tiles")}
    for _, _, edited in edits(labels):
        (folder / MANIFEST).write_bytes(add_checksum(document | edited))
        with contextlib.suppress(BundleError):
            output = jax.tree.leaves(Bundle.load(folder).run(x))
            jax.tree.map(np.testing.assert_array_equal, output, expected)
            ran += 1
    assert ran > 10


@pytest.mark.slow
def test_the_device_refuses_every_edit_or_finds_what_jax_found(original, folder, monkeypatch):
    for name, value in (("TVM_USE_RUNTIME_LIB", "1"), ("TVM_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)  # so that what it sets is undone
    document = verify_checksum((original.folder / MANIFEST).read_bytes())
    wrong, refused = [], 0
    for path, change, edited in itertools.islice(edits(document), 0, None, 2):
        (folder / MANIFEST).write_bytes(add_checksum(edited))
        try:
            with quietly():
                if not device_runner.Model(folder).check():
                    wrong.append((path, change))
        except device_runner.Refused as error:
            refused += 1
            if len(str(error)) > 500:
                wrong.append((path, change, str(error)))
        except Exception as error:
            wrong.append((path, change, error))
    assert not wrong
    assert refused > 500


@pytest.mark.parametrize("kind", ["pipe", "device", "link", "folder"])
@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_what_is_no_regular_file_in_the_folder_is_refused_unread(damaged, name, kind):
    file = damaged / name
    file.rename(damaged.with_name("elsewhere"))
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero" if kind == "device" else damaged.with_name("elsewhere"))
    ours, theirs = refused(damaged)
    assert name in ours
    assert name in theirs
    assert f"it is a {'link' if kind == 'device' else kind}, not a regular file" in ours
    assert "not a regular file" in theirs


BOMBS = {
    "an array followed by zeros": lambda: zipped({"00000.npy": npy(np.ones((2, 3), "f4")) + ZEROS}),
    "an array of another shape": lambda: zipped(
        {"00000.npy": npy(np.zeros(len(ZEROS) // 4, "f4"))}
    ),
    "a longer header": lambda: zipped({"00000.npy": b"\x93NUMPY\x02\x00" + b"\xff" * 4 + ZEROS}),
    "another compression": lambda: zipped({"00000.npy": ZEROS}, zipfile.ZIP_BZIP2),
    "a deep header": lambda: zipped({"00000.npy": b"\x93NUMPY\x01\x00\x00\x20" + b"(" * 0x2000}),
}
ZEROS = bytes(1 << 25)


@pytest.mark.parametrize("how", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("bomb", BOMBS)
def test_arrays_are_inflated_to_what_the_manifest_promises_and_no_further(damaged, bomb, how):
    rewrite(damaged, PARAMETERS, zipped({"00000.npy": BOMBS[bomb]()}, how))
    tracemalloc.start()
    ours, theirs = refused(damaged)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20
    assert PARAMETERS in ours
    assert PARAMETERS in theirs


def test_a_promise_of_far_more_than_the_file_is_refused(damaged, monkeypatch):
    monkeypatch.setattr(archives, "_ROOM", 1000)
    monkeypatch.setattr(device_runner, "ROOM", 1000)
    derived = {"name": "derived[0]", "shape": [len(ZEROS)], "dtype": "uint8"}
    content = zipped({"00000.npy": npy(np.zeros(len(ZEROS), np.uint8))})
    rewrite(damaged, DERIVED, content, derived=[derived])
    for message in refused(damaged):
        assert "derived[0] is inflated to more than such a file may hold" in message


def test_codes_that_compress_better_than_is_read_are_not_compressed(monkeypatch):
    codes = np.zeros(100_000, np.int8)
    assert len(pack_arrays([codes])) < 1000
    monkeypatch.setattr(archives, "_ROOM", 1000)
    specs = [TensorSpec("codes", codes.shape, "int8")]
    np.testing.assert_array_equal(unpack_arrays(pack_arrays([codes]), specs)[0], codes)


DEEP = b'{"format": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def test_deep_documents_are_refused(damaged, original):
    (damaged / MANIFEST).write_bytes(DEEP)
    assert all(f"{MANIFEST} is damaged" in message for message in refused(damaged))
    with pytest.raises(FileExistsError, match="nested deeper"):
        original.save(damaged)
    with pytest.raises(ArtifactError, match=r"the artifact is damaged.*nested deeper"):
        Artifact.from_bytes(zipped({"artifact.json": DEEP}))


def test_a_manifest_of_any_size_is_not_read(damaged):
    with (damaged / MANIFEST).open("r+b") as file:
        file.truncate(1 << 40)
    assert all(MANIFEST in message for message in refused(damaged))


def test_artifacts_are_inflated_no_further_than_such_a_file_may_hold(original, monkeypatch):
    data = (original.folder / ARTIFACT).read_bytes()
    artifact = Artifact.from_bytes(data)
    monkeypatch.setattr(archives, "_ROOM", 1000)
    large = dataclasses.replace(artifact, exported=ZEROS)
    assert Artifact.from_bytes(large.to_bytes()) == large  # stored, so that it is read
    with zipfile.ZipFile(io.BytesIO(data)) as members:
        contents = {name: members.read(name) for name in members.namelist()}
    tracemalloc.start()
    for how in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        bomb = zipped(contents | {"model.jax": ZEROS}, how)
        tracemalloc.reset_peak()
        with pytest.raises(ArtifactError, match=r"model\.jax inflates|another way than deflated"):
            Artifact.from_bytes(bomb)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_an_artifact_is_a_regular_file_or_a_link_to_one(damaged):
    link = damaged / "link"
    link.symlink_to(ARTIFACT)
    assert Artifact.load(link).arguments == ("params", "x")
    os.mkfifo(damaged / "pipe")
    for path, kind in (("/dev/zero", "device"), (damaged / "pipe", "pipe"), (damaged, "folder")):
        with pytest.raises(ArtifactError, match=f"it is a {kind}, not a regular file"):
            Artifact.load(path)


@pytest.mark.slow
def test_every_edit_of_an_artifacts_index_is_refused_or_changes_nothing(original):
    data = (original.folder / ARTIFACT).read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as members:
        contents = {name: members.read(name) for name in members.namelist()}
    index = verify_checksum(contents["artifact.json"])
    for path, change, edited in edits(index):
        with contextlib.suppress(ArtifactError):
            contents["artifact.json"] = add_checksum(edited)
            found = Artifact.from_bytes(zipped(contents))
            free = ("arguments", "inputs", "outputs", "structure", "versions")
            assert path[0] in free, (path, change)
            assert isinstance(found.to_bytes(), bytes)
