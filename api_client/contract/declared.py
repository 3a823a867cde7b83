"""Read files and values that users write against a declaration, and report all problems at once.

A *kind* is a function that converts a value from YAML, TOML or JSON into the value that the program uses. A kind
raises ``ValueError`` with a message such as "must be ...", or ``Invalid`` with several problems. ``record``,
``each`` and ``kind_of`` build kinds. ``Problem`` is one reported problem with its place.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeAlias

#: Path to a value: keys, and list positions from 0.
Where: TypeAlias = tuple[str | int, ...]
Kind: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem found while reading a structured value, such as a settings file.

    ``of_key``: the key is wrong, not its value.
    """

    where: Where
    message: str
    of_key: bool = False
    line: int = 0
    column: int = 0

    @property
    def path(self) -> str:
        """Return the path to the wrong value as people write it, for example ``rules[2].name``."""
        return "".join(f"[{step + 1}]" if isinstance(step, int) else f".{step}" for step in self.where).lstrip(".")

    def __str__(self) -> str:
        place = f"{self.line}:{self.column}: " if self.line else ""
        return f"{place}{self.path}: {self.message}" if self.where else f"{place}{self.message}"


class Invalid(ValueError):
    """Raised when a value has one or more problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Plain(str):
    """A YAML scalar that was written without quotes, so that it may be a text, a number or a boolean."""


class Findings:
    """Collects the problems that are found while reading the parts of a value."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def wrong(self, message: str, *where: str | int, of_key: bool = False) -> None:
        """Record a problem of the part at the path ``where`` or, with ``of_key``, of that part's key."""
        self.problems.append(Problem(where, message, of_key))

    def read(self, kind: Kind, value: Any, *where: str | int) -> Any:
        """Parse the part at path ``where`` with ``kind``; return None and record a problem if the part is invalid."""
        try:
            return kind(value)
        except Invalid as error:
            self.problems += [replace(each, where=(*where, *each.where)) for each in error.problems]
        except ValueError as error:
            self.wrong(str(error), *where)
        return None

    def end(self) -> None:
        """Raise ``Invalid`` if any problem was recorded."""
        if self.problems:
            raise Invalid(self.problems)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'NAME'?`` with the most similar known name, or an empty string if none is similar."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown(name: object, known: Collection[str]) -> str:
    """Return the error message about an unknown key, with the most similar known key or all known keys."""
    return "no such key" + (nearest(str(name), known) or f"; there are: {', '.join(known)}")


def noun_of(value: object) -> str:
    """Return a phrase for a value's type to use in error messages, such as ``a number``."""
    nouns = {bool: "true or false", int: "a number", float: "a number", dict: "a mapping", list: "a list"}
    if isinstance(value, str):
        return "a text"
    return "nothing" if value is None else nouns.get(type(value), type(value).__name__)


def record(kinds: Mapping[str, Kind], needed: Collection[str] = (), noun: str = "it", *, blank: bool = False) -> Kind:
    """Return a parser for mappings that have the keys ``kinds``, each with its own parser.

    With ``blank``, a key without a value counts as missing; otherwise the key's kind gets None.
    """

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{noun} must be a mapping, not {noun_of(value)}".removeprefix("it "))
        found, result = Findings(), dict[str, Any]()
        for key in value:
            if key not in kinds:
                found.wrong(unknown(key, kinds), str(key)[:80], of_key=True)
        for key, kind in kinds.items():
            given = value.get(key)
            if given is None and key in needed:
                found.wrong(f"{noun} needs {key!r}", key)
            elif given is not None or (key in value and not blank):
                result[key] = found.read(kind, given, key)
        found.end()
        return result

    return read


def each(kind: Kind, noun: str = "", most: int = 0, *, single: bool = False) -> Kind:
    """Return a parser for lists whose entries are parsed by ``kind``; ``single`` allows a value without a list."""

    def read(value: Any) -> tuple[Any, ...]:
        if single and (value is None or isinstance(value, str)):
            value = [] if value is None else [value]
        if not isinstance(value, list | tuple):
            raise ValueError(f"must be a list{f' of {noun}' if noun else ''}, not {noun_of(value)}")
        if most and len(value) > most:
            raise ValueError(f"must have at most {most} {noun or 'entries'}")
        found = Findings()
        result = tuple(found.read(kind, item, number) for number, item in enumerate(value))
        found.end()
        return result

    return read


def yes(value: Any) -> bool:
    """Parse a boolean value. Raises ``ValueError`` for any other value."""
    plain = resolved(value)
    if not isinstance(plain, bool):
        raise ValueError(f"must be true or false, not {value!r:.40}")
    return plain


def whole(low: int | None = None, high: int | None = None, *, also: int | None = None) -> Kind:
    """Return a parser for integers from ``low`` to ``high`` (both included), or the value ``also``."""
    limits = "" if low is None else f" from {low} to {high}" if high is not None else f", {low} or more"
    beside = "" if also is None else f", or {also}"

    def read(value: Any) -> int:
        number = resolved(value)
        fits = isinstance(number, int) and not isinstance(number, bool)
        if fits and (number == also or ((low is None or number >= low) and (high is None or number <= high))):
            return int(number)
        raise ValueError(f"must be a whole number{limits}{beside}, not {value!r:.40}")

    return read


def word(value: Any) -> str:
    """Parse a single value as text exactly as written, so that ``12`` becomes a text."""
    if value is None:
        raise ValueError("must not be empty")
    if not isinstance(value, str):
        raise ValueError("must be a single value")
    return str(value)


def one_of(names: Iterable[str]) -> Kind:
    """Return a parser that accepts only the given words, or the members of an enumeration."""
    members = {str(name): name for name in names}

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in members:
            raise ValueError(f"must be one of {', '.join(members)}, not {value!r:.40}")
        return members[value]

    return read


def settable(made: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass that a file may set, by name."""
    return {one.name: one for one in fields(made) if "what" in one.metadata}


def default_of(one: Field[Any]) -> Any:
    """Return the default value of a dataclass field."""
    return one.default if one.default_factory is MISSING else one.default_factory()


def fields_of(made: type[Any]) -> Kind:
    """Return a parser for mappings with the settable fields of a dataclass, converted by their types."""
    hints = typing.get_type_hints(made)
    return record({name: kind_of(hints[name]) for name in settable(made)})


def kind_of(hint: Any) -> Kind:
    """Return the parser for values of a type: str, int, bool, an enumeration, a tuple of these, or a mapping."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        return each(kind_of(typing.get_args(hint)[0]), single=True)
    if origin is not None and issubclass(origin, Mapping):
        return mapping
    if issubclass(hint, Enum):
        return one_of(hint)
    kinds: dict[Any, Kind] = {bool: yes, int: whole(), str: word}
    return kinds[hint]


def mapping(value: Any) -> dict[str, Any]:
    """Parse a mapping with arbitrary keys and values."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping, not {noun_of(value)}")
    return {key: resolved(item) for key, item in value.items()}


#: YAML 1.2 scalars: ``yes`` and ``036`` stay texts.
_WORDS = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d{0,15})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9]\d{0,15})(?:\.\d{0,15})?|\.\d{1,15})(?:[eE][-+]?\d{1,2})?", re.ASCII)


def resolved(value: Any) -> Any:
    """Replace every unquoted YAML scalar in a value by the boolean, number or text that it spells."""
    if isinstance(value, Mapping):
        return {key: resolved(item) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item) for item in value]
    if not isinstance(value, Plain):
        return value
    if value in _WORDS:
        return _WORDS[value]
    if _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if _FLOAT.fullmatch(value) else str(value)
