"""Links of the README point into docs/; on the site its page is in that folder itself."""

from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Makes links of the home page relative to this folder."""
    if page.file.src_uri != "README.md":
        return markdown
    return markdown.replace("](docs/", "](")
