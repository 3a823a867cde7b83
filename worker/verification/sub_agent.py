"""The independent agent that verifies a phase's output (ADR-025)."""

from __future__ import annotations

import functools
import math
import secrets
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from api_client.contract.completion import Completion
from api_client.contract.completion import Verdict as Ended
from api_client.contract.errors import SettingsError
from api_client.contract.phase import Phase
from api_client.contract.settings import Settings, load_settings
from worker.agents.runner_lookup import build_runner
from worker.runners.base import Emit, Order, Runner, RunResult, Stop, reads_files
from worker.verification.gates import GateReport, GateSettings, run_gates
from worker.verification.gates.gate_sandbox import GateSandbox
from worker.verification.gates.output_tree import OutputTooLarge, OutputTree, read_tree_file, scan_tree, temporary_copy
from worker.verification.gates.stop import StopRequest, run_in_thread
from worker.verification.result import ResultGround, VerificationResult, build_gates_result
from worker.verification.verdict import VerdictError, read_verdict
from worker.verification.verifier_prompt import MAX_SHOWN, build_verifier_prompt

log = structlog.get_logger()

_PLAIN = "Produce the expected files so that the quality gate is met."


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationScope:
    """Identifies the phase's run to verify, and limits the verification.

    Attributes:
        model: the phase's model, used if ``HELIX_VERIFIER_MODEL`` is empty.
        stop: stops gates and verifier when its reason is set.
        scratch: folder for copies; None: the system's temporary folder.
        fence: sandbox of the gates' programs; None: the sandbox of the settings.
    """

    turn_id: str = field(default_factory=lambda: f"phase-{secrets.token_hex(8)}")
    session_id: str = ""
    attempt: int = 1
    delivery: int = 1
    model: str = ""
    stop: Stop = field(default_factory=StopRequest)
    deadline: float = math.inf
    locale: str = "en"
    scratch: Path | None = None
    emit: Emit | None = None
    fence: GateSandbox | None = None

    def gate_settings(self, fence: GateSandbox) -> GateSettings:
        """Return the settings for running the phase's quality gates in a sandbox."""
        return GateSettings(
            stop=self.stop,
            deadline=self.deadline,
            mark=f"{self.turn_id}-gates.{self.attempt}.{self.delivery}",
            locale=self.locale,
            scratch=self.scratch,
            fence=fence,
        )


class SubAgentVerifier:
    """Verifies the output of phases with deterministic gates and an independent agent. Thread-safe."""

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
        return self._given or load_settings()

    async def verify_phase(
        self,
        phase_output: Path,
        quality_gate: dict[str, Any],
        expected_files: list[str] | None = None,
        *,
        description: str = "",
        verifying: VerificationScope | None = None,
    ) -> VerificationResult:
        """Verify the output of a phase with gates and, if they pass, with an independent agent.

        ``quality_gate`` is the gate as in phases.yaml, for example ``{"type": "files_exist"}``; ``expected_files`` are
        relative to ``phase_output``. Cancelling stops both. Raises ``PhaseError`` with every problem.
        """
        said = {"id": "phase", "description": description or _PLAIN, "quality_gate": quality_gate or None}
        phase = Phase.from_dict({**said, "output_files": list(expected_files or ()), "verify_agent": True})
        outer = verifying or VerificationScope(locale=self._settings.locale)
        return await run_in_thread(
            lambda stop: self.verify_output(phase, phase_output, replace(outer, stop=stop)), outer.stop
        )

    def verify_output(
        self, phase: Phase, directory: Path, verifying: VerificationScope | None = None
    ) -> VerificationResult:
        on = verifying or VerificationScope()
        report = run_gates(phase, directory, **on.gate_settings(on.fence or GateSandbox.from_settings(self._settings)))
        if not (report.passed and phase.verify_agent):
            return build_gates_result(report)
        return self.ask_verifier(phase, directory, report, on)

    def ask_verifier(
        self, phase: Phase, directory: Path, report: GateReport, verifying: VerificationScope | None = None
    ) -> VerificationResult:
        """Ask an independent agent to assess an output that passed the gates, and return the result."""
        on = verifying or VerificationScope()
        passed = list(report.checks_passed)
        nonce = secrets.token_hex(16)
        try:
            ran = self._run_verifier(phase, directory, on, nonce, passed)
        except SettingsError as error:
            return _build_failure(f"the verifier is not set up: {error}", report)
        except Exception as error:
            log.exception("phase.verifier_failed", phase=phase.id, turn_id=on.turn_id)
            return _build_failure(f"the verifier failed: {type(error).__name__}: {error}", report)
        result = _read_result(ran, nonce, on.stop, self._settings.verifier_seconds)
        return replace(result, gates=report, checks_passed=[*passed, *result.checks_passed])

    def choose_model(self, phase_model: str = "") -> str:
        """Return the name of the model that verifies a phase, by default the model of the phase itself."""
        return self._model or self._settings.verifier_model or phase_model or next(iter(self._settings.models))

    def _choose_runner(self, phase_model: str) -> tuple[Runner, str]:
        if self._runner is not None:
            return self._runner
        model = self.choose_model(phase_model)
        if model not in self._settings.models:
            known = ", ".join(self._settings.models)
            raise SettingsError([f"the verifier's model {model!r} is not in HELIX_MODELS ({known})"])
        return build_runner(self._settings.models[model])

    def _run_verifier(
        self, phase: Phase, directory: Path, on: VerificationScope, nonce: str, passed: list[str]
    ) -> RunResult:
        runner, option = self._choose_runner(on.model or phase.model)
        try:
            tree = scan_tree(directory)
        except OutputTooLarge as error:
            raise OSError(f"the output is too large: {error}") from error
        shown, unseen = _select_texts(tree, phase)
        if unseen and not reads_files(runner):
            raise SettingsError([f"{runner.name} reads no files, and {unseen[0]} does not fit its prompt"])
        others = [path for path in tree.files if path not in shown]
        prompt = build_verifier_prompt(phase, nonce, files=shown, unseen=others, checked=passed, locale=on.locale)
        with temporary_copy(tree, on.scratch, "run/files") as fresh:
            (fresh / "run" / "output").mkdir()  # runners expect this folder; the verifier cannot write to it
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
                model=self.choose_model(on.model or phase.model),
                option=option,
                locale=on.locale,
                deadline=min(on.deadline, time.monotonic() + seconds),
                idle_seconds=seconds,
                kill_grace_seconds=self._settings.kill_grace_seconds,
                read_only=True,
            )
            return runner.run(order, on.emit or (lambda _event: None), on.stop)


def _select_texts(tree: OutputTree, phase: Phase) -> tuple[dict[str, str], list[str]]:
    shown: dict[str, str] = {}
    unseen, left = [], MAX_SHOWN
    expected = [path for path in phase.output_files if path in tree.files]
    for path in dict.fromkeys((*expected, *tree.files)):
        if tree.files[path] > left:
            unseen.append(path)
            continue
        try:
            text = read_tree_file(tree, path, left).decode("utf-8")
        except UnicodeDecodeError:
            continue  # named in the prompt instead
        shown[path] = text
        left -= len(text)
    return shown, unseen


def _read_result(ran: RunResult, nonce: str, stop: Stop, seconds: float) -> VerificationResult:
    completion = ran.completion
    facts: dict[str, Any] = {"completion": completion, "usage": ran.usage, "text": ran.text}
    if completion.verdict is not Ended.COMPLETE:
        if stop.reason:
            return VerificationResult(
                False, None, [f"the verifier was stopped: {stop.reason}"], [], ResultGround.STOPPED, **facts
            )
        return VerificationResult(
            False, None, [_explain_unfinished(completion, seconds)], [], ResultGround.VERIFIER, **facts
        )
    try:
        verdict = read_verdict(ran.text, nonce)
    except VerdictError as error:
        return VerificationResult(False, None, [str(error)], [], ResultGround.NO_VERDICT, **facts)
    return VerificationResult(
        verdict.success, verdict.feedback, verdict.errors, verdict.checks_passed, ResultGround.VERDICT, **facts
    )


def _explain_unfinished(completion: Completion, seconds: float) -> str:
    reason = completion.reason or completion.verdict.value
    late = completion.evidence.get("stopped") in {"deadline", "idle"} or reason == "the run's time was up"
    return f"the verifier did not finish within {seconds:g} s" if late else f"the verifier did not finish: {reason}"


def _build_failure(error: str, report: GateReport) -> VerificationResult:
    return VerificationResult(False, None, [error], list(report.checks_passed), ResultGround.VERIFIER, report)
