"""The 26 endings of the real CLI, and what each of them is in truth (docs/claude-cli.md)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.claude.running import Agent, Ran, at_first_output
from tests.claude.stub import Reply, calls, fails, says

#: An answer that takes its time: whoever wants to break in can.
SLOW = says("Das ", "ist ", *["noch "] * 20, "nicht alles.", delay=0.3)
BASH = {"claude_tools": ("default",), "claude_allowed_tools": ("Bash",)}
BACKGROUND = 'unset CLAUDE_CODE_DISABLE_BACKGROUND_TASKS\nexec "$CLI" "$@"'
SPOIL = 'for a; do case $a in *helix-settings.json) echo "{" >"$a";; esac; done\nexec "$CLI" "$@"'
LOSE_STDOUT = 'set -o pipefail\n"$CLI" "$@" | head -c 100'
UNKNOWN = 'exec "$CLI" --resume 00000000-0000-4000-8000-000000000000 --fork-session "$@"'


@dataclass(frozen=True, kw_only=True)
class Ending:
    """One way a run can end. ``truth`` is what the verdict must be: a verdict, or the kind of an error."""

    name: str
    truth: str
    replies: tuple[Reply, ...]
    wrapper: str = ""
    settings: dict[str, Any] | None = None
    when: Callable[[], Any] | None = None
    seconds: float = 0.0
    idle: float = 30.0

    def run(self, agent: Agent) -> Ran:
        """Bring it about."""
        agent.stub.replies = list(self.replies)
        agent.settings |= self.settings or {}
        if self.wrapper:
            agent = agent.wrapped(self.wrapper)
        limits: dict[str, Any] = {"idle_seconds": self.idle}
        if self.seconds:
            limits["deadline"] = time.monotonic() + self.seconds
        return agent.run(when=self.when() if self.when else None, **limits)


def mistakes(ending: Ending, ran: Ran) -> list[str]:
    """What is not as it must be: the verdict, what a reader saw, and whether the conversation can go on."""
    found = [] if ran.verdict == ending.truth else [f"verdict {ran.verdict}, not {ending.truth}: {ran.reason}"]
    if ran.verdict == "complete":
        if not ran.result.agent_session:
            found.append("no agent session to continue from")
        if not ran.evidence["stdout_lost"] and ran.shown != ran.result.text:
            found.append(f"a reader saw {ran.shown!r}, not {ran.result.text!r}")
    return found


def _background(seconds: int) -> Reply:
    return calls("Bash", command=f"sleep {seconds}", description="wait", run_in_background=True)


def _interrupted(number: signal.Signals) -> Callable[[], Any]:
    return lambda: at_first_output(number)


_WRITE = calls("Write", file_path="output/notes.md", content="x")
_OK = says("Guten ", "Tag.\n\n<!-- STEP: done -->")

ENDINGS = [
    Ending(name="normal answer", truth="complete", replies=(_OK,)),
    Ending(name="tool use", truth="complete", replies=(_WRITE, _OK)),
    Ending(
        name="a tool call changes the folder",
        truth="complete",
        replies=(calls("Bash", command="mkdir -p sub && cd sub", description="go"), _OK),
        settings=BASH,
    ),
    Ending(
        name="background task, two results",
        truth="complete",
        replies=(_background(1), says("Ich warte."), _OK),
        wrapper=BACKGROUND,
        settings=BASH,
    ),
    Ending(name="reader of stdout closed", truth="complete", replies=(_OK,), wrapper=LOSE_STDOUT),
    Ending(
        name="max_tokens, then continued",
        truth="complete",
        replies=(says("erster Teil, ", stop_reason="max_tokens"), says("zweiter Teil")),
    ),
    Ending(
        name="stream cut, then recovered",
        truth="complete",
        replies=(says("a ", "b ", "c ", delay=0.3, cut_after=2), says("a ", "b ", "c ")),
    ),
    Ending(name="invalid settings file", truth="config", replies=(_OK,), wrapper=SPOIL),
    Ending(name="--bare", truth="config", replies=(_OK,), wrapper='exec "$CLI" --bare "$@"'),
    Ending(name="HTTP 400", truth="permanent", replies=(fails(400),)),
    Ending(name="HTTP 401", truth="permanent", replies=(fails(401),)),
    Ending(name="HTTP 429", truth="transient", replies=(fails(429),)),
    Ending(name="HTTP 500", truth="transient", replies=(fails(500),)),
    Ending(name="HTTP 529", truth="transient", replies=(fails(529),)),
    Ending(name="tool call, then HTTP 400", truth="permanent", replies=(_WRITE, fails(400))),
    Ending(name="max turns", truth="limit", replies=(_WRITE, _OK), wrapper='exec "$CLI" --max-turns 1 "$@"'),
    Ending(name="budget", truth="limit", replies=(_WRITE, _OK), wrapper='exec "$CLI" --max-budget-usd 0.00001 "$@"'),
    Ending(name="empty answer", truth="incomplete", replies=(says(""),)),
    Ending(name="SIGTERM in mid-answer", truth="incomplete", replies=(SLOW,), when=_interrupted(signal.SIGTERM)),
    Ending(name="SIGINT in mid-answer", truth="incomplete", replies=(SLOW,), when=_interrupted(signal.SIGINT)),
    Ending(name="SIGHUP in mid-answer", truth="incomplete", replies=(SLOW,), when=_interrupted(signal.SIGHUP)),
    Ending(name="SIGKILL in mid-answer", truth="incomplete", replies=(SLOW,), when=_interrupted(signal.SIGKILL)),
    Ending(
        name="SIGTERM, background task runs",
        truth="incomplete",
        replies=(_background(30), says("Ich warte.")),
        wrapper=BACKGROUND,
        settings=BASH,
        when=lambda: at_first_output(signal.SIGTERM, 1.0),
    ),
    Ending(name="deadline", truth="incomplete", replies=(SLOW,), seconds=3.0),
    Ending(name="service hangs in mid-stream", truth="incomplete", replies=(says("a ", "b", hang_after=1),), idle=3.0),
    Ending(name="unknown session", truth="session_lost", replies=(_OK,), wrapper=UNKNOWN),
]
