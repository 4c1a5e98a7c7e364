"""Small tables for people: plain text on a console, HTML in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Table:
    """A table that shows itself wherever it is printed.

    Attributes:
        columns: Their heads; one that ends in ``>`` holds numbers, aligned to the right.
        rows: A text per column.
        total: A last row, set apart.
        caption: A line below.
        title: A line above.
        wrap: Whether cells that a console has no room for go on in the next line.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: Sequence[str] = ()
    caption: str = ""
    title: str = ""
    wrap: bool = True

    @classmethod
    def from_rows(
        cls, title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()
    ) -> Table:
        """Makes a table of records.

        Args:
            title: Line above the table.
            rows: Records; a missing entry is an empty cell.
            columns: Keys to show; all of them if empty. A key with `source_` before it, a value
                that a paper has published, stands beside the chosen one that it belongs to.
        """
        known = list(dict.fromkeys(key for row in rows for key in row))
        keys: list[str] = []
        for column in columns or known:
            keys.append(column)
            if columns and f"source_{column}" in known:
                keys.append(f"source_{column}")
        keys = list(dict.fromkeys(keys))
        # The first column names the record; all others are mostly numbers.
        heads = [_head(key) + (">" if i else "") for i, key in enumerate(keys)]
        cells = [[cell_text(row.get(key)) for key in keys] for row in rows]
        return cls(heads, cells, title=title, wrap=False)

    def __rich__(self) -> RenderableType:
        """Makes the table of `rich`."""
        table = RichTable(title=self.title or None)
        for column in self.columns:
            side: Literal["left", "right"] = "right" if column.endswith(">") else "left"
            table.add_column(column.rstrip(">"), justify=side, no_wrap=not self.wrap)
        for row in self.rows:
            table.add_row(*map(Text, row))  # a bracket is no markup
        if self.total:
            table.add_section()
            table.add_row(*self.total)
        # Below, for a table's own caption is wrapped to its width.
        return Group(table, Text(self.caption)) if self.caption else table

    def __str__(self) -> str:
        """Renders the table as plain text, wide enough for every cell."""
        # Neither terminal nor notebook, whatever runs this: the text is the same everywhere.
        console = Console(width=200, color_system=None, force_jupyter=False, force_terminal=False)
        with console.capture() as capture:
            console.print(self.__rich__())
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Renders the table as HTML, for a notebook."""
        right = [column.endswith(">") for column in self.columns]

        def row(cells: Sequence[str], tag: str) -> str:
            inside = "".join(
                f'<{tag} style="text-align: {"right" if at_right else "left"}">'
                f"{html.escape(cell)}</{tag}>"
                for cell, at_right in zip(cells, right, strict=True)
            )
            return f"<tr>{inside}</tr>"

        head = row([column.rstrip(">") for column in self.columns], "th")
        body = "".join(row(cells, "td") for cells in self.rows)
        foot = f"<tfoot>{row(self.total, 'th')}</tfoot>" if self.total else ""
        # A page's table has one caption, so a title comes first in it.
        texts = [text for text in (self.title, self.caption) if text]
        lines = html.escape("\n".join(texts)).replace("\n", "<br>")
        caption = f'<caption style="caption-side: bottom">{lines}</caption>' if lines else ""
        return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody>{foot}</table>"


def shown_as_table(cls: type[T]) -> type[T]:
    """Shows objects of a class, in a terminal or a notebook, as what their `_table` returns."""

    def __repr__(self: Any) -> str:
        return str(self._table())

    def _repr_html_(self: Any) -> str:
        return str(self._table()._repr_html_())

    # Set, not inherited: a dataclass or a `NamedTuple` would put its own `__repr__` in between.
    cls.__repr__ = __repr__  # type: ignore[assignment]
    cls._repr_html_ = _repr_html_  # type: ignore[attr-defined]
    return cls


def cell_text(value: Any) -> str:
    """Formats a value as the text of a cell: four digits of a number, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return f"{value:,}" if not isinstance(value, bool) else str(value)
    if isinstance(value, list):
        return " ".join(map(cell_text, value))
    number = float(value)
    return f"{number:.2e}" if number and abs(number) < 1e-3 else f"{number:.4g}"


def _head(key: str) -> str:
    if key == "source":
        return "published"
    words = key.removeprefix("source_").replace("_", " ")
    return f"{words}, published" if key.startswith("source_") else words
