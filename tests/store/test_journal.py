"""Rows outlive a kill and are never mixed with another run's."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxeff.store import CheckpointError, Journal, add_line, read_lines, repair_lines

RUN = {"seed": 0, "sizes": (1, 2)}


def test_rows_come_back(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    kept = Journal(path, RUN)
    kept.add({"name": "a", "size": 1}, [{"x": (1, 2)}])
    kept.add("b", 3.5)
    kept.add("b", 4.5)
    for each in (kept, Journal(path, RUN)):
        assert {"size": 1, "name": "a"} in each
        assert "c" not in each
        assert each[{"size": 1, "name": "a"}] == [{"x": [1, 2]}]
        assert each["b"] == 4.5
        assert list(each) == [{"name": "a", "size": 1}, "b"]
        assert len(each) == 2
    assert len(Journal(path, RUN, fresh=True)) == 0
    assert len(Journal(path, RUN)) == 0


def test_a_file_cut_at_any_byte_keeps_the_lines_before(tmp_path):
    path = tmp_path / "rows.jsonl"
    kept = Journal(path, RUN)
    ends = [path.stat().st_size]
    for task in range(3):
        kept.add(task, [{"task": task, "text": "ä\n"}])
        ends.append(path.stat().st_size)
    content = path.read_bytes()
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        kept = Journal(path, RUN)
        # A line is whole when only its end is missing.
        assert list(kept) == [t for t in range(3) if ends[t + 1] - 1 <= length], length
        for task in range(3):
            if task not in kept:
                kept.add(task, [{"task": task, "text": "ä\n"}])
        assert path.read_bytes() == content
        path.with_name("rows.jsonl.cut").unlink(missing_ok=True)


def rows_in(folder):
    """Every whole row that a patient reader finds in any file of a folder."""
    rows = []
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        text = path.read_bytes().decode(errors="replace")
        start = text.find('{"task"')
        while start >= 0:
            with contextlib.suppress(ValueError):
                rows.append(json.JSONDecoder().raw_decode(text, start)[0])
            start = text.find('{"task"', start + 1)
    return rows


def opened(path):
    """The rows there, or why they were refused."""
    try:
        return Journal(path, RUN), ""
    except CheckpointError as error:
        return None, str(error)


def damages(content):
    """A name, a damaged file, and whether all its rows are still read."""
    lines = content.splitlines(keepends=True)
    yield "CRLF", content.replace(b"\n", b"\r\n"), True
    yield "CRLF without the last", content.replace(b"\n", b"\r\n").rstrip(), True
    yield "CR", content.replace(b"\n", b"\r"), False
    yield "spaces", content.replace(b"\n", b"  \t\n"), True
    yield "spaces in the head", content.replace(b"\n", b" \n", 1), True
    yield "empty lines", content.replace(b"\n", b"\n\n"), True
    yield "byte order mark", b"\xef\xbb\xbf" + content, True
    yield "byte order mark and CRLF", b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"), True
    yield "UTF-16", content.decode().encode("utf-16"), False
    yield "end of a file on DOS", content + b"\x1a", True
    yield "no head", b"".join(lines[1:]), False
    yield "head last", b"".join(lines[1:] + lines[:1]), False
    yield "another program's", b"# notes\n" + content[40:], False
    for offset in range(len(content)):
        bit = 1 << offset % 8
        flipped = content[:offset] + bytes([content[offset] ^ bit]) + content[offset + 1 :]
        yield f"bit {bit} of byte {offset}", flipped, None


def test_no_damage_costs_a_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    kept = Journal(path, RUN)
    for task in range(3):
        kept.add(task, [{"task": task, "text": "ä\n"}])
    for name, damaged, legible in damages(path.read_bytes()):
        path.write_bytes(damaged)
        before = rows_in(tmp_path)
        kept, refusal = opened(path)
        if kept is None:
            assert legible is not True, (name, refusal)
            assert f"{path} " in refusal, name
            assert path.read_bytes() == damaged, name
        else:
            assert legible is not False, name
            assert len(rows_in(tmp_path)) >= len(before), name
            if legible:
                assert list(kept) == [0, 1, 2], name
            kept.add("next", [])
            assert "next" in Journal(path, RUN), name
        assert [row for row in before if row not in rows_in(tmp_path)] == [], name
        path.with_name("rows.jsonl.cut").unlink(missing_ok=True)


@pytest.mark.parametrize("content", [b"a letter", b'{"run": 1', b'{"run": {"seed": 1', b"\0" * 9])
def test_a_foreign_file_without_an_end_of_line_is_left(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"line 1 of .* does not say which run"):
        Journal(path, RUN)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_refused_and_an_empty_file_taken(tmp_path):
    with pytest.raises(
        CheckpointError, match="cannot be read: it is a folder, not a regular file; choose another"
    ):
        Journal(tmp_path, RUN)
    path = tmp_path / "rows.jsonl"
    path.touch()
    Journal(path, RUN).add(0, [])
    assert 0 in Journal(path, RUN)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"run": {"seed": 1, "sizes": [1, 2]}}\n', "of another run: seed is 1 there and 0 here"),
        ('{"run": {"seed": 0}}\n', r"sizes is None there and \[1, 2\] here"),
        ('\n{"task": 1, "rows": []}', "does not say which run"),
        ("a letter", "does not say which run"),
        ('{"run": {"seed": 0, "sizes": [1, 2]}}\n[1]\n', "line 2 of .* is not that of a task"),
        ('{"run": {"seed": 0, "sizes": [1, 2]}}\n{"ta\n{"task": 1, "rows": []}\n', "line 2 of"),
    ],
)
def test_what_is_not_of_this_run_is_refused_and_left(tmp_path, content, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=message):
        Journal(path, RUN)
    assert path.read_text() == content
    assert len(Journal(path, RUN, fresh=True)) == 0


def test_values_must_be_json_and_places_writable(tmp_path):
    kept = Journal(tmp_path / "rows.jsonl", RUN)
    with pytest.raises(TypeError, match="not JSON serializable"):
        kept.add("a", object())
    assert "a" not in kept
    assert len(Journal(tmp_path / "rows.jsonl", RUN)) == 0
    with pytest.raises(OSError, match=r"rows\.jsonl"):
        Journal(tmp_path / "rows.jsonl" / "below", RUN)


def test_a_cut_line_is_set_aside_before_lines_are_added(tmp_path):
    path = tmp_path / "lines"
    assert read_lines(path) == []
    add_line(path, [1])
    with pytest.raises(TypeError, match="object or a list"):
        add_line(path, 12)
    with path.open("a") as file:
        file.write('{"half')
    assert read_lines(path) == [[1]]
    repair_lines(path)
    add_line(path, [2])
    assert read_lines(path) == [[1], [2]]
    assert path.with_name("lines.cut").read_text() == '{"half\n'
    assert [json.loads(line) for line in path.read_text().splitlines()] == [[1], [2]]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    add_line(path, [1])
    before = path.read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        add_line(path, [2])
    assert path.read_bytes() == before


@pytest.mark.process
def test_processes_that_begin_repair_and_add_at_once_lose_nothing(tmp_path):
    """A later beginner's head took the place of the rows that were there: a tenth were lost."""
    program = Path(__file__).with_name("race_for_a_journal.py")
    command = [sys.executable, program, tmp_path, "8", "4", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"
