"""Figures of a checkout, counted from its files."""

import ast
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from tests.house.names import repeated

PRODUCT = ("api_client", "worker")
#: A folder with more files than this is printed by name.
MOST_FILES = 15
_TEMPLATES = {".html", ".css", ".js", ".j2"}


def folders(root: Path) -> dict[str, int]:
    """Files in each folder of the product, without what Python caches."""
    found: Counter[str] = Counter()
    for path in files(root):
        found[str(path.parent.relative_to(root))] += 1
    return dict(found)


def files(root: Path, *suffixes: str) -> Iterator[Path]:
    """The product's files, all or those with one of the suffixes."""
    for package in PRODUCT:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and (not suffixes or path.suffix in suffixes):
                yield path


def lines(paths: Iterator[Path]) -> list[int]:
    """Lines of each file."""
    return [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]


def functions(tree: ast.AST) -> list[int]:
    """Lines of each function."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node.end_lineno or 0) - node.lineno + 1 for node in ast.walk(tree) if isinstance(node, kinds)]


def docstrings(tree: ast.AST) -> int:
    """Lines of all docstrings."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, owners)]
    return sum(text.count("\n") + 1 for text in texts if text)


def spread(values: Sequence[int]) -> str:
    """Median, 90th percentile and maximum."""
    return f"{statistics.median(values):g} / {statistics.quantiles(values, n=10)[8]:g} / {max(values)}"


def imported(root: Path, path: Path, tree: ast.AST) -> set[str]:
    """The folders of the product that a module imports from, without its own."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PRODUCT:
            place = root / (node.module or "").replace(".", "/")
            found.add(str((place if place.is_dir() else place.parent).relative_to(root)))
    return found - {str(path.parent.relative_to(root))}


def settings_of(root: Path) -> set[str]:
    """The settings: fields declared by ``setting(...)`` in the contract's settings, a file or a room."""
    contract = root / "api_client" / "contract"
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in contract.glob("settings/*.py")]
    trees += [ast.parse(path.read_text(encoding="utf-8")) for path in contract.glob("settings.py")]
    fields = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(each.target) for each in fields if _is_setting(each.value)}


def _is_setting(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in {"setting", "_setting"}


def figures(root: Path) -> dict[str, str]:
    """The figures of a checkout, by what they say."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files(root, ".py")}
    python = lines(iter(trees))
    counted = folders(root)
    large = [f"{name} {count}" for name, count in counted.items() if count > MOST_FILES]
    beyond, explained = repeated(PurePosixPath(path.relative_to(root).as_posix()) for path in trees)
    twice = ", ".join(f"{name} x{len(rooms)}" for name, rooms in beyond.items())
    return {
        "Python files": f"{len(python)}",
        "Python lines": f"{sum(python):,}",
        "docstring lines": f"{sum(map(docstrings, trees.values())):,}",
        "Lua lines": f"{sum(lines(files(root, '.lua'))):,}",
        "template lines": f"{sum(lines(files(root, *_TEMPLATES))):,}",
        "lines of a file (median / p90 / max)": spread(python),
        "lines of a function (median / p90 / max)": spread(
            [size for tree in trees.values() for size in functions(tree)]
        ),
        "folders": f"{len(counted)}",
        f"folders above {MOST_FILES} files": f"{len(large)}: {', '.join(large)}" if large else "0",
        "file names used twice or more": f"{len(beyond)}{': ' if twice else ''}{twice}, and {explained} by convention",
        "settings": f"{len(settings_of(root))}",
    }


def folder_lines(root: Path) -> Iterator[str]:
    """A line for each folder: its files, how many folders import it, how many it imports."""
    counted, out = folders(root), dict[str, set[str]]()
    for path in files(root, ".py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        out.setdefault(str(path.parent.relative_to(root)), set()).update(imported(root, path, tree))
    for name, count in sorted(counted.items()):
        if name in out:
            yield f"{name:32} {count:3} {sum(name in other for other in out.values()):3} {len(out[name]):3}"
