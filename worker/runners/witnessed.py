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

from api_client.contract.completion import Completion, ErrorKind, Fault, Verdict, Why
from worker.runners.answer_words import MOST, digests_in, digests_of
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


#: Ends behind which nothing is missing of what the model wrote.
WENT_ON = frozenset({CallEnd.WELL, CallEnd.TOOL})


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
        repeated: a later call asked the same again, or had the model go on. digests: of the text of a call that ended
            badly or offered no tools (``answer_words``).
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
    repeated: bool = False
    digests: tuple[str, ...] = ()

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
class ObservedCalls:
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
        return self.loop[-1] if self.loop else None

    @property
    def loop(self) -> Sequence[Call]:
        """The calls that offer tools; all where none does."""
        return [call for call in self.calls if call.tools] or self.calls

    def broken(self, answer: str, *, every: bool) -> Call | None:
        """Return a call that ended badly, that nothing repeated, and whose text is in the answer; None without one.

        ``every``: nor may there be one without any text, whose part is then missing in the answer.
        """
        for call in self.calls:
            if call.end in WENT_ON or call.repeated or not (call.digests or every):
                continue
            # A phrase in common, such as with a draft, is not its text.
            if not call.digests or 4 * len(digests_in(call.digests, answer)) >= len(call.digests):
                return call
        return None

    def is_aside(self, text: str) -> bool:
        """Return whether a text is that of a call beside an agent's loop, which offered no tools."""
        own = digests_of(text, cut=False)
        asides = [call.digests for call in self.calls if call.digests and not call.tools and call.end in WENT_ON]
        return any(own == each or (len(each) == MOST and digests_in(each, text) == {*each}) for each in asides)

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
            "decided": replace(decided, digests=()).to_dict(),
            "last": [replace(call, digests=()).to_dict() for call in self.calls[-MOST_RECORDED:]],
        }


def objection(witnessed: ObservedCalls, *, ends_by_tool: bool = False) -> str:
    """Say why an end must not count as complete by the run's calls; empty where nothing speaks against it.

    A run of which no call was seen is not certifiable: nothing speaks against it, and ``to_dict`` says so.
    ``ends_by_tool``: this agent gives its answer by calling a tool, as with structured output.
    """
    call = witnessed.deciding
    if call is None or call.end is CallEnd.WELL or (ends_by_tool and call.end is CallEnd.TOOL):
        return ""
    return _problem_of(call, "its last model call")


def _problem_of(call: Call, whose: str) -> str:
    said = f" ({call.word})" if call.word else ""
    status = f"HTTP {call.status}" if call.status >= 300 else "an error in its answer"
    return {
        CallEnd.TOOL: f"{whose} asked for a tool, and no other call followed{said}",
        CallEnd.LIMIT: f"the model's output was too long{said}",
        CallEnd.REFUSED: f"the model refused{said}",
        CallEnd.PAUSED: f"the provider paused {whose}{said}",
        CallEnd.CUT: f"{whose} was cut off{said}",
        CallEnd.ERROR: f"{whose} failed: {status}{said}",
        CallEnd.UNKNOWN: f"nobody knows how {whose} ended{said}",
    }[call.end]


def weigh(
    completion: Completion,
    witnessed: ObservedCalls | None,
    *,
    answer: str = "",
    every: bool = False,
    ends_by_tool: bool = False,
    required: bool = False,
) -> Completion:
    """The verdict of an agent's own evidence, with what the door saw; None where the run had no door.

    ``complete`` stays only where the deciding call ended well, and of the others each whose text is in the ``answer``
    (``ObservedCalls.broken``, also for ``every``). An end that broke off, or said nothing, gets the kind
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
    if not problem and completion.verdict is Verdict.COMPLETE and (broken := witnessed.broken(answer, every=every)):
        call, problem = broken, _problem_of(broken, "a model call for a part of its answer")
    if not problem:
        return completion
    if completion.verdict is not Verdict.COMPLETE:
        return _ruled(replace(completion, reason=f"{completion.reason}; {problem}"), call)
    evidence = {**completion.evidence, "overruled": completion.verdict.value}
    return _ruled(replace(completion, reason=f"the provider says otherwise: {problem}", evidence=evidence), call)


def explained(completion: Completion, witnessed: ObservedCalls | None) -> Completion:
    """The verdict over a run that was stopped; where its model calls had failed, the last of them says why."""
    ended = [call for call in witnessed.loop if call.end is not CallEnd.CUT] if witnessed else []
    if not ended or ended[-1].end not in {CallEnd.ERROR, CallEnd.LIMIT, CallEnd.REFUSED}:
        return completion
    problem = _problem_of(ended[-1], "its last model call")
    return _ruled(replace(completion, why=None, reason=f"{completion.reason}; {problem}"), ended[-1])


def _ruled(completion: Completion, call: Call | None) -> Completion:
    """The completion as the deciding call has it."""
    match call.end if call else CallEnd.UNKNOWN:
        case CallEnd.LIMIT:
            long = Fault.CONTEXT_LENGTH if call and TOO_LONG.search(call.word) else None
            return replace(completion, verdict=Verdict.ERROR, kind=ErrorKind.LIMIT, why=None, fault=long)
        case CallEnd.REFUSED:
            return replace(completion, verdict=Verdict.REFUSED, kind=None, why=Why.REFUSED)
        case CallEnd.ERROR if call:
            status = call.status if call.status >= 300 else 0
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
