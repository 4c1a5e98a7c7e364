"""What the site does with pages: links into docs/, words to find guides by, words for figures."""

import re
from typing import Any

WORDS = {
    "guides/boards.md": "stm32 cortex-m4 cortex-m7 arduino zephyr esp32 embedded tinyml latency",
    "guides/pytorch.md": "pytorch torch state_dict stm32 cortex-m4",
    "guides/your_model.md": "pytorch keras onnx flax equinox import convert",
    "guides/keras.md": "keras tensorflow tflite quantization-aware qat",
    "guides/onnx.md": "onnx pytorch export",
    "guides/few_bits.md": "quantise quantize quantisation quantization int8 int4 compress",
    "guides/pruning.md": "prune sparsity slim channels",
    "guides/certainty.md": "uncertainty bayesian laplace variational calibration ood",
    "guides/decisions.md": "conformal abstain reject unknown threshold",
    "guides/noise.md": "robustness noise analog accuracy",
    "guides/training.md": "custom loss multi-task batchnorm dropout metric",
    "guides/report.md": "model card analyze validate profile latency",
    "guides/sound.md": "keyword spotting audio stm32 cortex-m4",
    "guides/search.md": "latency nas mixed precision galen",
}
"""What people call the matter of a page: found by the search, and no part of the text."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Makes links into docs/ those of the site, and says what the search is to find first."""
    name = page.file.src_uri
    if name.startswith("guides/") or name in ("README.md", "start.md"):
        page.meta.setdefault("search", {"boost": 4})
    elif name.startswith("results/runs/") or name == "CHANGELOG.md":
        page.meta.setdefault("search", {"exclude": True})
    return markdown.replace("](docs/", "](").replace("](../docs/", "](../")


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Adds words to find a page by, and says of a notebook's figures what they belong to."""
    name = page.file.src_uri
    if words := WORDS.get(name):
        # Behind the first heading, which is the entry that the search shows for the page.
        html = re.sub(r"(</h1>)", rf'\1<p class="words" hidden>{words}</p>', html, count=1)
    if name.endswith(".ipynb"):
        html = "".join(_with_texts(html))
    return html


def _with_texts(html: str) -> Any:
    """Yields a page in pieces, its figures with the last heading before them as their text."""
    heading = "the notebook"
    for piece in re.split(r"(<h[1-6][^>]*>.*?</h[1-6]>|<img[^>]*>)", html, flags=re.DOTALL):
        if piece.startswith("<h"):
            heading = re.sub(r"<[^>]*>|&[^;]*;|¶", "", piece).strip()
        if piece.startswith("<img"):
            piece = re.sub(r'\balt="[^"]*"', "", piece)
            piece = piece.replace("<img", f'<img alt="Figure: {heading}"', 1)
        yield piece
