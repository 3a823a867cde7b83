"""Parsers for files and values that users write; all problems are reported at once.

A *kind* converts a value from YAML, TOML or JSON into the value that the program uses. A kind raises ``ValueError``
with a message such as "must be ...", or ``InvalidValue`` with several problems.
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
    """A problem found while parsing a structured value, such as a settings file.

    ``of_key`` says that the key is wrong, not its value.
    """

    where: Where
    message: str
    of_key: bool = False
    line: int = 0
    column: int = 0

    @property
    def path(self) -> str:
        """Return the readable path to the wrong value, such as ``rules[2].name``."""
        return "".join(f"[{step + 1}]" if isinstance(step, int) else f".{step}" for step in self.where).lstrip(".")

    def __str__(self) -> str:
        place = f"{self.line}:{self.column}: " if self.line else ""
        return f"{place}{self.path}: {self.message}" if self.where else f"{place}{self.message}"


class InvalidValue(ValueError):
    """Raised when a value has one or more problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class PlainScalar(str):
    """A YAML scalar written without quotes, which may mean a text, a number or a boolean."""


class Findings:
    """Collects problems while the parts of a value are parsed, to report them all together."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add_problem(self, message: str, *where: str | int, of_key: bool = False) -> None:
        """Add a problem about the part at the path ``where`` or, with ``of_key``, about that part's key."""
        self.problems.append(Problem(where, message, of_key))

    def read_part(self, kind: Kind, value: Any, *where: str | int) -> Any:
        """Parse the part at the path ``where`` with ``kind``. If it is invalid, add a problem and return None."""
        try:
            return kind(value)
        except InvalidValue as error:
            self.problems += [replace(each, where=(*where, *each.where)) for each in error.problems]
        except ValueError as error:
            self.add_problem(str(error), *where)
        return None

    def raise_problems(self) -> None:
        """Raise ``InvalidValue`` if any problem was added."""
        if self.problems:
            raise InvalidValue(self.problems)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'NAME'?`` with the most similar known name, or an empty string without one."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def describe_unknown_key(name: object, known: Collection[str]) -> str:
    """Build the error message about an unknown key, with the most similar known key or a list of all keys."""
    return "no such key" + (suggest_name(str(name), known) or f"; there are: {', '.join(known)}")


def describe_type(value: object) -> str:
    """Describe a value's type for an error message, such as ``a number``."""
    nouns = {bool: "true or false", int: "a number", float: "a number", dict: "a mapping", list: "a list"}
    if isinstance(value, str):
        return "a text"
    return "nothing" if value is None else nouns.get(type(value), type(value).__name__)


def record_kind(
    kinds: Mapping[str, Kind], needed: Collection[str] = (), noun: str = "it", *, blank: bool = False
) -> Kind:
    """Return a parser for mappings that parses each key's value with the key's parser in ``kinds``.

    With ``blank``, a key without a value counts as missing; otherwise the key's kind gets None.
    """

    def read_record(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{noun} must be a mapping, not {describe_type(value)}".removeprefix("it "))
        found, result = Findings(), dict[str, Any]()
        for key in value:
            if key not in kinds:
                found.add_problem(describe_unknown_key(key, kinds), str(key)[:80], of_key=True)
        for key, kind in kinds.items():
            given = value.get(key)
            if given is None and key in needed:
                found.add_problem(f"{noun} needs {key!r}", key)
            elif given is not None or (key in value and not blank):
                result[key] = found.read_part(kind, given, key)
        found.raise_problems()
        return result

    return read_record


def list_kind(kind: Kind, noun: str = "", most: int = 0, *, single: bool = False) -> Kind:
    """Return a parser for lists that parses each entry with ``kind``. ``single`` also accepts a single value."""

    def read_list(value: Any) -> tuple[Any, ...]:
        if single and (value is None or isinstance(value, str)):
            value = [] if value is None else [value]
        if not isinstance(value, list | tuple):
            raise ValueError(f"must be a list{f' of {noun}' if noun else ''}, not {describe_type(value)}")
        if most and len(value) > most:
            raise ValueError(f"must have at most {most} {noun or 'entries'}")
        found = Findings()
        result = tuple(found.read_part(kind, item, number) for number, item in enumerate(value))
        found.raise_problems()
        return result

    return read_list


def read_bool(value: Any) -> bool:
    """Parse a boolean value. Raises ``ValueError`` for any other value."""
    plain = resolve_scalars(value)
    if not isinstance(plain, bool):
        raise ValueError(f"must be true or false, not {value!r:.40}")
    return plain


def integer_kind(low: int | None = None, high: int | None = None, *, also: int | None = None) -> Kind:
    """Return a parser for integers from ``low`` to ``high`` (inclusive), or the value ``also``."""
    limits = "" if low is None else f" from {low} to {high}" if high is not None else f", {low} or more"
    beside = "" if also is None else f", or {also}"

    def read_integer(value: Any) -> int:
        number = resolve_scalars(value)
        fits = isinstance(number, int) and not isinstance(number, bool)
        if fits and (number == also or ((low is None or number >= low) and (high is None or number <= high))):
            return int(number)
        raise ValueError(f"must be a whole number{limits}{beside}, not {value!r:.40}")

    return read_integer


def read_word(value: Any) -> str:
    """Parse a single value as text exactly as written, so that ``12`` becomes a text."""
    if value is None:
        raise ValueError("must not be empty")
    if not isinstance(value, str):
        raise ValueError("must be a single value")
    return str(value)


def choice_kind(names: Iterable[str]) -> Kind:
    """Return a parser that accepts only the given words, or the members of an enumeration."""
    members = {str(name): name for name in names}

    def read_choice(value: Any) -> str:
        if not isinstance(value, str) or value not in members:
            raise ValueError(f"must be one of {', '.join(members)}, not {value!r:.40}")
        return members[value]

    return read_choice


def settable_fields(made: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass that may be set in a file, by name."""
    return {one.name: one for one in fields(made) if "what" in one.metadata}


def field_default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def dataclass_kind(made: type[Any]) -> Kind:
    """Return a parser for mappings with a dataclass's settable fields, converted to the fields' types."""
    hints = typing.get_type_hints(made)
    return record_kind({name: kind_of(hints[name]) for name in settable_fields(made)})


def kind_of(hint: Any) -> Kind:
    """Return the parser for a type: str, int, bool, an enumeration, a tuple of these, or a mapping."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        return list_kind(kind_of(typing.get_args(hint)[0]), single=True)
    if origin is not None and issubclass(origin, Mapping):
        return read_mapping
    if issubclass(hint, Enum):
        return choice_kind(hint)
    kinds: dict[Any, Kind] = {bool: read_bool, int: integer_kind(), str: read_word}
    return kinds[hint]


def read_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping, not {describe_type(value)}")
    return {key: resolve_scalars(item) for key, item in value.items()}


#: YAML 1.2 scalars: ``yes`` and ``036`` stay texts.
_WORDS = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d{0,15})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9]\d{0,15})(?:\.\d{0,15})?|\.\d{1,15})(?:[eE][-+]?\d{1,2})?", re.ASCII)


def resolve_scalars(value: Any) -> Any:
    """Convert each unquoted YAML scalar in a value to the boolean, number or text that it denotes."""
    if isinstance(value, Mapping):
        return {key: resolve_scalars(item) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve_scalars(item) for item in value]
    if not isinstance(value, PlainScalar):
        return value
    if value in _WORDS:
        return _WORDS[value]
    if _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if _FLOAT.fullmatch(value) else str(value)
