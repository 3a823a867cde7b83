"""Base class of all rules with options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from worker.enforcement.validators.codes import DEFAULT_LOCALE
from worker.enforcement.validators.validator import ResponseValidator


def option(default: Any, what: str) -> Any:
    """Declare a field that a policy file can set. ``what`` is one sentence for docs and the JSON Schema."""
    return field(default=default, metadata={"what": what})


@dataclass(frozen=True, kw_only=True)
class Rule(ResponseValidator):
    """A validator whose dataclass fields are its options.

    Attributes:
        name: the rule's name in issues, metrics and requests; the policy file may set it.
        root: directory that paths in answers are relative to (HELIX_ROOT).

    Raises:
        ValueError: an option has an invalid value; the message names the option.
    """

    kind: ClassVar[str] = ""
    #: True if the rule starts programs or asks models. A request may use it only if the policy file has it.
    reaches_out: ClassVar[bool] = False

    name: str = ""
    root: Path = Path()
    locale: str = DEFAULT_LOCALE

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.kind)

    def words_in(self, context: Mapping[str, Any]) -> str:
        """Return the locale of messages: the turn's if known, else the rule's."""
        return str(context.get("locale", self.locale))
