"""The base of all rules with options: a name, a root, a locale, and how options are declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from worker.enforcement.validators.codes import DEFAULT_LOCALE
from worker.enforcement.validators.validator import ResponseValidator


def option(default: Any, what: str) -> Any:
    """A field that a policy file can set; ``what`` is one sentence for docs and the JSON Schema."""
    return field(default=default, metadata={"what": what})


@dataclass(frozen=True, kw_only=True)
class Rule(ResponseValidator):
    """A validator whose options are in its fields.

    Attributes:
        name: how issues, metrics and requests name this rule; the policy file may choose it.
        root: what paths in answers are relative to (HELIX_ROOT). locale: language of the messages, ``de`` or ``en``.

    Raises:
        ValueError: an option has a value that the rule cannot work with; the message names the option.
    """

    #: The rule's name in a policy file.
    kind: ClassVar[str] = ""
    #: True when the rule starts programs or asks models: a request may add it only where the policy file has it.
    reaches_out: ClassVar[bool] = False

    name: str = ""
    root: Path = Path()
    locale: str = DEFAULT_LOCALE

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.kind)

    def words_in(self, context: Mapping[str, Any]) -> str:
        """The locale to speak: the turn's, else the rule's own."""
        return str(context.get("locale", self.locale))
