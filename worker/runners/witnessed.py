"""The model calls of a run as the door saw them, and whether its end may count as complete by them. Pure.

The provider says how each call ended, and no agent can colour that (docs/agents.md). Never in here: prompts, answers,
keys. A runner's completion gate asks ``weigh`` last, with the ``witnessed`` of its run's ``Ending``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from worker.runners.base import Completion, ErrorKind, Fault, Verdict, Why
from worker.runners.pricing import TOKENS, Tokens, summed
from worker.runners.service_errors import BUSY, TOO_LONG, fault_of, passes

Api = Literal["messages", "responses", "chat", "gemini"]

#: Calls that are kept of a run, and the number of them, the last ones, that is recorded with the attempt.
MOST_CALLS, MOST_RECORDED = 1000, 20
_WORD = re.compile(r"[^A-Za-z0-9_.:-]+")


class CallEnd(StrEnum):
    """The end of a model call, by what its provider said."""

    #: The model had said all it wanted to say.
    WELL = "well"
    #: It called a tool: the agent is to go on.
    TOOL = "tool"
    #: Its output or its context was too long.
    LIMIT = "limit"
    #: The model refused, or a filter stopped it.
    REFUSED = "refused"
    #: The provider paused it; it is to be asked to go on.
    PAUSED = "paused"
    #: The connection ended before the provider had said anything of the end.
    CUT = "cut"
    #: An HTTP status, or an error in the middle of the answer.
    ERROR = "error"
    #: The provider said something that we do not know, or in a form that we cannot read.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call.

    Attributes:
        api: the form it was asked in. model: the model that was asked; empty when the request named none.
        status: the HTTP status, or the one that an error names; 0 when no answer came.
        end: its end. word: the provider's own word for that, such as ``max_tokens``; empty when it said none.
        tools: the request offered tools: it belongs to an agent's loop, not to a title or a summary beside it.
        input_tokens and all other ``TOKENS``: as the provider counted them, 0 when it did not; or ``estimated``.
        started, ended: seconds since the epoch. retry_after: seconds it asked to wait; 0 when it named none.
    """

    api: Api
    model: str = ""
    status: int = 0
    end: CallEnd = CallEnd.CUT
    word: str = ""
    tools: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_hour_tokens: int = 0
    estimated: bool = False
    started: float = 0.0
    ended: float = 0.0
    retry_after: float = 0.0

    @property
    def counted(self) -> Tokens:
        """Return its tokens."""
        return Tokens(**{name: getattr(self, name) for name in TOKENS})

    def to_dict(self) -> dict[str, Any]:
        """As it is recorded: without empty fields."""
        return {name: value for name, value in asdict(self).items() if value} | {"end": self.end.value}


def word_of(said: object) -> str:
    """A provider's word, safe to keep: of any text at most 64 harmless characters."""
    return _WORD.sub(" ", said if isinstance(said, str) else "").strip()[:64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """All model calls of a run that went through its door, in the order in which they began.

    Attributes:
        calls: the calls; of more than ``MOST_CALLS`` the last ones. left_out: how many earlier ones are not in it.
        sums: the tokens of those, by model.
    """

    calls: Sequence[Call] = ()
    left_out: int = 0
    sums: Mapping[str, Tokens] = field(default_factory=dict)

    @property
    def counted(self) -> dict[str, Tokens]:
        """Return the tokens of each model."""
        return summed([(call.model, call.counted) for call in self.calls], self.sums)

    @property
    def deciding(self) -> Call | None:
        """The call that decides on the run's end: the last one to begin; None when there was none.

        Where calls offered tools, the last of those: titles and summaries beside an agent's loop do not count, and a
        sub-agent's last call is followed by one of the agent that had started it.
        """
        loop = [call for call in self.calls if call.tools] or self.calls
        return loop[-1] if loop else None

    @property
    def certifiable(self) -> bool:
        """Return whether the agent went through the door at all."""
        return self.deciding is not None

    def to_dict(self) -> dict[str, Any]:
        """As it is recorded with the attempt."""
        decided = self.deciding
        if decided is None:
            summary = "no model call was seen at the door: this end is not certifiable"
            return {"summary": summary, "calls": 0, "certifiable": False}
        said, total = f" ({decided.word})" if decided.word else "", sum(self.counted.values(), Tokens())
        return {
            "summary": f"{len(self.calls) + self.left_out} model calls; the one that decides: {decided.end}{said}",
            "calls": len(self.calls) + self.left_out,
            "certifiable": True,
            "ends": dict(Counter(call.end.value for call in self.calls)),
            **{name: getattr(total, name) for name in TOKENS},
            "decided": decided.to_dict(),
            "last": [call.to_dict() for call in self.calls[-MOST_RECORDED:]],
        }


def objection(witnessed: Witnessed, *, ends_by_tool: bool = False) -> str:
    """Say why an end must not count as complete by the run's calls; empty where nothing speaks against it.

    A run of which no call was seen is not certifiable: nothing speaks against it, and ``to_dict`` says so.
    ``ends_by_tool``: this agent gives its answer by calling a tool, as with structured output.
    """
    call = witnessed.deciding
    if call is None or call.end is CallEnd.WELL or (ends_by_tool and call.end is CallEnd.TOOL):
        return ""
    said = f" ({call.word})" if call.word else ""
    status = f"HTTP {call.status}" if call.status >= 400 else "an error in its answer"
    return {
        CallEnd.TOOL: f"its last model call asked for a tool, and no other call followed{said}",
        CallEnd.LIMIT: f"the model's output was too long{said}",
        CallEnd.REFUSED: f"the model refused{said}",
        CallEnd.PAUSED: f"the provider paused its last model call{said}",
        CallEnd.CUT: f"its last model call was cut off{said}",
        CallEnd.ERROR: f"its last model call failed: {status}{said}",
        CallEnd.UNKNOWN: f"nobody knows how its last model call ended{said}",
    }[call.end]


def weigh(
    completion: Completion, witnessed: Witnessed | None, *, ends_by_tool: bool = False, required: bool = False
) -> Completion:
    """The verdict of an agent's own evidence, with what the door saw; None where the run had no door.

    ``complete`` stays only where the deciding call ended well. An end that broke off, or said nothing, gets the kind
    that the provider gave it: after a 429 it is transient, after an output limit a limit. All else stays. ``required``:
    without a single call seen, ``complete`` is not believed either. An error that passes waits as long as its service
    asked.
    """
    call = witnessed.deciding if witnessed else None
    if completion.kind is ErrorKind.TRANSIENT and call and call.end is CallEnd.ERROR:
        ruled, wait = _ruled(completion, call), max(completion.retry_after, call.retry_after)
        return ruled if ruled.spent else replace(completion, retry_after=wait, busy=completion.busy or ruled.busy)
    if witnessed is None or not (
        completion.verdict is Verdict.COMPLETE or completion.why in {Why.BROKE_OFF, Why.SILENT, Why.IDLE}
    ):
        return completion
    problem = objection(witnessed, ends_by_tool=ends_by_tool)
    if call is None and required and completion.verdict is Verdict.COMPLETE:
        problem = "no model call of it was seen at the door"
    if not problem:
        return completion
    if completion.verdict is not Verdict.COMPLETE:
        return _ruled(replace(completion, reason=f"{completion.reason}; {problem}"), call)
    evidence = {**completion.evidence, "overruled": completion.verdict.value}
    return _ruled(replace(completion, reason=f"the provider says otherwise: {problem}", evidence=evidence), call)


def _ruled(completion: Completion, call: Call | None) -> Completion:
    """The completion as the deciding call has it."""
    match call.end if call else CallEnd.UNKNOWN:
        case CallEnd.LIMIT:
            long = Fault.CONTEXT_LENGTH if call and TOO_LONG.search(call.word) else None
            return replace(completion, verdict=Verdict.ERROR, kind=ErrorKind.LIMIT, why=None, fault=long)
        case CallEnd.REFUSED:
            return replace(completion, verdict=Verdict.REFUSED, kind=None, why=Why.REFUSED)
        case CallEnd.ERROR if call:
            status = call.status if call.status >= 400 else 0
            passing, fault = passes(status, call.word), fault_of(status, call.word)
            return replace(
                completion,
                verdict=Verdict.ERROR,
                kind=ErrorKind.TRANSIENT if passing else ErrorKind.PERMANENT,
                why=None,
                retry_after=call.retry_after if passing else 0.0,
                busy=passing and call.status in BUSY,
                fault=Fault(fault) if fault else None,
            )
        case _:
            return replace(completion, verdict=Verdict.INCOMPLETE, kind=None, why=completion.why or Why.BROKE_OFF)
