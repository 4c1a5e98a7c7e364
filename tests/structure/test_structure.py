"""The structure's counts stay within their limits, and the drawn layers are those there are."""

import pytest

from .counts import COUNTS, vague_names
from .diagram import layers, ranks
from .limits import COMMENTS, IMPORTS, LIMITS, VAGUE_NAMES
from .modules import ROOT, Module, circles, import_lines, read_modules, whole_line_comments

MODULES = read_modules()


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_no_count_rises(name):
    found = COUNTS[name](MODULES)
    assert len(found) <= LIMITS[name], "\n".join([f"{name}:", *found])


@pytest.mark.slow
@pytest.mark.parametrize("folder", VAGUE_NAMES)
def test_names_that_say_nothing_become_fewer(folder):
    assert len(vague_names(read_modules({folder: ROOT / folder}))) <= VAGUE_NAMES[folder]


def test_comments_do_not_become_rarer():
    comments, lines = whole_line_comments(MODULES.values())
    assert 100 * comments / lines >= COMMENTS


def test_imports_do_not_become_more():
    lines = whole_line_comments(MODULES.values())[1]
    share = 100 * import_lines(MODULES.values()) / lines
    assert share <= IMPORTS, "import modules in the place of long lists of names"


def test_the_layers_of_contributing_are_those_there_are():
    drawn = (ROOT / "CONTRIBUTING.md").read_text().split("```text\njaxeff_export/\n")[1]
    drawn = "jaxeff_export/\n" + drawn.split("\n```")[0]
    assert drawn == layers(MODULES), "print them anew: python -m tests.structure diagram"


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []
    with pytest.raises(ValueError, match="circle"):
        ranks({"a": {"b"}, "b": {"a"}})


FAULTS = {
    "modules hidden by a public name": {
        "p/__init__.py": "from p.x import f",
        "p/q/__init__.py": "from p.q.f import f",
        "p/q/f.py": "def f(): ...",
    },
    "modules that aren't private": {"p/open.py": "", "p/_closed.py": ""},
    "imports of a module inside another package": {
        "p/a/__init__.py": "",
        "p/a/_x.py": "from p.b._y import f",
        "p/b/__init__.py": "from p.b._y import f",
        "p/b/_y.py": "def f(): ...",
    },
    "circles of modules": {
        "p/_x.py": "from p._y import f",
        "p/_y.py": "def f():\n    from p._x import g",
    },
    "circles of packages": {
        "p/a/__init__.py": "from p.a._x import f",
        "p/a/_x.py": "from p.b import g",
        "p/b/__init__.py": "from p.b._y import g",
        "p/b/_y.py": "def g():\n    from p.a import f",
    },
    "modules": {},
    "packages with too many modules": {f"p/_m{i}.py": "" for i in range(19)},
    "functions of more than 60 statements": {"p/_x.py": "def f():\n" + "    x = 1\n" * 61},
    "functions of more than 40 statements": {"p/_x.py": "def f():\n" + "    x = 1\n" * 41},
    "functions of more than 60 lines": {"p/_x.py": "def f():\n" + "    # x\n" * 59 + "    x = 1"},
    "functions of more than 7 parameters without a reason": {
        "p/_x.py": "# 8 parameters: for this\n@a\ndef f(a, b, c, d, e, *, f, g, h): ...\n\n\n"
        "# 7 parameters: wrong\ndef g(a, b, c, d, e, *, f, g, h): ..."
    },
    "module docstrings of more than 25 lines": {"p/_x.py": '"""A.' + "\n" * 25 + '"""'},
    "modules that read a list of equations": {"p/_x.py": "jaxpr.eqns\njaxpr.eqns"},
    "modules beyond six that name one primitive": {
        f"p/_m{i}.py": "p.sin_p\nprim.p.sin_p\nsplit_p" if i else "sin_p" for i in range(7)
    },
    "imports for type checkers in the middle of a module": {
        "p/_x.py": "if TYPE_CHECKING:\n    import a\n\ndef f(): ...\n"
        "if TYPE_CHECKING:\n    import b"
    },
    "private names of more than five modules": {
        **{f"p/_m{i}.py": "def _read(): ..." for i in range(6)},
        "p/_x.py": "def _same(): ...",
    },
    "references into an absent text": {"p/_x.py": "# see T123" + "4"},
    "docs of an argument without a noun": {"p/_x.py": "    x: Of a kind."},
    "classes that share a name": {"p/_x.py": "class A: ...", "p/_y.py": "class A: ..."},
    "names that don't say what is held": {"p/_x.py": "found = given.found\nprint(f(made=1))"},
    "deferred imports without a reason": {
        "p/_x.py": "def f():\n    # start-up time\n    import jaxeff\n\n\n    import jaxeff.nn"
    },
    "pairs of places that share six lines": {
        f"p/_{name}.py": "".join(f"{letter} = {letter}{name if letter == 'z' else ''}\n"
                                 for letter in "abcdefgz")
        for name in "xy"
    },
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_a_fault_is_counted_once(name, tmp_path):
    files = {"p/__init__.py": "", **FAULTS[name]}
    for file, text in files.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    modules = read_modules({"p": tmp_path / "p"})
    assert all(isinstance(module, Module) for module in modules.values())
    assert len(COUNTS[name](modules)) == 1
