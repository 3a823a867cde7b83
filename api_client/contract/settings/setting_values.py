"""Parsers that convert a setting's text to a checked value."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

#: How a streamed answer is shown before it is accepted (docs/http-api.md).
STREAM_MODES = ("live", "draft", "validated")
ROLES = ("system", "developer", "user", "assistant", "tool")


def number_parser(low: float, high: float) -> Callable[[str], float]:
    """Return a parser for numbers from ``low`` to ``high`` (inclusive)."""

    def parse_number(value: str) -> float:
        try:
            number = float(value) if value.isascii() else math.nan
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise ValueError(f"must be a number from {low:.15g} to {high:.15g}")
        return number

    return parse_number


def integer_parser(low: int, high: int) -> Callable[[str], int]:
    """Return a parser for whole numbers from ``low`` to ``high`` (inclusive)."""

    def parse_integer(value: str) -> int:
        if not (value.isascii() and value.isdecimal() and low <= int(value) <= high):
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return parse_integer


def choice_parser(*allowed: str) -> Callable[[str], str]:
    """Return a parser that accepts only the given words."""

    def parse_choice(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return parse_choice


def parse_path(value: str) -> str:
    """Return a file path as an absolute path, because processes have different working directories."""
    return str(Path(value).expanduser().absolute())


def parse_web_address(value: str) -> str:
    """Return a website's address unchanged if it is valid. Raises ``ValueError`` otherwise."""
    parts = urlsplit(value)
    if not (parts.scheme in {"http", "https"} and parts.hostname):
        raise ValueError("must look like https://host or http://host:port/path")
    _ = parts.port  # raises ValueError if it is not a port
    return value


def parse_model_runners(value: str) -> dict[str, str]:
    """Parse models with their runners and options, in the form ``model=runner[:option],...``."""
    models: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        model, separator, runner = item.partition("=")
        if not (separator and model.strip() and runner.strip()):
            raise ValueError("must look like model=runner[:option],model=runner")
        models[model.strip()] = runner.strip()
    if not models:
        raise ValueError("must name at least one model")
    return models


def names(value: str) -> tuple[str, ...]:
    """Split a comma-separated text into its non-empty parts, without surrounding spaces."""
    return tuple(filter(None, (part.strip() for part in value.split(","))))
