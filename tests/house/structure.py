"""How the product's folders, names, store keys and limits hang together, read from the source."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.house.figures import PRODUCT, files

#: Which folders a folder imports from.
Arrows = Mapping[str, set[str]]
#: Two limits that a caller meets: a word that stands beside each, and its number.
LIMITS = {"attempts": 20, "seconds": 604_800}
_KEYS = re.compile(r"api_client/(.*/)?(notification_)?keys\.py")
_BARE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def parsed(root: Path) -> dict[Path, ast.Module]:
    """Each Python file of the product, by its path below the root."""
    return {path.relative_to(root): ast.parse(path.read_text(encoding="utf-8")) for path in files(root, ".py")}


def arrows(trees: Mapping[Path, ast.Module]) -> Arrows:
    """Which folders each folder imports from; imports inside functions and for types count too."""
    packages = {each for path in trees for each in path.parents}
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            for name in _imported(node, path):
                place = Path(*name.split("."))
                found[str(path.parent)].add(str(place if place in packages else place.parent))
        found[str(path.parent)].discard(str(path.parent))
    return found


def _imported(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        above = path.parts[: len(path.parts) - node.level] if node.level else ()
        module = ".".join((*above, *((node.module,) if node.module else ())))
        names = [module]
    else:
        return
    yield from (name for name in names if name.partition(".")[0] in PRODUCT)


def knots(found: Arrows) -> list[set[str]]:
    """The groups of folders that import each other in a circle, the largest first."""
    reach = {folder: _reached(found, folder) for folder in found}
    groups: list[set[str]] = []
    for folder, seen in reach.items():
        group = {other for other in seen if folder in reach.get(other, ())}
        if len(group) > 1 and group not in groups:
            groups.append(group)
    return sorted(groups, key=len, reverse=True)


def _reached(found: Arrows, start: str) -> set[str]:
    seen, ahead = set[str](), [start]
    while ahead:
        for other in found.get(ahead.pop(), ()):
            if other not in seen:
                seen.add(other)
                ahead.append(other)
    return seen


def mutual(found: Arrows) -> list[tuple[str, str]]:
    """The pairs of folders that import each other directly."""
    return [(one, other) for one in found for other in found[one] if one < other and one in found.get(other, ())]


def names_twice(trees: Mapping[Path, ast.Module]) -> dict[str, list[str]]:
    """The names of public classes that two modules or more declare, with those modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path))
    return {name: places for name, places in found.items() if len(places) > 1}


def keys_on_both_sides(trees: Mapping[Path, ast.Module]) -> tuple[list[str], int]:
    """The store keys that code of ``api_client`` and code of ``worker`` names, and how many keys there are."""
    keys = {
        name
        for path, tree in trees.items()
        for node in (tree.body if _KEYS.fullmatch(str(path)) else ())
        if isinstance(node, ast.ClassDef) and node.name.endswith("Keys")
        for each in node.body
        if (name := _key_name(each)) and not name.startswith("_")
    }
    sides: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for node in () if _KEYS.fullmatch(str(path)) else ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in keys and "key" in ast.unparse(node.value).lower():
                sides[node.attr].add(path.parts[0])
    return sorted(key for key, found in sides.items() if len(found) > 1), len(keys)


def _key_name(part: ast.stmt) -> str:
    """The name of the key that a part of the class of keys makes: by a method, or by its name alone."""
    if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
        return part.targets[0].id
    return part.name if isinstance(part, ast.FunctionDef) else ""


def places_of_limits(trees: Mapping[Path, ast.Module]) -> dict[str, int]:
    """For each of LIMITS, the number of modules that state it: a statement with its word and its number."""
    return {
        f"{word} {number}": sum(_states(tree, word, number) for tree in trees.values())
        for word, number in LIMITS.items()
    }


def _states(tree: ast.Module, word: str, number: int) -> bool:
    simple = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return, ast.If)
    for node in ast.walk(tree):
        if isinstance(node, simple) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            part = node.test if isinstance(node, ast.If) else node
            numbers = {each.value for each in ast.walk(part) if isinstance(each, ast.Constant)}
            if number in {each for each in numbers if type(each) is int} and word in ast.unparse(part).lower():
                return True
    return False


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """The numbers of the lines of code: without imports, docstrings, comments and blank lines."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _BARE:
            found.update(range(token.start[0], token.end[0] + 1))
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        apart: ast.stmt | None = node if isinstance(node, ast.Import | ast.ImportFrom) else None
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            apart = node.body[0]
        if apart:
            found.difference_update(range(apart.lineno, (apart.end_lineno or apart.lineno) + 1))
    return found


def structure(root: Path) -> dict[str, str]:
    """The figures of a checkout's structure, by what they say."""
    trees = parsed(root)
    found = arrows(trees)
    tied = knots(found)
    both, keys = keys_on_both_sides(trees)
    all_folders = set(found).union(*found.values())
    code = sum(len(code_lines((root / path).read_text(encoding="utf-8"), tree)) for path, tree in trees.items())
    return {
        "code lines (no imports, docstrings, comments, blanks)": f"{code:,}",
        "folders in import cycles": f"{sum(map(len, tied))} of {len(all_folders)}",
        "knots of folders; mutual pairs": f"{len(tied)}; {len(mutual(found))}",
        "store keys handled on both sides": f"{len(both)} of {keys}",
        "public class names used twice": f"{len(names_twice(trees))}",
        "modules that state a limit": ", ".join(f"{name}: {count}" for name, count in places_of_limits(trees).items()),
    }
