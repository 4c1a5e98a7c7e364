"""Writing a bundle where something is: only a bundle's own files are ever replaced."""

import os
import signal
import subprocess
import sys

import jaxeff_export
import pytest
from jaxeff_export import Bundle, deploy
from jaxeff_export.artifact import add_checksum, digest
from jaxeff_export.bundle.files import FILES, MANIFEST, own_files
from jaxeff_export.cli import app
from small_network import inputs, mlp, parameters
from typer.testing import CliRunner

from jaxeff.store import _writing as writing


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return deploy(mlp, (parameters(), inputs()), path=tmp_path_factory.mktemp("bundles") / "mlp")


@pytest.fixture
def folder(compiled, tmp_path):
    """A bundle to write over."""
    return compiled.save(tmp_path / "mlp").folder


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refused(folder, *ways, match):
    before = contents(folder)
    for way in ways:
        with pytest.raises(FileExistsError, match=match):
            way()
        assert contents(folder) == before


def test_notes_in_a_bundle_are_not_lost(compiled, folder, monkeypatch):
    (folder / "notes").mkdir()
    (folder / "notes" / "monday.txt").write_text("three weeks of work")
    monkeypatch.setattr("jaxeff_export.bundle._building.lift", None)  # refused before the work
    refused(
        folder,
        lambda: compiled.save(folder),
        lambda: deploy(mlp, (parameters(), inputs()), path=folder),
        lambda: jaxeff_export.tune(compiled, folder.parent / "tuning", path=folder, trials=1),
        match="holds other files than those that its manifest.json lists: notes; move them",
    )


def test_the_command_says_so_in_one_line(folder):
    (folder / "notes.txt").write_text("work")
    before = contents(folder)
    arguments = ["tune", str(folder), "--database", str(folder.parent / "tuning")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "notes.txt; move them elsewhere" in result.output
    assert contents(folder) == before


def listing(*names, form="jaxeff-bundle"):
    return add_checksum({"format": form, "files": {name: {} for name in names}})


@pytest.mark.parametrize(
    ("manifest", "match"),
    [
        (b'{"format": "jaxeff-bundle"}', "cannot tell: it is damaged"),
        (add_checksum({"format": "jaxeff-bundle"}), "lists no files of a bundle"),
        (listing("run.py", form="another"), "lists no files of a bundle"),
        (b"notes on a manifest", "cannot tell"),
        (listing(), "parameters.npz, run.py, thesis.tex"),
        (listing("run.py", "thesis.tex", "../outside", "/etc/passwd"), "parameters.npz, thesis"),
    ],
)
def test_a_manifest_does_not_make_files_ours(compiled, tmp_path, manifest, match):
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "outside").write_text("outside")
    for name in ("thesis.tex", "run.py", "parameters.npz"):
        (folder / name).write_text("mine")
    (folder / MANIFEST).write_bytes(manifest)
    refused(tmp_path, lambda: compiled.save(folder), match=match)


def test_what_a_manifest_lists_outside_of_the_folder_is_left(compiled, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("outside")
    folder = tmp_path / "hostile"
    folder.mkdir()
    (folder / MANIFEST).write_bytes(listing("run.py", "../outside", str(outside)))
    (folder / "run.py").write_text("")
    compiled.save(folder)  # all that is in it is a bundle's
    assert outside.read_text() == "outside"
    assert Bundle.load(folder).check().passed


def test_what_is_no_plain_file_is_not_replaced(compiled, folder):
    (folder / "library.so").unlink()
    (folder / "library.so").mkdir()
    refused(folder, lambda: compiled.save(folder), match="library.so")


def test_links_and_files_in_the_place_of_the_folder_stay(compiled, folder, tmp_path):
    link, file = tmp_path / "latest", tmp_path / "file"
    link.symlink_to(folder)
    file.write_text("mine")
    refused(
        tmp_path,
        lambda: compiled.save(link),
        lambda: compiled.save(file),
        match="is not a folder; choose another path",
    )
    assert link.is_symlink()


def test_a_bundle_of_an_older_format_may_be_replaced(compiled, folder):
    content = add_checksum(
        {"format": "jaxeff-bundle", "format_version": 1, "files": dict.fromkeys(FILES)}
    )
    (folder / "unpacked.npz").unlink()  # which older formats don't have
    (folder / MANIFEST).write_bytes(content)
    compiled.save(folder)
    assert Bundle.load(folder).check().passed


def test_an_empty_folder_and_a_private_bundle_keep_their_place(compiled, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    compiled.save(tmp_path / "empty")
    folder.chmod(0o700)
    compiled.save(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["empty", "mlp"]


def test_what_comes_while_a_bundle_is_built_is_kept(compiled, folder):
    before = contents(folder)

    def write():
        with writing.atomic_folder(folder, MANIFEST, own_files) as new:
            (new / MANIFEST).write_bytes(b"{}")
            (folder / "late.txt").write_text("late")

    with pytest.raises(FileExistsError, match=r"late\.txt"):
        write()
    assert contents(folder) == {**before, "late.txt": b"late"}
    assert [entry.name for entry in folder.parent.iterdir()] == ["mlp"]


def test_what_comes_at_the_last_moment_is_kept(compiled, folder, monkeypatch):
    exchange = writing._exchange

    def late(new, old):
        (old / "late.txt").write_text("late")
        exchange(new, old)

    monkeypatch.setattr(writing, "_exchange", late)
    compiled.save(folder)
    assert (folder / "late.txt").read_text() == "late"
    assert [entry.name for entry in folder.parent.iterdir()] == ["mlp"]


def test_without_an_exchange_of_folders_the_result_is_the_same(compiled, folder, monkeypatch):
    class Old:
        """A C library that knows no renameat2."""

    monkeypatch.setattr(writing.ctypes, "CDLL", lambda *_, **__: Old())
    (folder / "run.py").write_text("outdated")
    compiled.save(folder)
    assert (folder / "run.py").read_bytes() == (compiled.folder / "run.py").read_bytes()
    assert [entry.name for entry in folder.parent.iterdir()] == ["mlp"]


_KILLED = """
import os, signal, sys
from pathlib import Path
from jaxeff.store import _writing as writing
from jaxeff_export import Bundle

source, target, moment = sys.argv[1:]
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
if moment == "before":
    writing._exchange = die
else:
    writing._retire = die
Bundle.load(source).save(target)
"""


@pytest.mark.process
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_process_leaves_the_old_bundle_or_the_new_one(compiled, folder, moment):
    other = {**parameters(seed=5)}
    new = deploy(mlp, (other, inputs()), path=folder.parent / "new")
    arguments = [sys.executable, "-c", _KILLED, str(new.folder), str(folder), moment]
    done = subprocess.run(arguments, check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    expected = compiled if moment == "before" else new
    assert Bundle.load(folder).check().passed
    library = expected.manifest.files["parameters.npz"]["sha256"]
    assert digest((folder / "parameters.npz").read_bytes()) == library
