"""Judges from the evidence of a run whether the Claude CLI completed its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api_client.contract.completion import Completion, ErrorKind, IncompleteReason, ProviderFault, Verdict
from worker.runners.claude.answer_text import find_cut_reason
from worker.runners.claude.hooks import _DEFERRED, END, START, STOP, STOP_FAILURE, HookMark
from worker.runners.service_errors import BUSY, classify_fault, find_status, is_spent, is_temporary, plain_words

#: The CLI's words for errors without an HTTP status.
_LASTING_ERRORS = frozenset({"invalid_request", "model_not_found", "billing_error"})
_LOGIN_ERRORS = frozenset({"authentication_failed", "oauth_org_not_allowed"})
_LIMITS = {
    "error_max_turns": "the agent used up its turns",
    "error_max_budget_usd": "the agent used up its budget",
    "error_max_structured_output_retries": "the agent used up its tries",
}
#: Errors and endings that mean that answer or prompt are too long for the model.
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
#: Lines that the CLI writes to standard error for its own programs: ``[claude-code:some_name] {...}``.
_JARGON = re.compile(r"^\[claude-code:[^\]\n]*\].*$", re.MULTILINE)
#: How many characters of the CLI's words are quoted in a reason.
_QUOTED = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """The evidence about a run of the CLI from which the completion gate derives the verdict.

    Attributes:
        run, session: process tag and agent session of the run.
        result: the last ``result``; empty without one.
        error: kind of error in the CLI's last message.
        missing: why the text may be incomplete; empty if complete.
        unwritable: why the folder accepts no marks, such as a full disk.
        lives: True if the process has not exited, so no exit code is expected.
    """

    run: str
    session: str
    exit_code: int | None
    stderr: str = ""
    marks: Mapping[str, HookMark] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    text: str = ""
    missing: str = ""
    stop_reason: str = ""
    unwritable: str = ""
    retry_after: float = 0.0
    lives: bool = False

    @property
    def own_events(self) -> tuple[str, ...]:
        """Return the hook events that belong to this run and session."""
        return tuple(e for e, mark in self.marks.items() if (mark.run, mark.session) == (self.run, self.session))

    def to_facts(self) -> dict[str, Any]:
        """Return the evidence as JSON-ready data, for storing with the attempt."""
        names = ("subtype", "is_error", "terminal_reason", "api_error_status", "stop_reason", "num_turns")
        foreign = sorted(set(self.marks) - set(self.own_events))
        return {
            "exit_code": self.exit_code,
            "run": self.run,
            "agent_session": self.session,
            "hooks": list(self.own_events),
            "result": {name: self.result[name] for name in names if self.result.get(name) is not None},
            "stdout_lost": not self.result,
            **({"foreign_marks": foreign} if foreign else {}),
            **{name: value for name in ("error", "missing", "unwritable") if (value := getattr(self, name))},
        }


def judge_run(evidence: RunEvidence, facts: Mapping[str, Any] | None = None) -> Completion:
    """Return the verdict on a run. ``facts`` are further facts to store with the verdict."""
    verdict, what, reason = _decide_verdict(evidence)
    kind, why = (None, what) if isinstance(what, IncompleteReason) else (what, None)
    return Completion(
        verdict=verdict,
        kind=kind,
        why=why,
        reason=reason,
        retry_after=evidence.retry_after if kind is ErrorKind.TRANSIENT else 0.0,
        busy=kind is ErrorKind.TRANSIENT and _is_busy(evidence),
        fault=_classify_fault(evidence, kind) if kind else None,
        evidence={**(facts or {}), **evidence.to_facts()},
    )


_Ruling = tuple[Verdict, ErrorKind | IncompleteReason | None, str]


def _decide_verdict(evidence: RunEvidence) -> _Ruling:
    steps = (_judge_question, _judge_refusal, _judge_error, _judge_early_end, _judge_unproven)
    return next(filter(None, (step(evidence) for step in steps)), None) or _complete_ruling(evidence)


def _judge_question(evidence: RunEvidence) -> _Ruling | None:
    result = evidence.result
    if result.get("stop_reason") != _DEFERRED or result.get("is_error") or evidence.exit_code != 0:
        return None
    if not {START, END} <= set(evidence.own_events) or not isinstance(result.get("deferred_tool_use"), dict):
        return None
    name = " ".join(str(result["deferred_tool_use"].get("name")).split())[:_QUOTED]
    return Verdict.ASKS, None, f"a person is asked about a call of {name}"


def _judge_refusal(evidence: RunEvidence) -> _Ruling | None:
    if START not in evidence.own_events or (evidence.result.get("stop_reason") or evidence.stop_reason) != "refusal":
        return None
    said = " ".join(evidence.text.split())[:_QUOTED]
    return Verdict.REFUSED, IncompleteReason.REFUSED, f"the model refused: {said or 'it said no more'}"


def _judge_error(evidence: RunEvidence) -> _Ruling | None:
    result, said = evidence.result, _error_text(evidence)
    if (
        _SESSION_LOST.search(f"{said} {evidence.stderr}")
        and evidence.exit_code
        and not (STOP in evidence.own_events or evidence.text)
    ):
        return _error_ruling(ErrorKind.SESSION_LOST, said or "the agent session is gone")
    if limit := _LIMITS.get(str(result.get("subtype"))):
        return Verdict.ERROR, ErrorKind.LIMIT, limit
    if result.get("is_error") and (kind := _classify_error(evidence, said)):
        return _error_ruling(kind, said)
    if evidence.exit_code and not result and STOP_FAILURE in evidence.own_events:
        mark = evidence.marks[STOP_FAILURE]  # the result was lost with standard output, but the hook knows the error
        return _error_ruling(kind, mark.message or mark.error) if (kind := _KINDS.get(mark.error)) else None
    if evidence.unwritable:
        return Verdict.ERROR, ErrorKind.HOST, f"the run's folder cannot be written: {evidence.unwritable}"
    if evidence.exit_code and evidence.exit_code > 0 and not result and START not in evidence.own_events:
        if _SESSION_TAKEN.search(evidence.stderr):
            return _error_ruling(ErrorKind.TRANSIENT, _strip_jargon(evidence.stderr))
        if _MISUSE.search(evidence.stderr):
            return _error_ruling(ErrorKind.CONFIG, _strip_jargon(evidence.stderr))
    return None


def _error_text(evidence: RunEvidence) -> str:
    result = evidence.result
    said = " ".join([str(result.get("result") or ""), *map(str, result.get("errors") or ())]).strip()
    return said or _strip_jargon(evidence.stderr)


def _strip_jargon(stderr: str) -> str:
    return _JARGON.sub("", stderr).strip()


def _error_ruling(kind: ErrorKind, said: str) -> _Ruling:
    return Verdict.ERROR, kind, plain_words(said)


def _error_status(evidence: RunEvidence) -> int:
    return find_status({"code": evidence.result.get("api_error_status")})


def _is_busy(evidence: RunEvidence) -> bool:
    lost = not evidence.result and evidence.marks.get(STOP_FAILURE, HookMark()).error in {"rate_limit", "overloaded"}
    return lost or _error_status(evidence) in BUSY


def _classify_fault(evidence: RunEvidence, kind: ErrorKind) -> ProviderFault | None:
    status = _error_status(evidence)
    error = evidence.error or evidence.marks.get(STOP_FAILURE, HookMark()).error
    if "prompt_too_long" in {error, evidence.result.get("terminal_reason")}:
        return ProviderFault.CONTEXT_LENGTH
    if kind is ErrorKind.PERMANENT and is_spent(status, f"{error} {_error_text(evidence)}"):
        return ProviderFault.LIMIT
    if kind is ErrorKind.CONFIG:
        return ProviderFault.AUTH if error in _LOGIN_ERRORS else None
    if kind not in {ErrorKind.TRANSIENT, ErrorKind.PERMANENT} or (kind is ErrorKind.PERMANENT and not status):
        return None
    found = classify_fault(429 if error == "rate_limit" and not status else status, _error_text(evidence))
    return ProviderFault(found) if found else None


def _classify_error(evidence: RunEvidence, said: str) -> ErrorKind | None:
    status, ending = _error_status(evidence), str(evidence.result.get("terminal_reason"))
    if status:
        return ErrorKind.TRANSIENT if is_temporary(status, said) else ErrorKind.PERMANENT
    if evidence.error in _TOO_LONG or ending in _TOO_LONG:
        return ErrorKind.LIMIT
    if ending != "api_error":
        return None
    if evidence.error in _LOGIN_ERRORS or said.startswith(("Not logged in", "Invalid API key")):
        return ErrorKind.CONFIG
    return ErrorKind.PERMANENT if evidence.error in _LASTING_ERRORS else ErrorKind.TRANSIENT


def _judge_early_end(evidence: RunEvidence) -> _Ruling | None:
    code, result = evidence.exit_code, evidence.result
    if evidence.lives and not result:
        return _incomplete_ruling("the agent gave no result")
    if code is None and not evidence.lives:
        return _incomplete_ruling("nobody knows how the agent ended")
    if code and code < 0:
        return _incomplete_ruling(f"the agent was killed by signal {-code}", IncompleteReason.KILLED)
    if code and code > 0:
        return _incomplete_ruling(f"the agent ended with exit code {code}")
    if result and (result.get("is_error") or result.get("subtype") != "success"):
        return _incomplete_ruling(f"the agent's result is {result.get('subtype')}, an error")
    if result and result.get("terminal_reason", "completed") != "completed":
        return _incomplete_ruling(f"the agent stopped early: {result['terminal_reason']}")
    return None


def _judge_unproven(evidence: RunEvidence) -> _Ruling | None:
    own = evidence.own_events
    if START not in evidence.marks:
        reason = "the agent's hooks did not load: its settings are refused or its hooks are disabled"
        return Verdict.ERROR, ErrorKind.CONFIG, reason
    missing = [event for event in ((START, STOP) if evidence.lives else (START, STOP, END)) if event not in own]
    if missing:
        return _incomplete_ruling(f"the agent ended without the hook {missing[0]} of this run")
    if STOP_FAILURE in evidence.marks:
        return _incomplete_ruling("the agent's turn ended in a failure")
    if evidence.marks[STOP].background:
        return _incomplete_ruling("the agent ended while its background tasks ran")
    if reason := find_cut_reason(evidence.result.get("stop_reason") or evidence.stop_reason):
        return _incomplete_ruling(f"the model stopped before the answer was whole: {reason}")
    if evidence.missing:
        return _incomplete_ruling(f"the answer may not be whole: {evidence.missing}")
    if not evidence.text.strip():
        return _incomplete_ruling("the agent finished but said nothing", IncompleteReason.SILENT)
    return None


def _incomplete_ruling(reason: str, why: IncompleteReason = IncompleteReason.BROKE_OFF) -> _Ruling:
    return Verdict.INCOMPLETE, why, reason


def _complete_ruling(evidence: RunEvidence) -> _Ruling:
    lost = "" if evidence.result else "; its standard output was lost"
    if evidence.lives:
        return Verdict.COMPLETE, None, "this message's result and its hook Stop; its process was there still"
    return Verdict.COMPLETE, None, f"exit code 0 and this run's hooks SessionStart, Stop and SessionEnd{lost}"
