"""What the name of a tensor says: words, numbers, and its role in its module.

Words that mean the same in different libraries are one word (`query` and `q_proj`). Numbers count
by their rank among the names that begin alike, so that `0, 2, 4` of a chain with activations in
between are `0, 1, 2` of a list of layers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

_ROLES = {
    "weight": "weight", "kernel": "weight", "embedding": "weight", "scale": "weight",
    "gamma": "weight", "w": "weight",
    "bias": "bias", "beta": "bias", "offset": "bias", "b": "bias",
    "mean": "mean", "running_mean": "mean", "moving_mean": "mean",
    "var": "var", "running_var": "var", "moving_var": "var", "moving_variance": "var",
}  # fmt: skip
_SYNONYMS = {
    word: common
    for common, words in {
        "q": "query wq", "k": "key wk", "v": "value wv", "out": "output o wo",
        "block": "blocks layer layers blk h", "attn": "attention mha attentions",
        "linear": "fc lin dense", "norm": "ln layernorm batchnorm bn rmsnorm",
        "embed": "embedding embeddings emb embd wte", "token": "tok tokens word",
        "pos": "position positional positions wpe", "mlp": "ffn", "head": "lm unembed classifier",
        "": "model module params transformer net network backbone self",
    }.items()
    for word in words.split()
}  # fmt: skip
_COLLECTIONS = ("params", "state", "batch_stats")  # roots of a tree of parameters and state
_WORDS = re.compile(r"\d+|[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True)
class Name:
    """A name taken apart.

    Attributes:
        module: Words and numbers of the module, as written.
        role: What the tensor is in it: "weight", "bias", "mean" or "var".
        leaf: The last part of the name, such as "kernel".
    """

    module: tuple[str, ...]
    role: str
    leaf: str

    @property
    def words(self) -> Counter[str]:
        """Counts the words of the module in common terms."""
        common = (_SYNONYMS.get(word, word) for word in self.module if not word.isdigit())
        return Counter(word for word in common if word)


def parse_name(text: str) -> Name:
    """Takes a name apart, of a parameter (`a/b/kernel`) or a tensor (`a.b.weight`)."""
    *parents, leaf = re.split(r"[./]", text)
    parents = parents[1:] if parents and parents[0] in _COLLECTIONS else parents
    role = _ROLES.get(leaf.lower())
    if role is None:
        # Such as `in_proj_weight`, whose module is `in_proj`.
        before, _, last = leaf.rpartition("_")
        role = _ROLES[last] if before and last in ("weight", "bias") else None
        leaf, parents = (last, [*parents, before]) if role else (leaf, [*parents, leaf])
    words = tuple(word.lower() for part in parents for word in _WORDS.findall(part))
    return Name(words, role or "weight", leaf.lower())


def ranked_numbers(modules: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Ranks the numbers of each module among those of modules that begin alike.

    A number without another one in its place says nothing and is left out.
    """
    modules = list(modules)
    seen: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for module in modules:
        for i, word in enumerate(module):
            if word.isdigit():
                seen[module[:i]].add(int(word))
    ranks = {start: {n: i for i, n in enumerate(sorted(found))} for start, found in seen.items()}
    return {
        module: tuple(
            ranks[module[:i]][int(word)]
            for i, word in enumerate(module)
            if word.isdigit() and len(seen[module[:i]]) > 1
        )
        for module in modules
    }


def likeness(a: Name, b: Name) -> float:
    """Says how many words two names share: 1 for all, 0 for none (Dice's coefficient)."""
    total = a.words.total() + b.words.total()
    return 2 * (a.words & b.words).total() / total if total else 1.0
