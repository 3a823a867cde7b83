"""The endings of the real CLI, and what each of them is in truth (docs/claude-cli.md)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.claude.running import Agent, at_first_output, can_mount, small_disk
from tests.claude.stub import Reply, calls, fails, says
from tests.runs import Ran

#: An answer that takes its time: whoever wants to break in can.
SLOW = says("Das ", "ist ", *["noch "] * 20, "nicht alles.", delay=0.3)
BASH = {"claude_tools": ("default",), "claude_allowed_tools": ("Bash",)}
BACKGROUND = 'unset CLAUDE_CODE_DISABLE_BACKGROUND_TASKS\nexec "$CLI" "$@"'
SPOIL = 'for a; do case $a in *helix-settings.json) echo "{" >"$a";; esac; done\nexec "$CLI" "$@"'
LOSE_STDOUT = 'set -o pipefail\n"$CLI" "$@" | head -c 100'
#: Closes standard output after so many lines that hold something, as a broken pipe does; the CLI itself ends well.
CUT_STDOUT_AT = """
set -o pipefail
"$CLI" "$@" | awk -v most={most} '{{{{ print; fflush() }}}} /{line}/ && ++seen == most {{{{ exit }}}}'
exit ${{{{PIPESTATUS[0]}}}}"""
CUT_STDOUT = CUT_STDOUT_AT.format(line='"content_block_delta"', most="{most}")
#: A small disk of its own for the run's marks and HOME, on which little is left when the CLI starts.
FULL_DISK = 'fallocate -l "$(($(df --output=avail -B1 . | tail -1) - 8192))" filler; exec "$CLI" "$@"'
UNKNOWN = 'exec "$CLI" --resume 00000000-0000-4000-8000-000000000000 --fork-session "$@"'


@dataclass(frozen=True, kw_only=True)
class Ending:
    """One way a run can end.

    Attributes:
        truth: what the verdict must be: a verdict, or the kind of an error. text: the whole answer, where it has one.
        retry_after: how long the service asks to wait at least, in seconds, where the CLI shows it.
        small_disk: its session lies on a disk of 8 MB.
        chosen: replies by a word of what is asked, as ``Stub`` has them.
    """

    name: str
    truth: str
    replies: tuple[Reply, ...]
    wrapper: str = ""
    settings: dict[str, Any] | None = None
    when: Callable[[], Any] | None = None
    seconds: float = 0.0
    idle: float = 30.0
    text: str | None = None
    retry_after: float = 0.0
    small_disk: bool = False
    chosen: dict[str, Reply] | None = None

    def run(self, agent: Agent) -> Ran:
        """Bring it about."""
        agent.stub.replies, agent.stub.chosen = list(self.replies), self.chosen or {}
        agent.settings |= self.settings or {}
        if self.wrapper:
            agent = agent.wrapped(self.wrapper)
        limits: dict[str, Any] = {"idle_seconds": self.idle}
        if self.seconds:
            limits["deadline"] = time.monotonic() + self.seconds
        when = self.when() if self.when else None
        if not self.small_disk:
            return agent.run(when=when, **limits)
        with small_disk(agent.root / "projects"):
            return agent.run(when=when, **limits)

    @property
    def obstacle(self) -> str:
        """Why it cannot be brought about here; empty when it can."""
        if self.small_disk and not can_mount():
            return "a disk of its own needs the right to mount one"
        sandboxed = os.environ.get("HELIX_SANDBOX", "off") != "off"
        return "in a sandbox nobody can spoil its settings" if sandboxed and self.wrapper == SPOIL else ""


def mistakes(ending: Ending, ran: Ran) -> list[str]:
    """What is not as it must be: the verdict, what a reader saw, and whether the conversation can go on."""
    found = [] if ran.verdict == ending.truth else [f"verdict {ran.verdict}, not {ending.truth}: {ran.reason}"]
    if ran.verdict == "complete" and not ran.result.agent_session:
        found.append("no agent session to continue from")
    if ran.shown != ran.result.text:
        found.append(f"a reader saw {ran.shown!r}, not {ran.result.text!r}")
    if ending.text is not None and ran.result.text != ending.text:
        found.append(f"the text is {ran.result.text!r}, not {ending.text!r}")
    if ran.result.completion.retry_after < ending.retry_after:
        found.append(f"asked to wait {ran.result.completion.retry_after} s, not {ending.retry_after}")
    return found


def _background(seconds: int) -> Reply:
    return calls("Bash", command=f"sleep {seconds}", description="wait", run_in_background=True)


def _interrupted(number: signal.Signals) -> Callable[[], Any]:
    return lambda: at_first_output(number)


_WRITE = calls("Write", file_path="output/notes.md", content="x")
_OK = says("Guten ", "Tag.\n\n<!-- STEP: done -->")
_PIECES = [f"Satz {number} von zwanzig.\n" for number in range(1, 21)]
_LOOK = Reply(chunks=("Das ADR ", "in voller Länge."), tool=("Read", {"file_path": "nix"}), stop_reason="tool_use")
_HELPER = Reply(
    chunks=("Ich frage.",),
    tool=("Agent", {"description": "d", "prompt": "HELPERTASK", "subagent_type": "general-purpose"}),
    stop_reason="tool_use",
)
_REFUSES = says("Das ", "mache ich nicht.", stop_reason="refusal")
_TOO_LONG = says("immer ", "weiter ", stop_reason="max_tokens")
#: What a service says to a subscription that is used up until some moment: these tests may take half an hour.
_USED_UP = fails(
    429,
    anthropic_ratelimit_unified_status="rejected",
    anthropic_ratelimit_unified_reset=str(int(time.time()) + 10_800),
    anthropic_ratelimit_unified_representative_claim="five_hour",
)

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
        text="Ich warte.\n\nGuten Tag.\n\n<!-- STEP: done -->",
    ),
    Ending(
        name="it hangs behind its end",
        truth="complete",
        replies=(_OK,),
        wrapper='"$CLI" "$@"\nsleep 600',
        text="Guten Tag.\n\n<!-- STEP: done -->",
    ),
    Ending(
        name="a helper fails",
        truth="complete",
        replies=(_HELPER, _OK),
        chosen={"HELPERTASK": fails(400)},
        settings={"claude_tools": ("default",)},
        text="Ich frage.\n\nGuten Tag.\n\n<!-- STEP: done -->",
    ),
    Ending(
        name="a helper fails, and then the agent",
        truth="permanent",
        replies=(_HELPER, fails(400)),
        chosen={"HELPERTASK": fails(400)},
        settings={"claude_tools": ("default",)},
    ),
    Ending(name="reader of stdout closed", truth="complete", replies=(_OK,), wrapper=LOSE_STDOUT),
    *(
        Ending(
            name=f"stdout cut after {most} of 20 pieces",
            truth="complete",
            replies=(says(*_PIECES),),
            wrapper=CUT_STDOUT.format(most=most),
            text="".join(_PIECES),
        )
        for most in (1, 2, 5, 8, 12, 16, 19, 20)
    ),
    Ending(
        name="max_tokens, then continued",
        truth="complete",
        replies=(says("erster Teil, ", stop_reason="max_tokens"), says("zweiter Teil")),
        text="erster Teil, zweiter Teil",
    ),
    Ending(
        name="stdout lost, max_tokens continued",
        truth="complete",
        replies=(says("erster Teil, ", stop_reason="max_tokens"), says("zweiter Teil")),
        wrapper=LOSE_STDOUT,
        text="erster Teil, zweiter Teil",
    ),
    Ending(
        name="stdout cut in the second part",
        truth="complete",
        replies=(says("eins ", "zwei ", stop_reason="max_tokens"), says("drei ", "vier")),
        wrapper=CUT_STDOUT.format(most=3),
        text="eins zwei drei vier",
    ),
    Ending(
        name="text, tool, text",
        truth="complete",
        replies=(_LOOK, says("fertig")),
        text="Das ADR in voller Länge.\n\nfertig",
    ),
    Ending(
        name="stdout lost, text, tool, text",
        truth="complete",
        replies=(_LOOK, says("fertig")),
        wrapper=LOSE_STDOUT,
        text="Das ADR in voller Länge.\n\nfertig",
    ),
    Ending(
        name="stdout lost, two results",
        truth="complete",
        replies=(_background(1), says("Ich warte."), _OK),
        wrapper=f"unset CLAUDE_CODE_DISABLE_BACKGROUND_TASKS\n{LOSE_STDOUT}",
        settings=BASH,
        text="Ich warte.\n\nGuten Tag.\n\n<!-- STEP: done -->",
    ),
    Ending(
        name="stdout cut between two results",
        truth="complete",
        replies=(_background(1), says("Ich warte."), _OK),
        wrapper="unset CLAUDE_CODE_DISABLE_BACKGROUND_TASKS\n"
        + CUT_STDOUT_AT.format(line='"type":"result"', most=1).format(),
        settings=BASH,
        text="Ich warte.\n\nGuten Tag.\n\n<!-- STEP: done -->",
    ),
    Ending(
        name="stdout lost, transcript gone",
        truth="incomplete",
        replies=(_OK,),
        wrapper=f'{LOSE_STDOUT}\ncode=${{PIPESTATUS[0]}}\nrm -rf "$HOME/.claude/projects"\nexit $code',
    ),
    Ending(name="the model paused", truth="incomplete", replies=(says("Ich suche noch ", stop_reason="pause_turn"),)),
    Ending(
        name="stream cut, then recovered",
        truth="complete",
        replies=(says("a ", "b ", "c ", delay=0.3, cut_after=2), says("a ", "b ", "c ")),
    ),
    Ending(name="invalid settings file", truth="config", replies=(_OK,), wrapper=SPOIL),
    Ending(name="--bare", truth="config", replies=(_OK,), wrapper='exec "$CLI" --bare "$@"'),
    Ending(name="HTTP 400", truth="permanent", replies=(fails(400),)),
    Ending(name="HTTP 401", truth="permanent", replies=(fails(401),)),
    Ending(name="HTTP 413", truth="permanent", replies=(fails(413),)),
    Ending(name="HTTP 429", truth="transient", replies=(fails(429),)),
    Ending(
        name="HTTP 429, wait 10 h", truth="transient", replies=(fails(429, retry_after="36000"),), retry_after=36_000.0
    ),
    Ending(
        name="HTTP 429, used up for hours",
        truth="transient",
        replies=(_USED_UP,),
        settings={"claude_api_key": "sk-ant-oat01-x"},
        retry_after=3000.0,
    ),
    Ending(name="output limit", truth="limit", replies=(_TOO_LONG,), text="immer weiter " * 4),
    Ending(
        name="context window",
        truth="limit",
        replies=(says("immer ", "weiter ", stop_reason="model_context_window_exceeded"),),
    ),
    Ending(name="disk nearly full", truth="host", replies=(_OK,), wrapper=FULL_DISK, small_disk=True),
    Ending(name="stdout lost, HTTP 429", truth="transient", replies=(fails(429),), wrapper=LOSE_STDOUT),
    Ending(
        name="connection cut after a whole block",
        truth="complete",
        replies=(Reply(chunks=("erster Teil, ",), cut_at="delta"), says("zweiter Teil")),
        text="erster Teil, zweiter Teil",
    ),
    Ending(
        name="stdout lost, connection cut after a whole block",
        truth="complete",
        replies=(Reply(chunks=("erster Teil, ",), cut_at="delta"), says("zweiter Teil")),
        wrapper=LOSE_STDOUT,
        text="erster Teil, zweiter Teil",
    ),
    Ending(name="refusal", truth="refused", replies=(_REFUSES,)),
    Ending(name="refusal without a word", truth="refused", replies=(says("", stop_reason="refusal"),)),
    Ending(name="a tool's use, then a refusal", truth="refused", replies=(_WRITE, _REFUSES)),
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
