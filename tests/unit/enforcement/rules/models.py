"""The model that docs/rules/pydantic_model.md names."""

from __future__ import annotations

from pydantic import BaseModel


class Plan(BaseModel):
    """A title and its steps."""

    title: str
    steps: list[str]
