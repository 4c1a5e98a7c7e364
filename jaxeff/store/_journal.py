"""`Journal`: results of finished tasks, in a file that survives the process.

```python
from jaxeff.store import Journal

kept = Journal("rows.jsonl", {"seed": 0, "size": "fast"})
tasks = [2, 3, 5]
for task in tasks:
    if task not in kept:
        kept.add(task, [{"n": task, "square": task**2}])
rows = [row for task in tasks for row in kept[task]]
```

The file has one JSON object per line: first ``{"run": ...}``, what makes it the same run, then
``{"task": ..., "rows": ...}`` per finished task. A process killed at any moment loses at most the
task it was in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxeff.store._errors import CheckpointError
from jaxeff.store._identity import require_same_run
from jaxeff.store._lines import add_line, file_content, numbered_lines, repair_lines
from jaxeff.store._writing import write_atomically


class Journal:
    """Values by task, on disk as soon as they are known.

    A task is identified by its JSON, in which the order of keys doesn't matter. If a task was added
    twice, the later value counts. Values come back as JSON has them (tuples as lists), whether this
    process added them or an earlier one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run: Mapping[str, Any] | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        """Reads what an earlier run left; a last line that was cut short is set aside.

        A file that is refused stays as it is, byte for byte.

        Args:
            path: The file; it and its folder are made when missing.
            run: What makes it the same run, as JSON: settings that every value depends on and the
                tasks don't name.
            fresh: Whether to forget what is there.

        Raises:
            CheckpointError: The file holds another run (the first difference is named), something
                else, or a damaged line (its number is named); or it is a folder.
            OSError: It cannot be written there; found before anything is computed.
        """
        self.path = Path(path)
        self._values: dict[str, Any] = {}
        head = json.dumps({"run": dict(run or {})}) + "\n"
        # A head that is cut short has no values behind it: starting over loses nothing.
        if fresh or not self.path.exists() or self._is_cut_in_the_head(head.encode()):
            write_atomically(self.path, head)
            return
        # Before anything is changed: a file that isn't understood is somebody's.
        self._read(numbered_lines(self.path), json.loads(head)["run"])
        repair_lines(self.path)
        with self.path.open("ab"):
            pass  # fails now where it would after the first task

    def _is_cut_in_the_head(self, head: bytes) -> bool:
        """Tells whether the file is only a beginning of what a new one would hold."""
        content = file_content(self.path)
        return len(content) < len(head) and head.startswith(content)

    def _read(self, records: list[tuple[int, Any]], run: dict[str, Any]) -> None:
        (number, head), *rest = records or [(1, None)]
        if not (isinstance(head, dict) and [*head] == ["run"] and isinstance(head["run"], dict)):
            raise CheckpointError(
                f"line {number} of {self.path} does not say which run its values are of; choose "
                "another file, or start afresh to overwrite it."
            )
        require_same_run(
            f"the values in {self.path} are", head["run"], run, overwrite="start afresh"
        )
        for number, record in rest:
            if not (isinstance(record, dict) and record.keys() == {"task", "rows"}):
                raise CheckpointError(
                    f"line {number} of {self.path} is not that of a task; mend that line, delete "
                    "it, choose another file, or start afresh to overwrite it."
                )
            self._values[_named(record["task"])] = record["rows"]

    def __contains__(self, task: Any) -> bool:
        return _named(task) in self._values

    def __getitem__(self, task: Any) -> Any:
        return self._values[_named(task)]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        """Returns the tasks, as JSON has them, in the order in which they were first added."""
        return (json.loads(name) for name in self._values)

    def add(self, task: Any, rows: Any) -> None:
        """Keeps what a finished task found.

        Raises:
            TypeError: The task or the rows are not JSON; nothing was written.
        """
        name = _named(task)
        # On disk before it is known here: what this process counts as finished survives it.
        add_line(self.path, {"task": task, "rows": rows})
        # Through JSON once, so that a value reads the same now and after a restart.
        self._values[name] = json.loads(json.dumps(rows))


def _named(task: Any) -> str:
    return json.dumps(task, sort_keys=True)
