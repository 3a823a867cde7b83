"""The situations of the certification kit: what happens to an agent, and which verdicts would be right."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Any, Literal

from worker.plugins.certification.stub_reply import LAST_WORDS, PART, Need, StubReply
from worker.plugins.certification.tool_server import KINDS

#: ``whole``: the agent can finish, so its end must count. ``broken``: it cannot, so no end may count. ``open``: it may
#: recover; an end counts only with the whole answer.
Truth = Literal["whole", "broken", "open"]
#: Kinds of our wrapper around the agent's program (``wrapper.py``).
Around = Literal["", "junk", "exit-zero", "exit-one", "close-stdout", "lose-last-line", "forks", "small-files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A test situation for an agent, such as a broken connection, with the verdict that would be right.

    Attributes:
        truth: which verdict is honest.
        replies: the service's replies; the last one repeats.
        signal: signal for the agent's processes after the first piece. stops: we ask the agent to stop at that point.
        around: the wrapper's kind.
        idle, seconds: longest silence and run time; 0 for the usual ones.
        needs: what the agent must do for the situation to apply.
        server: how the run's MCP server misbehaves (``tool_server.KINDS``); empty for none.
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
    needs: Need | None = None
    server: str = ""


_PIECES = ("Here is the answer. ", *(f"Sentence {n} of six. " for n in range(1, 7)), LAST_WORDS)
#: All different, because Gemini stops answers that repeat themselves.
_LINES = [f"Line {n} of the text, about {n * 7919 % 1000}.\n" for n in range(1500)]
_GOOD = StubReply(pieces=_PIECES)
_SLOW = StubReply(pieces=("Here is the answer. ", *[f"Sentence {n} of many. " for n in range(1, 200)]), delay=0.3)
_UNKNOWN_TOOL = StubReply(pieces=("I look. ",), tool=("no_such_tool", '{"path": "nowhere"}'))
_MALFORMED = StubReply(pieces=("I look. ",), tool=("no_such_tool", '{"path": "now'))


_LOOKS = replace(_UNKNOWN_TOOL, if_tools=True)
#: Input tokens of one call after the other, until an agent summarises: a little less than usual context windows.
_FILLED_CONTEXTS = (90_000, 120_000, 160_000, 190_000, 255_000, 950_000)


def _partial_reply(**how: Any) -> StubReply:
    return StubReply(pieces=_PIECES[:4], **how)


def _fill_context(tokens: int) -> StubReply:
    return replace(_LOOKS, tool=("no_such_tool", f'{{"path": "{tokens}"}}'), tokens=tokens)


def _whole_situation(name: str, *replies: StubReply, **more: Any) -> Situation:
    return Situation(name=name, truth="whole", replies=replies, **more)


def _broken_situation(name: str, *replies: StubReply, **more: Any) -> Situation:
    return Situation(name=name, truth="broken", replies=replies, **more)


def _open_situation(name: str, *replies: StubReply, **more: Any) -> Situation:
    return Situation(name=name, truth="open", replies=replies, **more)


_SERVICE = [
    _whole_situation("normal answer", _GOOD),
    _whole_situation("slow answer", StubReply(pieces=_PIECES, delay=0.4)),
    _whole_situation("long answer", StubReply(pieces=(*_LINES, LAST_WORDS))),
    _open_situation("unknown tool, then answer", _UNKNOWN_TOOL, _GOOD),
    _open_situation("malformed tool call, then answer", _MALFORMED, _GOOD),
    _broken_situation("malformed tool calls only", _MALFORMED, seconds=25.0),
    _broken_situation("output limit", _partial_reply(end="limit")),
    _open_situation("output limit, then answer", _partial_reply(end="limit"), _GOOD),
    _broken_situation("refusal", StubReply(pieces=("I will not. ",), end="refusal")),
    _broken_situation("content filter", _partial_reply(end="filter")),
    _broken_situation("empty answer", StubReply(pieces=("",))),
    _broken_situation("unknown stop reason", _partial_reply(end="odd")),
    _broken_situation("stream ends without a reason", _partial_reply(end="none")),
    _broken_situation("cut before the answer", _partial_reply(cut="before")),
    _broken_situation("cut after the first piece", _partial_reply(cut="first")),
    _broken_situation("cut after the text", _partial_reply(cut="end")),
    _open_situation("cut once, then answer", _partial_reply(cut="first"), _GOOD),
    _broken_situation("cut in a tool call", StubReply(tool=_UNKNOWN_TOOL.tool, cut="tool")),
    _broken_situation("service dies in mid-answer", _partial_reply(cut="first", dies=True)),
    _broken_situation("error in mid-answer", _partial_reply(fails=True)),
    _open_situation("error in mid-answer, then answer", _partial_reply(fails=True), _GOOD),
    *(
        _broken_situation(f"HTTP {status}", StubReply(status=status))
        for status in (400, 401, 403, 404, 413, 429, 500, 503, 529)
    ),
    _broken_situation("HTTP 429, wait 90 s", StubReply(status=429, retry_after="90")),
    _open_situation("HTTP 429 once, then answer", StubReply(status=429, retry_after="1"), _GOOD),
    _open_situation("HTTP 500 once, then answer", StubReply(status=500), _GOOD),
    _broken_situation("tool call, then HTTP 400", _UNKNOWN_TOOL, StubReply(status=400)),
    _broken_situation("tool call, then cut", _UNKNOWN_TOOL, _partial_reply(cut="first")),
    _broken_situation("tool call, then output limit", _UNKNOWN_TOOL, _partial_reply(end="limit")),
    _broken_situation("tool call, then nothing said", StubReply(tool=_UNKNOWN_TOOL.tool), StubReply(pieces=("",))),
    _broken_situation("HTML instead of an answer", StubReply(body=b"<html>Sign in</html>")),
    _broken_situation("an empty body", StubReply(body=b"")),
    _broken_situation("service hangs before the answer", StubReply(hangs="before"), idle=8.0),
    _broken_situation("service hangs in mid-answer", _partial_reply(hangs="first"), idle=8.0),
    _broken_situation("no service", _GOOD, unreachable=True),
]

#: Answers made by several calls; ``PART`` must not be in them unless a later call repaired it.
_SEVERAL = [
    _open_situation(
        "several calls, one cut", _LOOKS, StubReply(pieces=(PART,), end="limit"), _GOOD, needs="later call"
    ),
    _open_situation(
        "several calls, one filtered", _LOOKS, StubReply(pieces=(PART,), end="filter"), _GOOD, needs="later call"
    ),
    _open_situation(
        "parallel calls, one cut", StubReply(pieces=(PART,), end="limit", waits=True), _GOOD, needs="parallel call"
    ),
    _whole_situation("compacts", *map(_fill_context, _FILLED_CONTEXTS), _GOOD, needs="compaction"),
    _whole_situation("sub-agent fails", StubReply(helper=StubReply(status=400)), _GOOD, needs="sub-agent"),
]


#: The gateway gives the agent an error or a late result, and the agent must go on with it.
_TOOLS = [
    _whole_situation(f"tool server {kind}", StubReply(uses_server=True), _GOOD, needs="server tool", server=kind)
    for kind in KINDS
]

_PROCESS = [
    *(
        _broken_situation(f"{number.name} in mid-answer", _SLOW, signal=number)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
    ),
    _broken_situation("frozen in mid-answer", _SLOW, signal=signal.SIGSTOP, idle=8.0),
    _broken_situation("we stop it in mid-answer", _SLOW, stops=True),
    _broken_situation("its time is up", _SLOW, seconds=10.0),
    _broken_situation("killed, exit code 0 forced", _SLOW, signal=signal.SIGTERM, around="exit-zero"),
    _broken_situation("HTTP 500, exit code 0 forced", StubReply(status=500), around="exit-zero"),
    _broken_situation("output limit, exit code 0 forced", _partial_reply(end="limit"), around="exit-zero"),
    _open_situation("normal answer, exit code 1 forced", _GOOD, around="exit-one"),
    _open_situation("junk lines on standard output", _GOOD, around="junk"),
    _open_situation("standard output closed early", _GOOD, around="close-stdout"),
    _open_situation("the last line of its output is lost", _GOOD, around="lose-last-line"),
    _whole_situation("it leaves a process behind", _GOOD, around="forks"),
    _open_situation("no file of it may grow", _GOOD, around="small-files"),
    _open_situation("unknown session", _GOOD, unknown_session=True),
]
SITUATIONS = (*_SERVICE, *_SEVERAL, *_TOOLS, *_PROCESS)
