"""What the site does with pages: links into docs/, words to find guides by, notebooks as pages.

Notebooks are shown as they were executed: their cells become Markdown, outputs and all, which takes
milliseconds where a converter takes minutes.
"""

import html as markup
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from mkdocs.structure.files import File

WORDS = {
    "guides/boards.md": "stm32 cortex-m4 cortex-m7 arduino zephyr esp32 embedded tinyml latency",
    "guides/pytorch.md": "pytorch torch state_dict stm32 cortex-m4",
    "guides/your_model.md": "pytorch keras onnx tflite flax equinox import convert",
    "guides/keras.md": "keras tensorflow tflite savedmodel quantization-aware qat",
    "guides/onnx.md": "onnx pytorch export",
    "guides/few_bits.md": "quantise quantize quantisation quantization int8 int4 compress",
    "guides/pruning.md": "prune sparsity slim channels",
    "guides/certainty.md": "uncertainty bayesian laplace variational calibration ood",
    "guides/scores.md": "ood out-of-distribution anomaly mahalanobis energy knn odin vim",
    "guides/tokens.md": "llm language model uncertainty hallucination lora",
    "guides/engines.md": "tflite litert onnx onnxruntime ethos-u npu vela",
    "guides/weights.md": "safetensors gguf checkpoint npz hugging face hub push",
    "guides/decisions.md": "conformal abstain reject unknown threshold drift monitor",
    "guides/perception.md": "object detection segmentation fomo yolo unet nms iou bounding boxes",
    "guides/noise.md": "robustness noise analog accuracy",
    "guides/training.md": "custom loss multi-task batchnorm dropout metric",
    "guides/report.md": "model card analyze validate profile latency",
    "guides/sound.md": "keyword spotting audio stm32 cortex-m4",
    "guides/learning.md": "on-device training personalization continual fine-tuning tinyml",
    "guides/search.md": "latency nas mixed precision galen",
}
"""What people call the matter of a page: found by the search, and no part of the text."""


def on_config(config: Any) -> Any:
    """Lets the navigation name notebooks, whose pages are of Markdown."""
    config.nav = json.loads(json.dumps(config.nav).replace('.ipynb"', '.md"'))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Puts a page in the place of each notebook."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        notebook = json.loads(Path(file.abs_src_path).read_text())
        text = "\n\n".join(part for cell in notebook["cells"] for part in _shown(cell))
        files.remove(file)
        name = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, name, content=text))
    return files


def _shown(cell: dict[str, Any]) -> Iterator[str]:
    """Yields a cell's text or code, then what it shows, in Markdown."""
    source = "".join(cell["source"])
    yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
    for output in cell.get("outputs", ()):
        data = {kind: "".join(each) for kind, each in output.get("data", {}).items()}
        if "image/png" in data:
            png = data["image/png"].replace("\n", "")
            yield f'<img src="data:image/png;base64,{png}">'
        elif "text/html" in data:
            # One block: an empty line would end it.
            yield re.sub(r"\n\s*\n", "\n", f'<div class="output">{data["text/html"].strip()}</div>')
        else:
            text = "".join(output.get("text", "")) or data.get("text/plain", "")
            yield f'<pre class="output">{markup.escape(text.rstrip())}</pre>'


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Makes links into docs/ those of the site, and says what the search is to find first."""
    name = page.file.src_uri
    if name.startswith("guides/") or name in ("README.md", "start.md"):
        page.meta.setdefault("search", {"boost": 4})
    elif name.startswith("results/runs/") or name == "CHANGELOG.md":
        page.meta.setdefault("search", {"exclude": True})
    return with_links_of_the_site(markdown)


def with_links_of_the_site(markdown: str) -> str:
    """Makes links into docs/, and to notebooks, those of the site."""
    markdown = re.sub(r"(\]\([^)\s]*notebooks/\w+)\.ipynb", r"\1.md", markdown)
    return markdown.replace("](docs/", "](").replace("](../docs/", "](../")


def on_page_content(html: str, *, page: Any, files: Any, **_: Any) -> str:
    """Adds words to find a page by, and says of figures what they belong to and which are wide."""
    name = page.file.src_uri
    html = _with_wide_figures(html, page.url, {file.url: file.abs_src_path for file in files})
    if words := WORDS.get(name):
        # Behind the first heading, which is the entry that the search shows for the page.
        html = re.sub(r"(</h1>)", rf'\1<p class="words" hidden>{words}</p>', html, count=1)
    if name.startswith("notebooks/"):
        html = "".join(_with_texts(html))
    return html


def _with_wide_figures(html: str, url: str, sources: dict[str, str | None]) -> str:
    """Marks figures of several panels, whose text is too small at the width of a phone."""

    def marked(found: re.Match[str]) -> str:
        source = sources.get(urljoin(f"/{url}", found[1]).removeprefix("/"))
        if not source:
            return found[0]
        width, height = struct.unpack(">II", Path(source).read_bytes()[16:24])  # of a PNG
        aspect = width / height
        style = f'<img class="wide" style="--aspect: {aspect:.2f}"'
        return found[0].replace("<img", style, 1) if aspect > 1.6 else found[0]

    return re.sub(r'<img[^>]*\bsrc="([^":]+\.png)"[^>]*>', marked, html)


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
