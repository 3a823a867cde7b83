"""Tool calls of agents: policy rules that run or deny them, and questions that ask a person to approve them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from api_client.contract.call_display import CallNotShowable, display_call, escape_invisible
from api_client.contract.decision import DecisionKind
from api_client.contract.interruption import MAX_WAIT_SECONDS, Answerer, Interruption

TOOL_CALL = "tool_call"
MAX_QUESTIONS = 20
#: Characters kept of the tool name of a call that cannot be shown.
_MOST_NAME = 100


class Reaction(StrEnum):
    """The reactions to a tool call that matches a policy rule."""

    #: Run the call, unless the agent's own permissions forbid it.
    RUN = "run"
    #: Ask a person; the call waits, and is denied if nobody answers in time.
    ASK = "ask"
    #: Deny the call and tell the agent why.
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRule:
    """A policy rule that allows or denies matching tool calls, or asks a person about them."""

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

    def matches(self, model: str, owner: str) -> bool:
        wanted = ((self.models, model), (self.owners, owner))
        return all(not names or any(fnmatchcase(value, name) for name in names) for names, value in wanted)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults as a JSON-ready dictionary."""
        plain = ToolRule()
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        given = {name: value for name, value in data.items() if value != getattr(plain, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A tool call that waits for a person's approval.

    Attributes:
        call: the agent's own id of the call, used once.
        digest: of tool and arguments: an answer applies to exactly these.
        files: digests of the files that the call names, as of the question.
    """

    call: str
    tool: str
    arguments: Mapping[str, Any]
    digest: str
    files: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: int = 3_600
    who: str = Answerer.OWNER

    def to_interruption(self, secrets: Sequence[str] = ()) -> Interruption:
        """Build the question that asks a person about the call. A call that cannot be shown safely is refused.

        ``secrets`` has the values to mask, longest first.
        """
        refused, tool, arguments = "", "", dict[str, str]()
        try:
            tool, arguments = display_call(self.tool, self.arguments, secrets)
        except CallNotShowable as why:
            refused, tool = str(why), escape_invisible(self.tool)[:_MOST_NAME]
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
    """The content of a question about a tool call, as shown to a person.

    ``arguments`` are complete, as ``call_display`` writes them; ``refused`` says why the call was refused without
    asking.
    """

    call: str
    tool: str
    arguments: Mapping[str, str]
    digest: str
    files: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        found = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != ""}
        return found | {"arguments": dict(self.arguments), "files": dict(self.files)}

    @classmethod
    def from_interruption(cls, interruption: Interruption) -> ToolQuestion:
        """Create the question from a stored interruption. Raises ``TypeError`` for another kind of interruption."""
        asked = interruption.asked
        return cls(**{each.name: asked[each.name] for each in fields(cls) if each.name in asked})

    @property
    def text(self) -> str:
        """Return the call as text: the tool's name, then each argument on a new line."""
        lines = [f"{name}: {value}".replace("\n", "\n    ") for name, value in self.arguments.items()]
        return "\n".join([self.tool, *lines])

    @property
    def words(self) -> str:
        """Return the call on one line: the tool's name and its arguments."""
        said = ", ".join(f"{name}: {value}" for name, value in self.arguments.items())
        return f"{self.tool} ({said})".replace("\n", "⟦U+000A⟧") if said else self.tool
