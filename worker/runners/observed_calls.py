"""The model calls of a run as the model proxy saw them, and whether they confirm a complete run.

Agents cannot change what the provider reports about a call. No prompts, answers or keys are stored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from api_client.contract.completion import Completion, ErrorKind, IncompleteReason, ProviderFault, Verdict
from worker.runners.pricing import TOKENS, Tokens, sum_tokens
from worker.runners.service_errors import BUSY, TOO_LONG, classify_fault, is_temporary
from worker.runners.word_digests import MOST, digest_sequences, find_digests

Api = Literal["messages", "responses", "chat", "gemini"]

#: Calls kept per run, and latest calls stored with the attempt.
MOST_CALLS, MOST_RECORDED = 1000, 20
_WORD = re.compile(r"[^A-Za-z0-9_.:-]+")


class ModelCallEnd(StrEnum):
    """The end of a model call, as reported by the provider of the model."""

    #: The model finished its text.
    WELL = "well"
    #: The model called a tool; the agent continues.
    TOOL = "tool"
    #: The output or the context reached its limit.
    LIMIT = "limit"
    #: The model refused, or a filter stopped it.
    REFUSED = "refused"
    #: The provider paused the call; the agent must ask to continue.
    PAUSED = "paused"
    #: The connection closed before the provider reported an end.
    CUT = "cut"
    #: An HTTP error, or an error inside the response.
    ERROR = "error"
    #: An unknown word, or an unreadable response.
    UNKNOWN = "unknown"


#: Ends after which the model's text is complete.
WENT_ON = frozenset({ModelCallEnd.WELL, ModelCallEnd.TOOL})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A call that an agent made to a model, as observed by the model proxy.

    Attributes:
        status: HTTP status, or the status named in an error; 0 without a response.
        word: the provider's word for the end, such as ``max_tokens``.
        tools: True if the request offered tools: a call of an agent's loop, not for a title or summary.
        started, ended: seconds since the epoch.
        repeated: True if a later call repeated or continued this call.
        digests: digests of the text, if the call failed or offered no tools.
    """

    api: Api
    model: str = ""
    status: int = 0
    end: ModelCallEnd = ModelCallEnd.CUT
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
    def counted_tokens(self) -> Tokens:
        return Tokens(**{name: getattr(self, name) for name in TOKENS})

    def to_dict(self) -> dict[str, Any]:
        """Return the call as JSON-ready data, without empty fields."""
        return {name: value for name, value in asdict(self).items() if value} | {"end": self.end.value}


def clean_word(said: object) -> str:
    """Return a provider's word with unusual characters removed, at most 64 characters long."""
    return _WORD.sub(" ", said if isinstance(said, str) else "").strip()[:64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCalls:
    """The model calls that the model proxy observed during one run, in order of their start.

    ``calls`` has at most the last ``MOST_CALLS``; ``sums`` the tokens of the earlier calls, by model.
    """

    calls: Sequence[ModelCall] = ()
    left_out: int = 0
    sums: Mapping[str, Tokens] = field(default_factory=dict)

    @property
    def counted_tokens(self) -> dict[str, Tokens]:
        return sum_tokens([(call.model, call.counted_tokens) for call in self.calls], self.sums)

    @property
    def deciding_call(self) -> ModelCall | None:
        """Return the call that decides how the run ended: the last call with tools, or else the last call."""
        return self.loop_calls[-1] if self.loop_calls else None

    @property
    def loop_calls(self) -> Sequence[ModelCall]:
        """Return the calls that offered tools to the model, or all calls if none did."""
        return [call for call in self.calls if call.tools] or self.calls

    def find_broken(self, answer: str, *, every: bool) -> ModelCall | None:
        """Return a failed model call that was not repeated and whose text is in the answer, or None.

        ``every`` also reports failed calls without text, because their part is missing from the answer.
        """
        for call in self.calls:
            if call.end in WENT_ON or call.repeated or not (call.digests or every):
                continue
            # A few common phrases, as with a draft, do not make the text part of the answer.
            if not call.digests or 4 * len(find_digests(call.digests, answer)) >= len(call.digests):
                return call
        return None

    def is_aside(self, text: str) -> bool:
        """Return True if a text came from a call without tools, as agents make for titles and summaries."""
        own = digest_sequences(text, cut=False)
        asides = [call.digests for call in self.calls if call.digests and not call.tools and call.end in WENT_ON]
        return any(own == each or (len(each) == MOST and find_digests(each, text) == {*each}) for each in asides)

    def to_dict(self) -> dict[str, Any]:
        """Return a summary of the calls as JSON-ready data, for storing with the attempt."""
        decided = self.deciding_call
        if decided is None:
            summary = "the model proxy saw no model call: this end is not certifiable"
            return {"summary": summary, "calls": 0, "certifiable": False}
        said, total = f" ({decided.word})" if decided.word else "", sum(self.counted_tokens.values(), Tokens())
        return {
            "summary": f"{len(self.calls) + self.left_out} model calls; the one that decides: {decided.end}{said}",
            "calls": len(self.calls) + self.left_out,
            "certifiable": True,
            "ends": dict(Counter(call.end.value for call in self.calls)),
            **{name: getattr(total, name) for name in TOKENS},
            "decided": replace(decided, digests=()).to_dict(),
            "last": [replace(call, digests=()).to_dict() for call in self.calls[-MOST_RECORDED:]],
        }


def find_objection(observed: ObservedCalls) -> str:
    """Return why the observed calls contradict a complete run, or an empty string.

    Runs without observed calls are not contradicted.
    """
    call = observed.deciding_call
    if call is None or call.end is ModelCallEnd.WELL:
        return ""
    return _describe_end(call, "its last model call")


def _describe_end(call: ModelCall, whose: str) -> str:
    said = f" ({call.word})" if call.word else ""
    status = f"HTTP {call.status}" if call.status >= 300 else "an error in its answer"
    return {
        ModelCallEnd.TOOL: f"{whose} asked for a tool, and no other call followed{said}",
        ModelCallEnd.LIMIT: f"the model's output was too long{said}",
        ModelCallEnd.REFUSED: f"the model refused{said}",
        ModelCallEnd.PAUSED: f"the provider paused {whose}{said}",
        ModelCallEnd.CUT: f"{whose} was cut off{said}",
        ModelCallEnd.ERROR: f"{whose} failed: {status}{said}",
        ModelCallEnd.UNKNOWN: f"nobody knows how {whose} ended{said}",
    }[call.end]


def check_observed_calls(
    completion: Completion,
    observed: ObservedCalls | None,
    *,
    answer: str = "",
    every: bool = False,
    required: bool = False,
) -> Completion:
    """Return a run's verdict, corrected if the observed model calls contradict it.

    ``complete`` needs a deciding call that ended well, and no failed call whose text is in ``answer``. A broken-off or
    silent run gets the error that the provider reported. ``required``: ``complete`` also needs at least one call.
    """
    call = observed.deciding_call if observed else None
    if completion.kind is ErrorKind.TRANSIENT and call and call.end is ModelCallEnd.ERROR:
        ruled, wait = _apply_call_end(completion, call), max(completion.retry_after, call.retry_after)
        return (
            ruled if ruled.out_of_credit else replace(completion, retry_after=wait, busy=completion.busy or ruled.busy)
        )
    if observed is None or not (
        completion.verdict is Verdict.COMPLETE
        or completion.why in {IncompleteReason.BROKE_OFF, IncompleteReason.SILENT, IncompleteReason.IDLE}
    ):
        return completion
    problem = find_objection(observed)
    if call is None and required and completion.verdict is Verdict.COMPLETE:
        problem = "the model proxy saw none of its model calls"
    if not problem and completion.verdict is Verdict.COMPLETE and (broken := observed.find_broken(answer, every=every)):
        call, problem = broken, _describe_end(broken, "a model call for a part of its answer")
    if not problem:
        return completion
    if completion.verdict is not Verdict.COMPLETE:
        return _apply_call_end(replace(completion, reason=f"{completion.reason}; {problem}"), call)
    evidence = {**completion.evidence, "overruled": completion.verdict.value}
    return _apply_call_end(
        replace(completion, reason=f"the provider says otherwise: {problem}", evidence=evidence), call
    )


def explain_stop(completion: Completion, observed: ObservedCalls | None) -> Completion:
    """Return the verdict on a stopped run, including the failure of its last model call, if any."""
    ended = [call for call in observed.loop_calls if call.end is not ModelCallEnd.CUT] if observed else []
    if not ended or ended[-1].end not in {ModelCallEnd.ERROR, ModelCallEnd.LIMIT, ModelCallEnd.REFUSED}:
        return completion
    problem = _describe_end(ended[-1], "its last model call")
    return _apply_call_end(replace(completion, why=None, reason=f"{completion.reason}; {problem}"), ended[-1])


def _apply_call_end(completion: Completion, call: ModelCall | None) -> Completion:
    match call.end if call else ModelCallEnd.UNKNOWN:
        case ModelCallEnd.LIMIT:
            long = ProviderFault.CONTEXT_LENGTH if call and TOO_LONG.search(call.word) else None
            return replace(completion, verdict=Verdict.ERROR, kind=ErrorKind.LIMIT, why=None, fault=long)
        case ModelCallEnd.REFUSED:
            return replace(completion, verdict=Verdict.REFUSED, kind=None, why=IncompleteReason.REFUSED)
        case ModelCallEnd.ERROR if call:
            status = call.status if call.status >= 300 else 0
            passing, fault = is_temporary(status, call.word), classify_fault(status, call.word)
            return replace(
                completion,
                verdict=Verdict.ERROR,
                kind=ErrorKind.TRANSIENT if passing else ErrorKind.PERMANENT,
                why=None,
                retry_after=call.retry_after if passing else 0.0,
                busy=passing and call.status in BUSY,
                fault=ProviderFault(fault) if fault else None,
            )
        case _:
            return replace(
                completion, verdict=Verdict.INCOMPLETE, kind=None, why=completion.why or IncompleteReason.BROKE_OFF
            )
