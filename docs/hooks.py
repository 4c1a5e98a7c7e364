"""Links of pages outside docs/ point into it; on the site their pages are in that folder itself."""

from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Makes links into docs/ those of the site."""
    return markdown.replace("](docs/", "](").replace("](../docs/", "](../")
