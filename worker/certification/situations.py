"""The situations of the kit: what a service does, and what becomes of a process, whatever the agent is. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from worker.certification.services import LAST_WORDS, StubReply

#: ``whole``: the agent can finish; its end must count. ``broken``: it cannot; no end may count. ``open``: it may
#: recover or not; an end counts only with the whole answer.
Truth = Literal["whole", "broken", "open"]
#: Our program around the agent's (``around.py``).
Around = Literal["", "junk", "exit-zero", "exit-one", "close-stdout", "lose-last-line", "forks", "small-files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One thing that happens to an agent.

    Attributes:
        name: what happens. truth: what an honest verdict may be.
        replies: what the service answers; the last reply answers all further calls.
        signal: sent to the agent's first process behind the first piece. stops: we ask it to stop then.
        around: the program around it. idle, seconds: the longest silence, and the run's time; 0: as usual.
        unreachable: no service is there. unknown_session: it is to continue a session that is not there.
    """

    name: str
    truth: Truth
    replies: tuple[StubReply, ...] = ()
    signal: int = 0
    stops: bool = False
    around: Around = ""
    idle: float = 0.0
    seconds: float = 0.0
    unreachable: bool = False
    unknown_session: bool = False


_PIECES = ("Here is the answer. ", *(f"Sentence {n} of six. " for n in range(1, 7)), LAST_WORDS)
#: No two alike: Gemini ends an answer that repeats itself.
_LINES = [f"Line {n} of the text, about {n * 7919 % 1000}.\n" for n in range(1500)]
_GOOD = StubReply(pieces=_PIECES)
#: Answers of which the end is missing.
_PART = _PIECES[:4]
_SLOW = StubReply(pieces=("Here is the answer. ", *[f"Sentence {n} of many. " for n in range(1, 200)]), delay=0.3)
_UNKNOWN_TOOL = StubReply(pieces=("I look. ",), tool=("no_such_tool", '{"path": "nowhere"}'))
_MALFORMED = StubReply(pieces=("I look. ",), tool=("no_such_tool", '{"path": "now'))


def _after(first: StubReply) -> tuple[StubReply, ...]:
    return first, _GOOD


def _at_signal(number: signal.Signals) -> Situation:
    return Situation(name=f"{number.name} in mid-answer", truth="broken", replies=(_SLOW,), signal=number)


_SERVICE = [
    Situation(name="normal answer", truth="whole", replies=(_GOOD,)),
    Situation(name="slow answer", truth="whole", replies=(StubReply(pieces=_PIECES, delay=0.4),)),
    Situation(name="long answer", truth="whole", replies=(StubReply(pieces=(*_LINES, LAST_WORDS)),)),
    Situation(name="unknown tool, then answer", truth="open", replies=_after(_UNKNOWN_TOOL)),
    Situation(name="malformed tool call, then answer", truth="open", replies=_after(_MALFORMED)),
    Situation(name="malformed tool calls only", truth="broken", replies=(_MALFORMED,), seconds=25.0),
    Situation(name="output limit", truth="broken", replies=(StubReply(pieces=_PART, end="limit"),)),
    Situation(name="output limit, then answer", truth="open", replies=_after(StubReply(pieces=_PART, end="limit"))),
    Situation(name="refusal", truth="broken", replies=(StubReply(pieces=("I will not. ",), end="refusal"),)),
    Situation(name="content filter", truth="broken", replies=(StubReply(pieces=_PART, end="filter"),)),
    Situation(name="empty answer", truth="broken", replies=(StubReply(pieces=("",)),)),
    Situation(name="unknown stop reason", truth="broken", replies=(StubReply(pieces=_PART, end="odd"),)),
    Situation(name="stream ends without a reason", truth="broken", replies=(StubReply(pieces=_PART, end="none"),)),
    Situation(name="cut before the answer", truth="broken", replies=(StubReply(pieces=_PART, cut="before"),)),
    Situation(name="cut after the first piece", truth="broken", replies=(StubReply(pieces=_PART, cut="first"),)),
    Situation(name="cut after the text", truth="broken", replies=(StubReply(pieces=_PART, cut="end"),)),
    Situation(name="cut once, then answer", truth="open", replies=_after(StubReply(pieces=_PART, cut="first"))),
    Situation(name="cut in a tool call", truth="broken", replies=(StubReply(tool=_UNKNOWN_TOOL.tool, cut="tool"),)),
    Situation(
        name="service dies in mid-answer", truth="broken", replies=(StubReply(pieces=_PART, cut="first", dies=True),)
    ),
    Situation(name="error in mid-answer", truth="broken", replies=(StubReply(pieces=_PART, fails=True),)),
    Situation(
        name="error in mid-answer, then answer", truth="open", replies=_after(StubReply(pieces=_PART, fails=True))
    ),
    *(
        Situation(name=f"HTTP {status}", truth="broken", replies=(StubReply(status=status),))
        for status in (400, 401, 403, 404, 413, 429, 500, 503, 529)
    ),
    Situation(name="HTTP 429, wait 90 s", truth="broken", replies=(StubReply(status=429, retry_after="90"),)),
    Situation(name="HTTP 429 once, then answer", truth="open", replies=_after(StubReply(status=429, retry_after="1"))),
    Situation(name="HTTP 500 once, then answer", truth="open", replies=_after(StubReply(status=500))),
    Situation(name="tool call, then HTTP 400", truth="broken", replies=(_UNKNOWN_TOOL, StubReply(status=400))),
    Situation(
        name="tool call, then cut", truth="broken", replies=(_UNKNOWN_TOOL, StubReply(pieces=_PART, cut="first"))
    ),
    Situation(
        name="tool call, then output limit",
        truth="broken",
        replies=(_UNKNOWN_TOOL, StubReply(pieces=_PART, end="limit")),
    ),
    Situation(
        name="tool call, then nothing said",
        truth="broken",
        replies=(StubReply(tool=_UNKNOWN_TOOL.tool), StubReply(pieces=("",))),
    ),
    Situation(name="HTML instead of an answer", truth="broken", replies=(StubReply(body=b"<html>Sign in</html>"),)),
    Situation(name="an empty body", truth="broken", replies=(StubReply(body=b""),)),
    Situation(name="service hangs before the answer", truth="broken", replies=(StubReply(hangs="before"),), idle=8.0),
    Situation(
        name="service hangs in mid-answer", truth="broken", replies=(StubReply(pieces=_PART, hangs="first"),), idle=8.0
    ),
    Situation(name="no service", truth="broken", replies=(_GOOD,), unreachable=True),
]
_PROCESS = [
    *map(_at_signal, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)),
    Situation(name="frozen in mid-answer", truth="broken", replies=(_SLOW,), signal=signal.SIGSTOP, idle=8.0),
    Situation(name="we stop it in mid-answer", truth="broken", replies=(_SLOW,), stops=True),
    Situation(name="its time is up", truth="broken", replies=(_SLOW,), seconds=10.0),
    Situation(
        name="killed, exit code 0 forced", truth="broken", replies=(_SLOW,), signal=signal.SIGTERM, around="exit-zero"
    ),
    Situation(
        name="HTTP 500, exit code 0 forced", truth="broken", replies=(StubReply(status=500),), around="exit-zero"
    ),
    Situation(
        name="output limit, exit code 0 forced",
        truth="broken",
        replies=(StubReply(pieces=_PART, end="limit"),),
        around="exit-zero",
    ),
    Situation(name="normal answer, exit code 1 forced", truth="open", replies=(_GOOD,), around="exit-one"),
    Situation(name="junk lines on standard output", truth="open", replies=(_GOOD,), around="junk"),
    Situation(name="standard output closed early", truth="open", replies=(_GOOD,), around="close-stdout"),
    Situation(name="the last line of its output is lost", truth="open", replies=(_GOOD,), around="lose-last-line"),
    Situation(name="it leaves a process behind", truth="whole", replies=(_GOOD,), around="forks"),
    Situation(name="no file of it may grow", truth="open", replies=(_GOOD,), around="small-files"),
    Situation(name="unknown session", truth="open", replies=(_GOOD,), unknown_session=True),
]
SITUATIONS = (*_SERVICE, *_PROCESS)
