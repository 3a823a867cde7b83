"""A policy file as the web side knows it: what it gives a turn, and its text for the store.

Reading such a file is the worker's business (``worker.policies``). The program that puts both sides together hands the
reader to ``TurnsClient`` as ``read_policy``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

#: What is tried for a validator's errors where nothing else is ordered (ADR-038).
DEFAULT_ORDER = ("retry", "fallback", "fail")
#: What can be ordered for them (``worker.enforcement.policy.Action``).
ACTIONS = ("repair", "retry", "fallback", "escalate", "fail", "warn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Whose turn it is, as a policy's conditions see it.

    Attributes:
        owner: the owner that the API key names; empty for a caller without one.
        route: chat, responses or turns.
    """

    owner: str = ""
    route: str = "turns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a policy gives one turn, by the names of its rules.

    Attributes:
        active: the rules that judge, in the file's order. shadow: those that judge and decide nothing.
        orders: rule -> what is tried for its errors; every rule of the file.
        caps: rule -> after how many rejected answers the agent is not asked again because of it.
        lenient: rules that accept an answer they could not judge.
        max_attempts: how often the agent runs at most. locale: language of feedback, or empty for the turn's own.
    """

    active: tuple[str, ...]
    shadow: tuple[str, ...]
    orders: dict[str, tuple[str, ...]]
    caps: dict[str, int]
    lenient: tuple[str, ...]
    max_attempts: int
    locale: str


class PolicySource(Protocol):
    """A policy file that was read and found usable."""

    @property
    def hash(self) -> str:
        """Its name on turns: 16 hexadecimal digits of its meaning."""
        ...

    @property
    def text(self) -> str:
        """The file's text, which is stored under the hash: any file of the same meaning has the same hash."""
        ...

    @property
    def askable(self) -> tuple[str, ...]:
        """The rules that a request may name."""
        ...

    def given(self, model: str, asker: Asker, kind: str = "chat") -> Given:
        """What it gives a turn of this model, asker and kind (chat, phase)."""
        ...


def plain_hash(validators: Iterable[str], orders: Mapping[str, Sequence[str]], max_attempts: int) -> str:
    """The hash of a policy without a file: the one that a file of this meaning has (``PolicyFile.hash``)."""
    ordered = tuple((name, tuple(orders.get(name, DEFAULT_ORDER))) for name in validators)
    return _plain_hash(ordered, max_attempts)


@lru_cache(maxsize=256)  # the settings are the same for each turn
def _plain_hash(ordered: tuple[tuple[str, tuple[str, ...]], ...], max_attempts: int) -> str:
    rules = [
        {
            "name": name,
            "rule": name,
            "options": {},
            "severity": "error",
            "reactions": order,
            "max_attempts": 0,
            "applies_to": {},
            "on_error": "fail",
            "shadow": False,
        }
        for name, order in ordered
    ]
    meaning = {"version": 1, "max_attempts": max_attempts, "locale": "", "rules": rules}
    text = json.dumps(meaning, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


#: Reads a policy file: its text, and its name for messages. Raises ``SettingsError`` with a line for each problem.
ReadPolicy = Callable[[str, str], PolicySource]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a policy file gave a turn when it was submitted. It stays the turn's own, whatever becomes of the file.

    Attributes:
        hash: names the policy in the store. shadow, caps, lenient: as in ``Given``, for the turn's rules.
        filled: fields of the request that the policy filled in, because the request did not name them.
    """

    hash: str
    shadow: tuple[str, ...] = ()
    caps: dict[str, int] = field(default_factory=dict)
    lenient: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Applied:
        """Read what ``dataclasses.asdict`` made; unknown fields are left alone."""
        return cls(
            hash=str(data["hash"]),
            shadow=tuple(data.get("shadow", ())),
            caps=dict(data.get("caps", {})),
            lenient=tuple(data.get("lenient", ())),
            filled=tuple(data.get("filled", ())),
        )
