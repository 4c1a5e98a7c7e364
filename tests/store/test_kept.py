"""Rows outlive a kill and are never mixed with another run's."""

import json

import pytest

from jaxeff.store import CheckpointError, Kept, add_line, mend_lines, read_lines

RUN = {"seed": 0, "sizes": (1, 2)}


def test_rows_come_back(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    kept = Kept(path, RUN)
    kept.add({"name": "a", "size": 1}, [{"x": (1, 2)}])
    kept.add("b", 3.5)
    kept.add("b", 4.5)
    for each in (kept, Kept(path, RUN)):
        assert {"size": 1, "name": "a"} in each
        assert "c" not in each
        assert each[{"size": 1, "name": "a"}] == [{"x": [1, 2]}]
        assert each["b"] == 4.5
        assert list(each) == [{"name": "a", "size": 1}, "b"]
        assert len(each) == 2
    assert len(Kept(path, RUN, fresh=True)) == 0
    assert len(Kept(path, RUN)) == 0


def test_a_file_cut_at_any_byte_keeps_the_lines_before(tmp_path):
    path = tmp_path / "rows.jsonl"
    kept = Kept(path, RUN)
    ends = [path.stat().st_size]
    for task in range(3):
        kept.add(task, [{"task": task, "text": "ä\n"}])
        ends.append(path.stat().st_size)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = Kept(path, RUN)
        # A line is whole when only its end is missing.
        assert list(kept) == [t for t in range(3) if ends[t + 1] - 1 <= length], length
        for task in range(3):
            if task not in kept:
                kept.add(task, [{"task": task, "text": "ä\n"}])
        assert path.read_bytes() == whole
        path.with_name("rows.jsonl.cut").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"run": {"seed": 1, "sizes": [1, 2]}}\n', "of another run: seed is 1 there and 0 here"),
        ('{"run": {"seed": 0}}\n', r"sizes is None there and \[1, 2\] here"),
        ('\n{"task": 1, "rows": []}', "does not say which run"),
        ("a letter", "does not say which run"),
        ('{"run": {"seed": 0, "sizes": [1, 2]}}\n[1]\n', "value 2 of .* is not that of a task"),
        ('{"run": {"seed": 0, "sizes": [1, 2]}}\n{"ta\n{"task": 1, "rows": []}\n', "line 2 of"),
    ],
)
def test_what_is_not_of_this_run_is_refused_and_left(tmp_path, content, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=message):
        Kept(path, RUN)
    assert len(Kept(path, RUN, fresh=True)) == 0


def test_values_must_be_json_and_places_writable(tmp_path):
    kept = Kept(tmp_path / "rows.jsonl", RUN)
    with pytest.raises(TypeError, match="not JSON serializable"):
        kept.add("a", object())
    assert "a" not in kept
    assert len(Kept(tmp_path / "rows.jsonl", RUN)) == 0
    with pytest.raises(OSError, match=r"rows\.jsonl"):
        Kept(tmp_path / "rows.jsonl" / "below", RUN)


def test_a_cut_line_is_set_aside_before_lines_are_added(tmp_path):
    path = tmp_path / "lines"
    assert read_lines(path) == []
    add_line(path, [1])
    with pytest.raises(TypeError, match="object or a list"):
        add_line(path, 12)
    with path.open("a") as file:
        file.write('{"half')
    assert read_lines(path) == [[1]]
    mend_lines(path)
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
