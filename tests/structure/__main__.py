"""Prints the counts, each beside its limit: `python -m tests.structure [WORD]`.

With a word, lists the places of the counts whose name has it; with `diagram`, prints the layers.
"""

import sys

from .counts import COUNTS
from .diagram import layers
from .limits import COMMENTS, IMPORTS, LIMITS
from .modules import import_lines, read_modules, whole_line_comments

modules = read_modules()
if sys.argv[1:] == ["diagram"]:
    print(layers(modules))
elif len(sys.argv) > 1:
    for name, count in COUNTS.items():
        if sys.argv[1] in name:
            print(name, *count(modules), sep="\n  ")
else:
    for name, count in COUNTS.items():
        print(f"{len(count(modules)):5} (limit {LIMITS[name]:4})  {name}")
    comments, lines = whole_line_comments(modules.values())
    print(f"{100 * comments / lines:5.1f} (at least {COMMENTS})  comment lines in a hundred")
    share = 100 * import_lines(modules.values()) / lines
    print(f"{share:5.1f} (limit {IMPORTS})  lines with imports in a hundred")
    print(f"{len(modules):5} files, {lines} lines")
