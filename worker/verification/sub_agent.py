"""The result of a verification, and the verifier: an independent agent that judges a phase's output (ADR-025).

Gates come first. The agent works on a copy, with tools that only read, for at most ``verifier_seconds`` (a constant).
Only a strict verdict with the nonce of this very verification lets a phase pass; everything else is "not verified",
with the reason.
"""

from __future__ import annotations

import functools
import json
import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hmac import compare_digest
from pathlib import Path
from typing import Any

import structlog

from api_client.contract.declared import table_beside
from api_client.contract.issues import SettingsError
from api_client.contract.phases import Phase
from api_client.contract.settings import Settings, load
from worker.agents import build_runner
from worker.files.session import fenced
from worker.runners.base import Completion, Emit, Order, Runner, RunResult, Stop, reads_files
from worker.runners.base import Verdict as Ended
from worker.verification.gates import Around, GateReport, check
from worker.verification.gates.gate_program import Fence, Stopping, in_thread
from worker.verification.gates.output_tree import TooLarge, Tree, content_of, copied, scan


class Ground(StrEnum):
    """The ground of a result."""

    #: A deterministic gate failed, or the gates passed and no verifier was asked.
    GATES = "gates"
    #: A verifier's valid verdict.
    VERDICT = "verdict"
    #: The verifier finished, but its answer holds no valid verdict: not verified.
    NO_VERDICT = "no_verdict"
    #: The verifier could not do its work: it crashed, ran out of time, or is set up wrongly. Not verified.
    VERIFIER = "verifier"
    #: The verification was asked to stop. Not verified, and not the phase's fault.
    STOPPED = "stopped"
    #: The gates may not run on this worker: nothing of the phase was judged.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The result of a verification.

    Attributes:
        success: True only when every gate passed and, where one was asked, the verifier's verdict is valid and says so.
        feedback: what to do about it, for the agent; None when there is nothing to say.
        errors: the faults, one sentence each; never empty unless ``success``.
        checks_passed: what was found right, gates first. ground: what the result rests on.
        gates: what the gates found; empty when they were not run.
        completion: how the verifier's run ended; None when none was asked. usage: what the verifier used.
        text: the verifier's answer as it came, for the record.
    """

    success: bool
    feedback: str | None = None
    errors: list[str] = field(default_factory=list)
    checks_passed: list[str] = field(default_factory=list)
    ground: Ground = Ground.GATES
    gates: GateReport = field(default_factory=GateReport)
    completion: Completion | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def judged(self) -> bool:
        """True when the output was judged; False when the verification itself did not come to an end."""
        return self.ground in {Ground.GATES, Ground.VERDICT}

    def to_dict(self) -> dict[str, Any]:
        """The result as a JSON-ready mapping."""
        return {
            "success": self.success,
            "feedback": self.feedback,
            "errors": self.errors,
            "checks_passed": self.checks_passed,
            "ground": self.ground.value,
            "gates": self.gates.to_dict(),
            "completion": self.completion.to_dict() if self.completion else None,
            "usage": self.usage,
            "text": self.text,
        }


def gates_result(report: GateReport) -> VerificationResult:
    """The result that the gates alone make."""
    if report.stopped:
        return VerificationResult(
            success=False, errors=[f"the check was stopped: {report.stopped}"], ground=Ground.STOPPED, gates=report
        )
    errors = [place_of(issue) for issue in report.issues if issue.is_error]
    if not report.passed and not errors:
        errors = ["no gate was run"]
    feedback = "\n".join(f"- {place_of(issue)}: {issue.fix_hint}" for issue in report.issues if issue.is_error)
    return VerificationResult(
        success=report.passed,
        feedback=feedback or None,
        errors=errors,
        checks_passed=list(report.checks_passed),
        gates=report,
    )


def place_of(issue: Any) -> str:
    """An issue as one sentence, with file and line before it; a file that the sentence names is not named twice."""
    named = issue.file and issue.file in issue.message
    place = f"{issue.file}:{issue.line}: " if issue.line else f"{issue.file}: " if issue.file and not named else ""
    return f"{place}{issue.message}"


# The prompts of a phase's agent and verifier. Pure.
#
# The verifier sees the output as data in code blocks that nothing in them can end, and its instructions come last.

#: How much of the output is shown in the verifier's prompt, all files together, in characters.
MAX_SHOWN = 120_000

_PROMPTS = table_beside(__file__)


def verifier_prompt(
    phase: Phase,
    nonce: str,
    *,
    files: Mapping[str, str],
    unseen: Sequence[str] = (),
    checked: Sequence[str] = (),
    locale: str = "en",
) -> str:
    """The verifier's order.

    ``nonce`` is what the verdict must repeat, and nowhere else. ``files`` are the output's texts by path, ``unseen``
    files that are not shown here, ``checked`` what the gates have found right. ``locale``: of the verdict's sentences.
    """
    shown = "\n".join(f"\n### {path}\n\n{fenced(text)}" for path, text in files.items())
    where = "\nThe files are in the folder `files/` of your working directory; you can read them there."
    if unseen:
        where += "\nThese are not shown below: " + ", ".join(f"`{path}`" for path in unseen) + "."
    form = {"nonce": nonce, "success": False, "errors": ["..."], "checks_passed": ["..."], "feedback": "what to do"}
    expected = [*(f"the file `{path}`" for path in phase.output_files), *phase.criteria]
    return str(_PROMPTS["verifier"]["en"]).format(
        name=json.dumps(phase.id),
        description=fenced(phase.description or "(nothing more was said)"),
        expected="\n".join(f"- {each}" for each in expected) or "- what the description says",
        checked="\n".join(f"- {each}" for each in checked) or "- nothing",
        where=where,
        files=f"{shown}\n" if shown else "\n(no text files)\n",
        language="German" if locale.startswith("de") else "English",
        form=json.dumps(form, indent=2),
    )


def phase_prompt(phase: Phase, *, inputs: Mapping[str, str] | None = None, locale: str = "en") -> str:
    """The prompt of a phase's first attempt; ``inputs`` says where each input file lies, by its name in phases.yaml.

    ``locale`` is the language of the frame; the description stays as it is.
    """
    english = not locale.startswith("de")
    found = inputs or {}
    reads = "\n".join(f"- `{found.get(path, path)}`" for path in phase.input_files)
    heading = "## Input" if english else "## Eingaben"
    title = "Required:" if english else "Pflicht:"
    writes = "\n".join(f"- `output/{path}`" for path in phase.output_files)
    judge = " and a second agent judges them" if english else " und ein zweiter Agent beurteilt sie"
    return str(_PROMPTS["agent"]["en" if english else "de"]).format(
        name=phase.id,
        title=phase.name,
        description=phase.description,
        inputs=f"\n{heading}\n\n{reads}\n" if reads else "",
        outputs=f"\n{title}\n\n{writes}\n" if writes else "",
        judge=judge if phase.verify_agent else "",
    )


# Reading a verifier's verdict out of its answer. Pure. All but a valid verdict is "not verified", with a reason.
#
# The verdict is one JSON object with ``success`` (true or false, nothing else), ``nonce``, ``errors``,
# ``checks_passed`` and ``feedback``. The nonce is in the verifier's prompt only, so no text in the checked files can
# know it.

#: Longest answer that is read, its end, in characters; how many objects in it are tried.
MAX_TEXT, MAX_OBJECTS = 262_144, 500
#: How many errors or checks are kept, and how long each may be, in characters.
MAX_ENTRIES, MAX_ENTRY = 100, 2_000
_MAX_ENVELOPES = 3


class NoVerdict(ValueError):
    """The answer holds no valid verdict; the message says why."""


@dataclass(frozen=True, slots=True)
class VerifierVerdict:
    """A valid verdict. ``errors`` is never empty unless ``success``."""

    success: bool
    feedback: str | None = None
    errors: list[str] = field(default_factory=list)
    checks_passed: list[str] = field(default_factory=list)


def read_verdict(text: str, nonce: str) -> VerifierVerdict:
    """The verdict in a verifier's answer, or in the CLI's JSON envelope around it; it repeats the ``nonce``.

    Raises ``NoVerdict``: there is none, it is not of the right shape, its nonce is wrong, or two of them disagree.
    """
    if len(nonce) < 8:
        raise ValueError("a nonce has at least 8 characters")
    found = [each for each in _objects(_unwrapped(text)) if "success" in each or "nonce" in each]
    if not found:
        raise NoVerdict("the verifier gave no verdict: its answer holds no JSON object with 'success'")
    own = [each for each in found if _same(each.get("nonce"), nonce)]
    if not own:
        raise NoVerdict("the verdict does not repeat the nonce of this verification, so it is not the verifier's")
    verdicts = [_verdict(each) for each in own]
    if any(verdict.success != verdicts[0].success for verdict in verdicts):
        raise NoVerdict("the verifier gave two verdicts that disagree")
    return verdicts[-1]


def _same(given: object, nonce: str) -> bool:
    return isinstance(given, str) and compare_digest(given.encode("utf-8", "replace"), nonce.encode())


def _unwrapped(text: str) -> str:
    """The answer inside the CLI's envelope ``{"type": "result", "result": "..."}``, or the text itself."""
    for _ in range(_MAX_ENVELOPES):
        try:
            envelope = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if not isinstance(envelope, dict) or envelope.get("type") != "result" or "success" in envelope:
            return text
        if envelope.get("is_error"):
            raise NoVerdict(f"the verifier ended with an error: {str(envelope.get('result') or 'unknown')[:200]}")
        if not isinstance(envelope.get("result"), str):
            raise NoVerdict("the verifier's envelope holds no answer")
        text = envelope["result"]
    return text


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text, fenced or bare, in its order; one inside another is not looked at."""
    text = text[-MAX_TEXT:]
    decoder = json.JSONDecoder(object_pairs_hook=_without_repeats)
    position, tried = text.find("{"), 0
    while position >= 0 and tried < MAX_OBJECTS:
        tried += 1
        try:
            found, position = decoder.raw_decode(text, position)
        except RepeatedKey as error:
            raise NoVerdict(f"the verdict has the key {error.args[0]!r} twice") from None
        except (ValueError, RecursionError):
            position += 1
        else:
            yield found
        position = text.find("{", position)


class RepeatedKey(Exception):
    """A verdict's key is there twice, so that readers would disagree about it."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs) and ("success" in found or "nonce" in found):
        keys = [key for key, _ in pairs]
        raise RepeatedKey(next(key for key in keys if keys.count(key) > 1))
    return found


def _verdict(data: dict[str, Any]) -> VerifierVerdict:
    success, feedback = data.get("success"), data.get("feedback")
    if not isinstance(success, bool):
        raise NoVerdict(f"the verdict's 'success' must be true or false, not {json.dumps(success)[:80]}")
    if feedback is not None and not isinstance(feedback, str):
        raise NoVerdict("the verdict's 'feedback' must be a text")
    errors = _sentences(data.get("errors"), "errors")
    if success and errors:
        raise NoVerdict(f"the verdict says success and names errors: {errors[0][:200]}")
    feedback = feedback.strip()[: 10 * MAX_ENTRY] if feedback else None
    if not success and not errors:
        errors = [(feedback or "the verifier rejected the output without saying why")[:MAX_ENTRY]]
    return VerifierVerdict(success, feedback or None, errors, _sentences(data.get("checks_passed"), "checks_passed"))


def _sentences(value: object, name: str) -> list[str]:
    """Verifiers' errors as texts: null is an empty list, a text is one item, an object becomes a sentence."""
    if value is None:
        return []
    entries = [value] if isinstance(value, str | dict) else value
    if not isinstance(entries, list):
        raise NoVerdict(f"the verdict's {name!r} must be a list of texts")
    sentences = (_sentence(entry)[:MAX_ENTRY] for entry in entries[:MAX_ENTRIES])
    return [sentence for sentence in sentences if sentence]


def _sentence(entry: object) -> str:
    if isinstance(entry, str):
        return entry.strip()
    if isinstance(entry, dict):
        said = next((entry[key] for key in ("message", "error", "description") if isinstance(entry.get(key), str)), "")
        place = ":".join(str(entry[key]) for key in ("file", "line") if isinstance(entry.get(key), str | int))
        if said:
            return f"{place}: {said}" if place else said
    return json.dumps(entry, ensure_ascii=False)


log = structlog.get_logger()

#: What ``verify_phase`` reports for a phase of which nothing more is known.
_PLAIN = "Produce the expected files so that the quality gate is met."


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifying:
    """Whose verification this is, and its bounds.

    Attributes:
        turn_id, session_id, attempt, delivery: the run that is verified; together they name the verifier's processes.
        model: the phase's own model, asked where ``HELIX_VERIFIER_MODEL`` names none.
        stop: asks gates and verifier to end. deadline: when all must be over, by ``time.monotonic()``.
        locale: language of issues and verdict. scratch: where copies are made; None for the system's temporary folder.
        emit: gets what the verifier does. fence: what gates' programs run in; None for the settings' box.
    """

    turn_id: str = field(default_factory=lambda: f"phase-{secrets.token_hex(8)}")
    session_id: str = ""
    attempt: int = 1
    delivery: int = 1
    model: str = ""
    stop: Stop = field(default_factory=Stopping)
    deadline: float = math.inf
    locale: str = "en"
    scratch: Path | None = None
    emit: Emit | None = None
    fence: Fence | None = None

    def around(self, fence: Fence) -> Around:
        """The same for the gates, which run in ``fence``."""
        return Around(
            stop=self.stop,
            deadline=self.deadline,
            mark=f"{self.turn_id}-gates.{self.attempt}.{self.delivery}",
            locale=self.locale,
            scratch=self.scratch,
            fence=fence,
        )


class SubAgentVerifier:
    """Verifies the output of phases. Used by many threads at once.

    Args:
        max_retries: how many runs of a phase ``run_with_verification`` allows with this verifier.
        model: a model of ``HELIX_MODELS``, in place of ``HELIX_VERIFIER_MODEL``.
        settings: in place of the environment's.
        runner: the agent itself and its option, in place of a model.
    """

    def __init__(
        self,
        max_retries: int = 3,
        *,
        model: str = "",
        settings: Settings | None = None,
        runner: tuple[Runner, str] | None = None,
    ) -> None:
        self.max_retries = max_retries
        self._model = model
        self._given = settings
        self._runner = runner

    @functools.cached_property
    def _settings(self) -> Settings:
        return self._given or load()

    async def verify_phase(
        self,
        phase_output: Path,
        quality_gate: dict[str, Any],
        expected_files: list[str] | None = None,
        *,
        description: str = "",
        verifying: Verifying | None = None,
    ) -> VerificationResult:
        """Check a phase's output: the gates first, then, when they pass, the agent.

        Args:
            phase_output: the output folder; nothing in it is changed.
            quality_gate: the gate as phases.yaml writes it, such as ``{"type": "files_exist"}``.
            expected_files: files that must be there, relative to ``phase_output``.
            description: what the phase had to do.
            verifying: whose verification this is; its ``stop`` is set when this coroutine is cancelled.

        Raises:
            PhaseError: the gate or a path is wrong; names every problem.
        """
        said = {"id": "phase", "description": description or _PLAIN, "quality_gate": quality_gate or None}
        phase = Phase.from_dict({**said, "output_files": list(expected_files or ()), "verify_agent": True})
        outer = verifying or Verifying(locale=self._settings.locale)
        return await in_thread(lambda stop: self.verify(phase, phase_output, replace(outer, stop=stop)), outer.stop)

    def verify(self, phase: Phase, directory: Path, verifying: Verifying | None = None) -> VerificationResult:
        """Check a phase's output: the gates, then the agent when they pass and the phase asks for one."""
        on = verifying or Verifying()
        report = check(phase, directory, **on.around(on.fence or Fence.of(self._settings)))
        if not (report.passed and phase.verify_agent):
            return gates_result(report)
        return self.ask(phase, directory, report, on)

    def ask(
        self, phase: Phase, directory: Path, report: GateReport, verifying: Verifying | None = None
    ) -> VerificationResult:
        """Have the agent judge an output that has passed the gates. Every failure is a result, never an exception."""
        on = verifying or Verifying()
        passed = list(report.checks_passed)
        nonce = secrets.token_hex(16)
        try:
            ran = self._run(phase, directory, on, nonce, passed)
        except SettingsError as error:
            return _unverified(f"the verifier is not set up: {error}", report)
        except Exception as error:
            log.exception("phase.verifier_failed", phase=phase.id, turn_id=on.turn_id)
            return _unverified(f"the verifier failed: {type(error).__name__}: {error}", report)
        result = _judged(ran, nonce, on.stop, self._settings.verifier_seconds)
        return replace(result, gates=report, checks_passed=[*passed, *result.checks_passed])

    def model_for(self, phase_model: str = "") -> str:
        """The model that judges: this verifier's, else the setting's, else the phase's, else the first there is."""
        return self._model or self._settings.verifier_model or phase_model or next(iter(self._settings.models))

    def _agent(self, phase_model: str) -> tuple[Runner, str]:
        if self._runner is not None:
            return self._runner
        model = self.model_for(phase_model)
        if model not in self._settings.models:
            known = ", ".join(self._settings.models)
            raise SettingsError([f"the verifier's model {model!r} is not in HELIX_MODELS ({known})"])
        return build_runner(self._settings.models[model])

    def _run(self, phase: Phase, directory: Path, on: Verifying, nonce: str, passed: list[str]) -> RunResult:
        runner, option = self._agent(on.model or phase.model)
        try:
            tree = scan(directory)
        except TooLarge as error:
            raise OSError(f"the output is too large: {error}") from error
        shown, unseen = _texts(tree, phase)
        if unseen and not reads_files(runner):
            raise SettingsError([f"{runner.name} reads no files, and {unseen[0]} does not fit its prompt"])
        others = [path for path in tree.files if path not in shown]
        prompt = verifier_prompt(phase, nonce, files=shown, unseen=others, checked=passed, locale=on.locale)
        with copied(tree, on.scratch, "run/files") as fresh:
            (fresh / "run" / "output").mkdir()  # where runners look for an agent's files; it can write none
            seconds = self._settings.verifier_seconds
            order = Order(
                turn_id=f"{on.turn_id}-verify",
                session_id=on.session_id,
                attempt=on.attempt,
                delivery=on.delivery,
                prompt=prompt,
                messages=({"role": "user", "content": prompt},),
                workdir=fresh,
                directory=fresh / "run",
                model=self.model_for(on.model or phase.model),
                option=option,
                locale=on.locale,
                deadline=min(on.deadline, time.monotonic() + seconds),
                idle_seconds=seconds,
                kill_grace_seconds=self._settings.kill_grace_seconds,
                read_only=True,
            )
            return runner.run(order, on.emit or (lambda _event: None), on.stop)


def _texts(tree: Tree, phase: Phase) -> tuple[dict[str, str], list[str]]:
    """Return what the prompt shows, expected files first, and the text files that did not fit."""
    shown: dict[str, str] = {}
    unseen, left = [], MAX_SHOWN
    expected = [path for path in phase.output_files if path in tree.files]
    for path in dict.fromkeys((*expected, *tree.files)):
        if tree.files[path] > left:
            unseen.append(path)
            continue
        try:
            text = content_of(tree, path, left).decode("utf-8")
        except UnicodeDecodeError:
            continue  # no text: named in the prompt, and to be read as a file
        shown[path] = text
        left -= len(text)
    return shown, unseen


def _judged(ran: RunResult, nonce: str, stop: Stop, seconds: float) -> VerificationResult:
    """The result that a verifier's run makes: a valid verdict, or the reason why there is none."""
    completion = ran.completion
    facts: dict[str, Any] = {"completion": completion, "usage": ran.usage, "text": ran.text}
    if completion.verdict is not Ended.COMPLETE:
        if stop.reason:
            return VerificationResult(
                False, None, [f"the verifier was stopped: {stop.reason}"], [], Ground.STOPPED, **facts
            )
        return VerificationResult(False, None, [_unfinished(completion, seconds)], [], Ground.VERIFIER, **facts)
    try:
        verdict = read_verdict(ran.text, nonce)
    except NoVerdict as error:
        return VerificationResult(False, None, [str(error)], [], Ground.NO_VERDICT, **facts)
    return VerificationResult(
        verdict.success, verdict.feedback, verdict.errors, verdict.checks_passed, Ground.VERDICT, **facts
    )


def _unfinished(completion: Completion, seconds: float) -> str:
    reason = completion.reason or completion.verdict.value
    late = completion.evidence.get("stopped") in {"deadline", "idle"} or reason == "the run's time was up"
    return f"the verifier did not finish within {seconds:g} s" if late else f"the verifier did not finish: {reason}"


def _unverified(error: str, report: GateReport) -> VerificationResult:
    return VerificationResult(False, None, [error], list(report.checks_passed), Ground.VERIFIER, report)
