"""Rows that outlive a kill: a file of one line per finished task."""

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Kept:
    """Rows by task, on disk as soon as they are known.

    A task is whatever JSON says about it; one that is described otherwise is another one.
    """

    def __init__(self, path: Path, fresh: bool = False) -> None:
        """Reads what an earlier run left.

        Args:
            path: The file, one JSON object per line.
            fresh: Whether to forget it.
        """
        if fresh:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._rows: dict[str, list[Row]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # half a line, which a kill leaves
            self._rows[json.dumps(record["task"])] = record["rows"]

    def __contains__(self, task: Any) -> bool:
        return json.dumps(task) in self._rows

    def __getitem__(self, task: Any) -> list[Row]:
        return self._rows[json.dumps(task)]

    def add(self, task: Any, rows: list[Row]) -> None:
        """Keeps the rows of a finished task."""
        self._rows[json.dumps(task)] = rows
        with self._path.open("a") as file:
            file.write("\n" + json.dumps({"task": task, "rows": rows}))  # never onto half a line
