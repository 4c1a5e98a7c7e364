"""One page about a model: what it costs, tolerates, needs and knows, measured.

```python
import jax
import jaxeff
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(64)
key, sections = jax.random.key(0), ("layers", "predictions")
page = jaxeff.report(key, f, params, (x, y), title="Digits", sections=sections)
page.save("digits.html")                                 # one file, figures included
page.save("MODEL_CARD.md")                               # the same as a model card
```

`report` measures, a section at a time; a `Report` holds plain numbers and writes them as HTML,
Markdown or JSON. Of a compiled library alone, `jaxeff-export report BUNDLE` makes the same page.

Sharp edges:
    The function is a classifier, `f(params, x) -> logits`.
    Channels are removed by the size of their weights, and nothing is trained afterwards: that tells
    which layers have room, and a model that is trained after pruning loses less.
"""

from jaxeff.reporting._page import Report as Report
from jaxeff.reporting._report import SECTIONS as SECTIONS
from jaxeff.reporting._report import judge_predictions as judge_predictions
from jaxeff.reporting._report import report as report
