"""``python -m tests.lab.prose [--names]``: check what a machine can check of names and English.

Ruff checks that a function's docstring begins with a verb in the imperative (D401). This program checks the rest:
docstrings that begin without a noun or verb, one-word function names and their homonyms, and long cells of tables.
``--names`` lists the one-word names, the most frequent first. Whether a text is clear only a reader can say.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Highest share of functions whose name is one word.
ONE_WORD_SHARE = 0.35
#: Highest number of names that five or more unrelated functions carry.
HOMONYMS = 25
#: Characters of a cell of a Markdown table; a longer one belongs into a list.
LONGEST_CELL = 200

_NO_NOUN = re.compile(
    r"(?:It|Its|They|Them|Their|This|That|These|Those|Which|Whose|Whoever|Who|What|How|When|Where|Why|One|All|Every"
    r"|The same)\b"
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (*_FUNCTIONS, ast.ClassDef, ast.Module)


@dataclass(frozen=True, slots=True)
class Method:
    """A function of the product, with the base classes of its class ('' and none for a function of a module)."""

    name: str
    owner: str
    bases: tuple[str, ...]


def find_openings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and first words of each docstring that begins with a pronoun, a number or a question word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)) and _NO_NOUN.match(text):
            yield getattr(node, "lineno", 1), " ".join(text.split()[:6])


def find_long_cells(markdown: str) -> Iterator[tuple[int, int]]:
    """Yield line and length of each table cell that is too long."""
    for number, line in enumerate(markdown.splitlines(), 1):
        for cell in line.split("|") if line.startswith("|") else ():
            if len(cell.strip()) > LONGEST_CELL:
                yield number, len(cell.strip())


def list_methods(source: str) -> Iterator[Method]:
    """Yield the functions and methods of a module, without Python's special methods."""
    for node in ast.walk(ast.parse(source)):
        bases: tuple[str, ...] = ()
        if isinstance(node, ast.ClassDef):
            bases = tuple(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FUNCTIONS) and not child.name.startswith("__"):
                yield Method(child.name, node.name if isinstance(node, ast.ClassDef) else "", bases)


def count_homonyms(methods: list[Method]) -> Counter[str]:
    """Return name -> number of unrelated functions with that name; a method that overrides another is not counted."""
    defined = {(method.owner, method.name) for method in methods if method.owner}
    fresh = (each for each in methods if not any((base, each.name) in defined for base in each.bases))
    return Counter(method.name for method in fresh)


def find_problems(root: Path) -> Iterator[str]:
    """Yield a line for each problem of the product's code and pages."""
    methods: list[Method] = []
    for path in sorted(path for place in ("worker", "api_client") for path in (root / place).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        methods += list_methods(source)
        for line, words in find_openings(source):
            yield f'{path.relative_to(root)}:{line}: "{words} ...": begin with a noun or a verb'
    for path in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")]):
        for line, length in find_long_cells(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(root)}:{line}: a cell of {length} characters, not {LONGEST_CELL}: use a list"
    short = [method.name for method in methods if "_" not in method.name.strip("_")]
    if len(short) > ONE_WORD_SHARE * len(methods):
        yield f"{len(short)} of {len(methods)} function names are one word, more than {ONE_WORD_SHARE:.0%}: see --names"
    shared = {name: count for name, count in count_homonyms(methods).items() if count >= 5}
    if len(shared) > HOMONYMS:
        yield f"{len(shared)} names are carried by five or more unrelated functions, more than {HOMONYMS}: see --names"


def main(arguments: list[str]) -> int:
    """Check the checkout, or list the one-word names. Return the exit status: 1 if there is a problem."""
    if "--names" in arguments:
        paths = [path for place in ("worker", "api_client") for path in (ROOT / place).rglob("*.py")]
        methods = [method for path in paths for method in list_methods(path.read_text(encoding="utf-8"))]
        for name, count in count_homonyms(methods).most_common():
            if count >= 5 or "_" not in name.strip("_"):
                print(f"{count:4} {name}")
        return 0
    problems = list(find_problems(ROOT))
    print("\n".join(problems) or "names and docstrings: nothing to rewrite")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
