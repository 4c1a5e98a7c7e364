"""Small tables for people: plain text on a console, HTML in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text


@dataclass(frozen=True, repr=False)
class Table:
    """A table that shows itself wherever it is printed.

    Attributes:
        columns: Their heads; one that ends in ``>`` holds numbers, aligned to the right.
        rows: A text per column.
        total: A last row, set apart.
        caption: A line below.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: Sequence[str] = ()
    caption: str = ""

    def __rich__(self) -> RenderableType:
        """The table, for `rich`."""
        table = RichTable()
        for column in self.columns:
            right = column.endswith(">")
            table.add_column(column.rstrip(">"), justify="right" if right else "left")
        for row in self.rows:
            table.add_row(*map(Text, row))  # a bracket is no markup
        if self.total:
            table.add_section()
            table.add_row(*self.total)
        # Below, for a table's own caption is wrapped to its width.
        return Group(table, Text(self.caption)) if self.caption else table

    def __str__(self) -> str:
        """The table as plain text, wide enough for every cell."""
        console = Console(width=200, color_system=None, force_jupyter=False, force_terminal=False)
        with console.capture() as capture:
            console.print(self.__rich__())
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table, for a notebook."""
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
        lines = html.escape(self.caption).replace("\n", "<br>")
        caption = f'<caption style="caption-side: bottom">{lines}</caption>' if lines else ""
        return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody>{foot}</table>"
