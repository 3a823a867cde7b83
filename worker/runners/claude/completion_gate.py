"""The completion gate of the Claude CLI: a pure function from evidence to a verdict (ADR-036, docs/claude-cli.md).

ADR-036 takes the SessionEnd hook's ``.done`` for "really finished". Measured with the real CLI that hook runs in nearly
every failing ending too (docs/claude-cli.md), so the verdict rests on all of: exit code 0 that we did not force, the
marks SessionStart, Stop and SessionEnd of this run, no StopFailure, a result that is not an error, and an answer of
which nothing is missing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.files.safe_io import opened, read, replace
from worker.runners.base import Completion, ErrorKind, Fault, Verdict, Why
from worker.runners.claude.output import cut_short
from worker.runners.service_errors import BUSY, fault_of, is_spent, passes, plain_words, status_of

# Settings and hooks of one run of the Claude CLI, and the marks the hooks leave (ADR-036, docs/claude-cli.md).
#
# Nothing is installed: each run gets its own settings file, outside the folder its agent works in, and hooks that
# write into the delivery's own folder. Each mark names its run, so that no other process's mark can be taken for it.

HOOK = Path(__file__).with_name("hook.sh")
TOOL_HOOK = Path(__file__).with_name("tool_hook.py")
START, STOP, STOP_FAILURE, END = "SessionStart", "Stop", "StopFailure", "SessionEnd"
EVENTS = (START, STOP, STOP_FAILURE, END)

#: Seconds the hook before a tool call may take: as long as a busy machine may need to start it.
_TOOL_TIMEOUT = 60
#: How a run ends whose tool call a person is asked about.
_DEFERRED = "tool_deferred"
#: Seconds a hook may take; without this the CLI cancels what runs while it ends.
_TIMEOUT = 10
#: Largest mark in bytes; it holds the last message of the answer.
_MAX_MARK = 8 * 2**20
#: What must fit on the disk beside it, in bytes.
_PROBE = 64 * 2**10

#: Escaping "?" as well makes the CLI (2.1.329) ignore the rule; unescaped it matches itself.
_SPECIAL = re.compile(r"[\\*\[\]]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The mark of one hook.

    Attributes:
        run: the mark of the run whose process ran the hook. session: the agent session.
        background: tasks that still ran. message: the last message of the answer. transcript: where the session is.
        error: the kind of error that ended the turn, where one did.
    """

    run: str = ""
    session: str = ""
    background: int = 0
    message: str = ""
    transcript: str = ""
    error: str = ""


def settings(
    marks: Path,
    *,
    readable: Iterable[Path],
    protected: Iterable[Path],
    allowed: Sequence[str],
    tools: Path | None = None,
) -> str:
    """The settings file of one run.

    Args:
        marks: the folder for the marks.
        readable: folders and files the agent may read besides its own folder.
        protected: folders it may not write.
        allowed: permission rules of the installation, such as ``WebSearch``.
        tools: the file that tells the hook before each tool call what may become of it; None: there is no such hook.
    """
    hooks: dict[str, Any] = {
        event: [{"hooks": [{"type": "command", "command": _command(event, marks), "timeout": _TIMEOUT}]}]
        for event in EVENTS
    }
    if tools is not None:
        # Whatever keeps it from answering blocks the call; an exit code other than 2 would not.
        hook = shlex.join([sys.executable, "-I", "-S", str(TOOL_HOOK), str(tools)])
        call = {"type": "command", "command": f"{hook} || exit 2", "timeout": _TOOL_TIMEOUT}
        hooks["PreToolUse"] = [{"matcher": "*", "hooks": [call]}]
    reading = [f"Read(/{_literal(path)}{'/**' if path.is_dir() else ''})" for path in readable]
    return json.dumps(
        {
            "hooks": hooks,
            "disableAllHooks": False,
            "permissions": {"allow": [*reading, *allowed], "deny": edit_rules(protected)},
        }
    )


def edit_rules(folders: Iterable[Path]) -> list[str]:
    """A rule about writing for each folder and all below it."""
    return [f"Edit(/{_literal(folder)}/**)" for folder in folders]


def _literal(path: Path) -> str:
    """A path for a rule: rules are patterns, in which these characters mean something."""
    return _SPECIAL.sub(r"\\\g<0>", str(path))


def _command(event: str, marks: Path) -> str:
    return f"set -- {event} {shlex.quote(str(marks))}; . {shlex.quote(str(HOOK))}"


def readable_entries(root: Path) -> list[Path]:
    """Return what an agent may read of the project: all but hidden entries, links and ``projects``.

    Of ``/`` nothing: that is the machine, and no project.
    """
    if root == root.parent:
        return []
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return []
    return [e for e in entries if not e.name.startswith(".") and e.name != "projects" and not e.is_symlink()]


def read_marks(directory: Path) -> dict[str, Mark]:
    """The marks in a delivery's ``marks/``, by event. One that cannot be read counts as none."""
    found: dict[str, Mark] = {}
    try:
        with opened(directory) as own, opened("marks", own) as marks:
            for event in EVENTS:
                try:
                    found[event] = parse_mark(read(event, marks, _MAX_MARK))
                except (OSError, ValueError, RecursionError):
                    continue
    except OSError:
        return {}
    return found


def is_over(directory: Path) -> bool:
    """Return whether a session has ended by its hooks: nothing but its process's own end is still to come."""
    return {START, STOP, END} <= read_marks(directory).keys()


def obstacle(directory: Path) -> str:
    """Say why a delivery's ``marks/`` takes no marks, in the system's words, such as a full disk; empty if it does.

    Hooks that could not write look like hooks that did not run. What is tried is as large as a long answer's mark.
    """
    try:
        with opened(directory) as own, opened("marks", own) as marks:
            replace("probe", b"\0" * _PROBE, marks, durable=False)
            os.unlink("probe", dir_fd=marks)
    except OSError as error:
        return str(error)
    return ""


def parse_mark(content: bytes) -> Mark:
    """One mark, as the hook wrote it. Raises ``ValueError``: it is not a mark."""
    run, _, body = content.decode("utf-8", "replace").partition("\n")
    facts = json.loads(body)
    if not isinstance(facts, dict):
        raise ValueError("a hook gets a JSON object")
    background = facts.get("background_tasks")
    return Mark(
        run=run,
        session=_text(facts, "session_id"),
        background=len(background) if isinstance(background, list) else 0,
        message=_text(facts, "last_assistant_message"),
        transcript=_text(facts, "transcript_path"),
        error=_text(facts, "error"),
    )


def _text(facts: dict[str, Any], name: str) -> str:
    value = facts.get(name)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


#: The CLI's words for an error without an HTTP status.
_LASTING_ERRORS = frozenset({"invalid_request", "model_not_found", "billing_error"})
_LOGIN_ERRORS = frozenset({"authentication_failed", "oauth_org_not_allowed"})
_LIMITS = {
    "error_max_turns": "the agent used up its turns",
    "error_max_budget_usd": "the agent used up its budget",
    "error_max_structured_output_retries": "the agent used up its tries",
}
#: Errors of the CLI and endings of its turn that mean: the answer, or what was asked, is too long for the model.
_TOO_LONG = frozenset({"max_output_tokens", "prompt_too_long"})
_KINDS = {
    **dict.fromkeys(_TOO_LONG, ErrorKind.LIMIT),
    **dict.fromkeys(_LOGIN_ERRORS, ErrorKind.CONFIG),
    **dict.fromkeys(_LASTING_ERRORS, ErrorKind.PERMANENT),
    **dict.fromkeys(("rate_limit", "overloaded", "server_error"), ErrorKind.TRANSIENT),
}
_SESSION_LOST = re.compile(r"No conversation found|No messages? found|session .{0,80}not found", re.IGNORECASE)
_SESSION_TAKEN = re.compile(r"already in use", re.IGNORECASE)
_MISUSE = re.compile(
    r"unknown option|root/sudo|cannot be used with|Invalid (?:session|value|permission|API)", re.IGNORECASE
)
#: What the CLI writes on standard error for its own programs to read: ``[claude-code:some_name] {...}``.
_JARGON = re.compile(r"^\[claude-code:[^\]\n]*\].*$", re.MULTILINE)
#: How much of what the CLI said is quoted in a reason, in characters.
_QUOTED = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The rest of a run whose process ended by itself.

    Attributes:
        run: the mark this run was given. session: the agent session it was given.
        exit_code: its exit code, negative for a signal, None when nobody knows. stderr: the end of standard error.
        marks: what its hooks left, by event. result: its last ``result``; empty without one.
        error: the kind of error in its last message.
        text: the answer. missing: why something of it may be missing; empty when it is whole.
        stop_reason: why the model stopped, as the transcript has it; a result tells it too.
        unwritable: why the run's folder takes no marks, such as a full disk; empty when it does.
        retry_after: seconds the service asked to wait, 0 when it named none.
        lives: the process has ended its message, not itself: SessionEnd and an exit code are still to come, or never.
    """

    run: str
    session: str
    exit_code: int | None
    stderr: str = ""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    text: str = ""
    missing: str = ""
    stop_reason: str = ""
    unwritable: str = ""
    retry_after: float = 0.0
    lives: bool = False

    @property
    def own(self) -> tuple[str, ...]:
        """The events whose marks name this run and this session."""
        return tuple(e for e, mark in self.marks.items() if (mark.run, mark.session) == (self.run, self.session))

    def facts(self) -> dict[str, Any]:
        """The evidence as it is recorded with the attempt."""
        names = ("subtype", "is_error", "terminal_reason", "api_error_status", "stop_reason", "num_turns")
        foreign = sorted(set(self.marks) - set(self.own))
        return {
            "exit_code": self.exit_code,
            "run": self.run,
            "agent_session": self.session,
            "hooks": list(self.own),
            "result": {name: self.result[name] for name in names if self.result.get(name) is not None},
            "stdout_lost": not self.result,
            **({"foreign_marks": foreign} if foreign else {}),
            **{name: value for name in ("error", "missing", "unwritable") if (value := getattr(self, name))},
        }


def judge(evidence: Evidence, facts: Mapping[str, Any] | None = None) -> Completion:
    """The verdict over a run that ended by itself, with its reason and, recorded with it, the evidence.

    Args:
        evidence: what the run left.
        facts: further facts to record.
    """
    verdict, what, reason = _verdict(evidence)
    kind, why = (None, what) if isinstance(what, Why) else (what, None)
    return Completion(
        verdict=verdict,
        kind=kind,
        why=why,
        reason=reason,
        retry_after=evidence.retry_after if kind is ErrorKind.TRANSIENT else 0.0,
        busy=kind is ErrorKind.TRANSIENT and _busy(evidence),
        fault=_fault(evidence, kind) if kind else None,
        evidence={**(facts or {}), **evidence.facts()},
    )


_Ruling = tuple[Verdict, ErrorKind | Why | None, str]


def _verdict(evidence: Evidence) -> _Ruling:
    steps = (_asks, _refusal, _error, _ended_early, _unproven)
    return next(filter(None, (step(evidence) for step in steps)), None) or _complete(evidence)


def _asks(evidence: Evidence) -> _Ruling | None:
    """The CLI ended because its hook deferred a tool call; its session can be resumed there."""
    result = evidence.result
    if result.get("stop_reason") != _DEFERRED or result.get("is_error") or evidence.exit_code != 0:
        return None
    if not {START, END} <= set(evidence.own) or not isinstance(result.get("deferred_tool_use"), dict):
        return None
    return Verdict.ASKS, None, f"a person is asked about a call of {_plain_name(result['deferred_tool_use'])}"


def _refusal(evidence: Evidence) -> _Ruling | None:
    """The model refused, whatever error the CLI makes of that."""
    if START not in evidence.own or (evidence.result.get("stop_reason") or evidence.stop_reason) != "refusal":
        return None
    said = " ".join(evidence.text.split())[:_QUOTED]
    return Verdict.REFUSED, Why.REFUSED, f"the model refused: {said or 'it said no more'}"


def _plain_name(call: Mapping[str, Any]) -> str:
    return " ".join(str(call.get("name")).split())[:_QUOTED]


def _error(evidence: Evidence) -> _Ruling | None:
    """An error that the CLI itself tells: of the service, of its set-up, of a limit."""
    result, said = evidence.result, _said(evidence)
    if _SESSION_LOST.search(f"{said} {evidence.stderr}") and evidence.exit_code and not _has_worked(evidence):
        return _failed(ErrorKind.SESSION_LOST, said or "the agent session is gone")
    if limit := _LIMITS.get(str(result.get("subtype"))):
        return Verdict.ERROR, ErrorKind.LIMIT, limit
    if result.get("is_error") and (kind := _kind_of(evidence, said)):
        return _failed(kind, said)
    if evidence.exit_code and not result and STOP_FAILURE in evidence.own:
        return _ruled_by_hook(evidence.marks[STOP_FAILURE])
    if evidence.unwritable:
        return Verdict.ERROR, ErrorKind.HOST, f"the run's folder cannot be written: {evidence.unwritable}"
    if evidence.exit_code and evidence.exit_code > 0 and not result and START not in evidence.own:
        if _SESSION_TAKEN.search(evidence.stderr):
            return _failed(ErrorKind.TRANSIENT, _plain(evidence.stderr))
        if _MISUSE.search(evidence.stderr):
            return _failed(ErrorKind.CONFIG, _plain(evidence.stderr))
    return None


def _ruled_by_hook(mark: Mark) -> _Ruling | None:
    """An error whose result was lost with standard output: the hook heard what kind it is, and no status."""
    kind = _KINDS.get(mark.error)
    return _failed(kind, mark.message or mark.error) if kind else None


def _said(evidence: Evidence) -> str:
    """Return what the CLI said about an error: in its result, else on standard error."""
    result = evidence.result
    said = " ".join([str(result.get("result") or ""), *map(str, result.get("errors") or ())]).strip()
    return said or _plain(evidence.stderr)


def _plain(stderr: str) -> str:
    return _JARGON.sub("", stderr).strip()


def _has_worked(evidence: Evidence) -> bool:
    return STOP in evidence.own or bool(evidence.text)


def _failed(kind: ErrorKind, said: str) -> _Ruling:
    return Verdict.ERROR, kind, plain_words(said)


def _status(evidence: Evidence) -> int:
    """The HTTP status of the error that ended the run; 0 when it has none."""
    return status_of({"code": evidence.result.get("api_error_status")})


def _busy(evidence: Evidence) -> bool:
    lost = not evidence.result and evidence.marks.get(STOP_FAILURE, Mark()).error in {"rate_limit", "overloaded"}
    return lost or _status(evidence) in BUSY


def _fault(evidence: Evidence, kind: ErrorKind) -> Fault | None:
    """What the service has against the run; None for an error of another kind."""
    status = _status(evidence)
    error = evidence.error or evidence.marks.get(STOP_FAILURE, Mark()).error
    if "prompt_too_long" in {error, evidence.result.get("terminal_reason")}:
        return Fault.CONTEXT_LENGTH
    if kind is ErrorKind.PERMANENT and is_spent(status, f"{error} {_said(evidence)}"):
        return Fault.LIMIT
    if kind is ErrorKind.CONFIG:
        return Fault.AUTH if error in _LOGIN_ERRORS else None
    if kind not in {ErrorKind.TRANSIENT, ErrorKind.PERMANENT} or (kind is ErrorKind.PERMANENT and not status):
        return None
    found = fault_of(429 if error == "rate_limit" and not status else status, _said(evidence))
    return Fault(found) if found else None


def _kind_of(evidence: Evidence, said: str) -> ErrorKind | None:
    """The kind of an error that the CLI reports; None when the service did not cause it.

    A status decides by its number, whatever the CLI reports about the end of its turn.
    """
    status, ending = _status(evidence), str(evidence.result.get("terminal_reason"))
    if status:
        return ErrorKind.TRANSIENT if passes(status, said) else ErrorKind.PERMANENT
    if evidence.error in _TOO_LONG or ending in _TOO_LONG:
        return ErrorKind.LIMIT
    if ending != "api_error":
        return None
    if evidence.error in _LOGIN_ERRORS or said.startswith(("Not logged in", "Invalid API key")):
        return ErrorKind.CONFIG
    return ErrorKind.PERMANENT if evidence.error in _LASTING_ERRORS else ErrorKind.TRANSIENT


def _ended_early(evidence: Evidence) -> _Ruling | None:
    """An ending that is not a success: a signal, an exit code, a result that says so."""
    code, result = evidence.exit_code, evidence.result
    if evidence.lives and not result:
        return _incomplete("the agent gave no result")
    if code is None and not evidence.lives:
        return _incomplete("nobody knows how the agent ended")
    if code and code < 0:
        return _incomplete(f"the agent was killed by signal {-code}", Why.KILLED)
    if code and code > 0:
        return _incomplete(f"the agent ended with exit code {code}")
    if result and (result.get("is_error") or result.get("subtype") != "success"):
        return _incomplete(f"the agent's result is {result.get('subtype')}, an error")
    if result and result.get("terminal_reason", "completed") != "completed":
        return _incomplete(f"the agent stopped early: {result['terminal_reason']}")
    return None


def _unproven(evidence: Evidence) -> _Ruling | None:
    """An ending that looks like a success and is not proven by this run's own hooks, or has no answer."""
    own = evidence.own
    if START not in evidence.marks:
        reason = "the agent's hooks did not load: its settings are refused or its hooks are disabled"
        return Verdict.ERROR, ErrorKind.CONFIG, reason
    missing = [event for event in ((START, STOP) if evidence.lives else (START, STOP, END)) if event not in own]
    if missing:
        return _incomplete(f"the agent ended without the hook {missing[0]} of this run")
    if STOP_FAILURE in evidence.marks:
        return _incomplete("the agent's turn ended in a failure")
    if evidence.marks[STOP].background:
        return _incomplete("the agent ended while its background tasks ran")
    if reason := cut_short(evidence.result.get("stop_reason") or evidence.stop_reason):
        return _incomplete(f"the model stopped before the answer was whole: {reason}")
    if evidence.missing:
        return _incomplete(f"the answer may not be whole: {evidence.missing}")
    if not evidence.text.strip():
        return _incomplete("the agent finished but said nothing", Why.SILENT)
    return None


def _incomplete(reason: str, why: Why = Why.BROKE_OFF) -> _Ruling:
    return Verdict.INCOMPLETE, why, reason


def _complete(evidence: Evidence) -> _Ruling:
    lost = "" if evidence.result else "; its standard output was lost"
    if evidence.lives:
        return Verdict.COMPLETE, None, "this message's result and its hook Stop; its process was there still"
    return Verdict.COMPLETE, None, f"exit code 0 and this run's hooks SessionStart, Stop and SessionEnd{lost}"
