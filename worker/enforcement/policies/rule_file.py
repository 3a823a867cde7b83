"""Rules in plain Python files below HELIX_ROOT, such as ``rules/no_todo.py`` or ``rules/all.py:NoTodo``."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.enforcement.rules import Rule
from worker.enforcement.validators import ResponseValidator
from worker.enforcement.validators.foreign_code import report_unusable_code

_FORM = re.compile(r"(?P<path>(?:[\w-][\w.-]*/){0,20}(?P<stem>[A-Za-z_]\w*)\.py)(?::(?P<kind>[A-Za-z_]\w*))?")
#: Directories where agents write.
_AGENTS = ("projects/", "output/")


def is_rule_file(rule: str) -> bool:
    """Return True if the name of a rule refers to a Python file."""
    return rule.endswith(".py") or ".py:" in rule


def find_name_problem(rule: str) -> str:
    """Return why a text is not a valid path of a rule file, or an empty string if the path is valid."""
    found = _FORM.fullmatch(rule)
    if found is None:
        return "must be a path below HELIX_ROOT such as rules/no_todo.py, or rules/all.py:NoTodo"
    if found["path"].startswith(_AGENTS):
        return f"must not be in {found['path'].split('/')[0]}/, where agents write"
    return ""


def default_rule_name(rule: str) -> str:
    """Return a rule's default name: the file name without ``.py``."""
    found = _FORM.fullmatch(rule)
    return found["stem"] if found else rule


def load_rule(rule: str, *, name: str, root: Path, locale: str, options: Mapping[str, Any]) -> ResponseValidator:
    """Load the Python file that a policy names, and return the rule that it defines.

    ``options`` are fields of a ``Rule``, or arguments of the class. Raises ``ValueError``, ``TypeError`` or
    ``ImportError``.
    """
    found = _FORM.fullmatch(rule)
    if found is None or find_name_problem(rule):
        raise ValueError(f"{rule}: {find_name_problem(rule)}")
    path = (root / found["path"]).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError(f"{rule}: leads out of HELIX_ROOT")
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise ImportError(f"{rule}: {error.strerror} ({path})") from None
    kind = _load_class(path, changed, found["kind"] or "", rule)
    given: dict[str, Any] = {"name": name, "root": root, "locale": locale}
    with report_unusable_code(rule):
        if issubclass(kind, Rule):
            return kind(**{**given, **options})
        wanted = inspect.signature(kind).parameters
        return kind(**{key: value for key, value in given.items() if key in wanted}, **options)


@functools.lru_cache(maxsize=256)
def _load_class(path: Path, changed: int, name: str, rule: str) -> type[ResponseValidator]:
    module_name = f"helix_turns_rule_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{rule}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ImportError(f"{rule}: {type(error).__name__}: {error}") from error
    own = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, ResponseValidator) and each.__module__ == module_name
    ]
    found = [each for each in own if not name or each.__name__ == name]
    if len(found) != 1:
        names = ", ".join(each.__name__ for each in own) or "none"
        raise TypeError(f"{rule}: needs one class of ResponseValidator, or its name behind a colon; there: {names}")
    return found[0]
