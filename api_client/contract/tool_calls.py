"""Calls of an agent's tools that a policy lets run, denies, or has a person asked about; the question and its answer.

Nothing here knows what one agent calls its tools: a runner reports a call as a name and arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from api_client.contract.call_display import NotShown, shown, visible
from api_client.contract.decision import DecisionKind
from api_client.contract.interruption import MAX_WAIT_SECONDS, Answerer, Interruption

#: The kind of interruption that asks whether a call may run.
TOOL_CALL = "tool_call"
#: Questions that one turn may ask.
MAX_QUESTIONS = 20
#: Of a call that is not shown so much of its tool's name is kept, in characters.
_MOST_NAME = 100


class Reaction(StrEnum):
    """All that can be done with a call."""

    #: It runs, unless the agent's own permissions forbid it.
    RUN = "run"
    #: A person is asked; the call waits, and is denied when nobody answers in time.
    ASK = "ask"
    #: It does not run, and the agent hears why.
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRule:
    """One entry of ``tools``: which calls it is about, and what follows. All of its conditions must hold."""

    tool: str = field(default="*", metadata={"what": "Name of the tool; * fits any characters."})
    do: Reaction = field(default=Reaction.ASK, metadata={"what": "run, ask or deny."})
    arguments: Mapping[str, Any] = field(
        default_factory=dict, metadata={"what": "Argument to the pattern that it matches, such as command: git push*."}
    )
    folder: str = field(
        default="", metadata={"what": "Pattern of a path that the call names, relative to HELIX_ROOT: adr/*."}
    )
    network: bool = field(default=False, metadata={"what": "Only calls that name an address or a network program."})
    models: tuple[str, ...] = field(default=(), metadata={"what": "Models; none named: all."})
    owners: tuple[str, ...] = field(default=(), metadata={"what": "Owners: names of keys; none named: all."})
    who: Answerer = field(default=Answerer.OWNER, metadata={"what": "Who may answer: owner, signed_in or operator."})
    wait_seconds: int = field(default=3_600, metadata={"what": "How long an answer is waited for; then it is no."})

    def __post_init__(self) -> None:
        if not 1 <= self.wait_seconds <= MAX_WAIT_SECONDS:
            raise ValueError(f"wait_seconds must be from 1 to {MAX_WAIT_SECONDS}, not {self.wait_seconds}")
        for name, pattern in self.arguments.items():
            if not isinstance(pattern, str):
                raise ValueError(f"arguments: the pattern of {name!r} must be a text")

    def concerns(self, model: str, owner: str) -> bool:
        """Return whether it is about this model and this owner's turns."""
        wanted = ((self.models, model), (self.owners, owner))
        return all(not names or any(fnmatchcase(value, name) for name in names) for names, value in wanted)

    def to_dict(self) -> dict[str, Any]:
        """Every field but the defaults, JSON-ready."""
        plain = ToolRule()
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        given = {name: value for name, value in data.items() if value != getattr(plain, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A call that waits, as its runner reports it.

    Attributes:
        call: the agent's own id of it; it is never used again.
        digest: of tool and arguments: an answer is about exactly these.
        files: digests of the files that it names, as they were when it was asked about.
        wait_seconds, who: of the rule that has a person asked.
    """

    call: str
    tool: str
    arguments: Mapping[str, Any]
    digest: str
    files: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: int = 3_600
    who: str = Answerer.OWNER

    def interruption(self, secrets: Sequence[str] = ()) -> Interruption:
        """The question about it: the whole call. One that nobody can be shown whole is answered already: no.

        ``secrets``: values that are masked, the longest first.
        """
        refused, tool, arguments = "", "", dict[str, str]()
        try:
            tool, arguments = shown(self.tool, self.arguments, secrets)
        except NotShown as why:
            refused, tool = str(why), visible(self.tool)[:_MOST_NAME]
        asked = ToolQuestion(
            call=self.call, tool=tool, arguments=arguments, digest=self.digest, files=self.files, refused=refused
        )
        return Interruption(
            kind=TOOL_CALL,
            asked=asked.to_dict(),
            reason=TOOL_CALL,
            who=self.who,
            wait_seconds=self.wait_seconds,
            answer=DecisionKind.REJECT.value if refused else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolQuestion:
    """The question about a call.

    Attributes:
        arguments: name to text: all of them, whole, as ``call_display`` writes them.
        files: as in ``WaitingCall``.
        refused: why nobody was asked, and the answer is no; a name of ``messages.toml``.
    """

    call: str
    tool: str
    arguments: Mapping[str, str]
    digest: str
    files: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The question, JSON-ready."""
        found = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != ""}
        return found | {"arguments": dict(self.arguments), "files": dict(self.files)}

    @classmethod
    def of(cls, interruption: Interruption) -> ToolQuestion:
        """Read what an interruption of this kind asks. Raises ``TypeError``: it is of another kind."""
        asked = interruption.asked
        return cls(**{each.name: asked[each.name] for each in fields(cls) if each.name in asked})

    @property
    def text(self) -> str:
        """The whole call in lines. A line that goes on with a value begins with four blanks, as no name does."""
        lines = [f"{name}: {value}".replace("\n", "\n    ") for name, value in self.arguments.items()]
        return "\n".join([self.tool, *lines])

    @property
    def words(self) -> str:
        """The whole call on one line."""
        said = ", ".join(f"{name}: {value}" for name, value in self.arguments.items())
        return f"{self.tool} ({said})".replace("\n", "⟦U+000A⟧") if said else self.tool
