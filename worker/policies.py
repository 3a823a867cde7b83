"""Policy files for the web side: read, checked, and made into what ``api_client`` asks of one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from api_client.contract.errors import SettingsError
from api_client.contract.offered import offered_validators
from api_client.contract.values.policy import Asker, Given
from worker.enforcement.policies import PolicyError, PolicyFile, Subject, read_policy
from worker.enforcement.policy import DEFAULT_ORDER
from worker.enforcement.rules import RULES


@dataclass(frozen=True)
class Source:
    """A usable policy file (``api_client.contract.values.policy.PolicySource``)."""

    file: PolicyFile
    text: str

    @property
    def hash(self) -> str:
        """As ``PolicyFile.hash``."""
        return self.file.hash

    @cached_property
    def askable(self) -> tuple[str, ...]:
        """The file's rules, and others that are offered, start no program, ask no model and need no options."""
        own = tuple(entry.name for entry in self.file.rules if not entry.shadow)
        shadow = {entry.name for entry in self.file.rules if entry.shadow}
        others = (
            *offered_validators(),
            *(name for name, rule in RULES.items() if not rule.reaches_out and _bare(rule)),
        )
        return tuple(dict.fromkeys((*own, *(name for name in others if name not in shadow))))

    def given(self, model: str, asker: Asker, kind: str = "chat") -> Given:
        """What the policy gives a turn."""
        subject = Subject(model=model, owner=asker.owner, route=asker.route, kind=kind)
        entries = [entry for entry in self.file.rules if entry.applies_to.judges(subject) and not entry.on_request]
        return Given(
            active=tuple(entry.name for entry in entries if not entry.shadow),
            shadow=tuple(entry.name for entry in entries if entry.shadow),
            orders={
                entry.name: tuple(map(str, entry.order)) for entry in self.file.rules if entry.order != DEFAULT_ORDER
            },
            caps={entry.name: entry.max_attempts for entry in self.file.rules if entry.max_attempts},
            lenient=tuple(entry.name for entry in self.file.rules if entry.on_error == "warn"),
            max_attempts=self.file.max_attempts,
            locale=self.file.locale,
        )


def read_source(text: str, name: str) -> Source:
    """Read a policy file.

    Args:
        text: the YAML.
        name: the file's name, for messages.

    Raises:
        SettingsError: it cannot be used; a line for each problem, with the file's name, line and column.
    """
    try:
        return Source(read_policy(text), text)
    except PolicyError as error:
        raise SettingsError([f"{name}:{problem}" for problem in error.problems]) from None


def _bare(rule: type[Any]) -> bool:
    """Whether a rule works without options."""
    try:
        rule()
    except ValueError:
        return False
    return True
