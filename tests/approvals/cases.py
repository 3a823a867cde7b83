"""What an agent tries that nobody allowed: each case is played at the hook of each agent.

A case is a function that plays with a ``Stage`` and returns how often something ran that nobody had allowed. Rows of
``SPELLINGS`` need no function: a command under one rule must be asked about, or denied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.approvals import tricks
from tests.approvals.spellings import PUSHES, REMOVALS
from tests.approvals.stages import AGENTS, RUNS, SHELL, Stage

Rule = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One try.

    Attributes:
        kind: the column of the table. play: returns how many calls ran that nobody allowed.
        rules: with ``SHELL`` for the tool of the agent's shell. agents: those at which it is played.
    """

    kind: str
    name: str
    rules: Sequence[Rule]
    play: Callable[[Stage], int]
    agents: Sequence[str] = AGENTS

    def rules_of(self, agent: str) -> list[dict[str, Any]]:
        """The rules in the agent's words."""
        return [
            {**rule, "tool": SHELL[agent] if rule.get("tool") == "SHELL" else rule.get("tool", "*")}
            for rule in self.rules
        ]


def _ask(command: str) -> Rule:
    return {"tool": "SHELL", "arguments": {"command": command}, "do": "ask"}


def _deny(command: str) -> Rule:
    return {"tool": "SHELL", "arguments": {"command": command}, "do": "deny"}


def _run(command: str) -> Rule:
    return {"tool": "SHELL", "arguments": {"command": command}, "do": "run"}


_ASKED = ("touch", "sh", "bash", "python3", "make", "git", "curl", "cmake")

#: A rule, and commands that it is about, however they are written.
SPELLINGS: Sequence[tuple[Rule, Sequence[str]]] = (
    (_ask("git push*"), PUSHES),
    (_deny("rm *"), REMOVALS),
)


def spellings() -> Iterator[Case]:
    """Yield a case for each spelling."""
    for rule, commands in SPELLINGS:
        for command in commands:
            yield Case("spelling", command, [rule], lambda stage, command=command: int(stage.call(command) == RUNS))


#: The rules of ``tricks``.
_TRICK_RULES = [*(_ask(f"{name} *") for name in _ASKED), _deny("rm *"), _run("echo *")]
_TRICKS = {
    "forged permit": (tricks.forged, AGENTS),
    "timing": (tricks.timing, AGENTS),
    "while it runs": (tricks.beside, ("codex", "acp")),
    "file changed": (tricks.files, AGENTS),
    "calls at once": (tricks.parallel, AGENTS),
    "helper": (tricks.helpers, ("claude", "codex")),
    "display": (tricks.shown, AGENTS),
}


def cases() -> list[Case]:
    """Every case."""
    found = [*spellings()]
    for kind, (made, agents) in _TRICKS.items():
        found += [Case(kind, name, _TRICK_RULES, play, agents) for name, play in made()]
    return found
