"""The model that docs/rules/pydantic_model.md names, and models that fail."""

from __future__ import annotations

import re

from pydantic import BaseModel, model_validator


class Plan(BaseModel):
    """A title and its steps."""

    title: str
    steps: list[str]


class Hangs(Plan):
    """Its own check runs away."""

    @model_validator(mode="after")
    def _hang(self) -> Hangs:
        re.match(r"(a+)+$", "a" * 64 + "b")
        return self


class Raises(Plan):
    """Its own check has a fault."""

    @model_validator(mode="after")
    def _raise(self) -> Raises:
        raise ZeroDivisionError


class Eats(Plan):
    """Its own check takes all memory."""

    @model_validator(mode="after")
    def _eat(self) -> Eats:
        assert [bytearray(b"x" * 10**6) for _ in range(10**6)]
        return self
