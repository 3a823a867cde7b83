"""Runs and verifies one phase in one process (ADR-025)."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from api_client.contract.completion import Verdict
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, load_settings
from worker.agents.runner_lookup import build_runner
from worker.files.folder_trees import remove_tree
from worker.runners.base import AgentEvent, Order, Runner, RunResult, Stop
from worker.verification.feedback_file import FeedbackChannel
from worker.verification.gates.output_tree import OutputTooLarge, copy_files, scan_tree
from worker.verification.gates.stop import run_in_thread
from worker.verification.phase_loop import PhaseRun, verify_with_retries
from worker.verification.result import VerificationResult
from worker.verification.sub_agent import SubAgentVerifier, VerificationScope

OnOutput = Callable[[str], None]

PROMPT = "Carry out the phase that CLAUDE.md describes. Write all results below output/."


async def run_with_verification(
    phase_dir: Path,
    quality_gate: dict[str, Any],
    max_retries: int | None = None,
    on_output: OnOutput | None = None,
    *,
    prompt: str = PROMPT,
    expected_files: list[str] | None = None,
    model: str = "",
    verifier: SubAgentVerifier | None = None,
    settings: Settings | None = None,
    runner: tuple[Runner, str] | None = None,
) -> RunResult:
    """Run the agent of a phase until its output is verified, and return the result of the verified run.

    Each rejection goes to ``feedback.md`` and into the next prompt. The verified output becomes ``phase_dir/output``.

    Args:
        max_retries: most runs; default: the verifier's limit.
        on_output: called with the agent's text, in another thread.
        expected_files: required files, relative to ``output/``.
        runner: a runner and its option, used instead of the model's.

    Raises:
        PhaseVerificationFailed: no run was verified.
        PhaseError: the gate or a path is invalid.
        SettingsError: the model is unknown.
        ValueError: ``max_retries`` is less than 1.
    """
    settings = settings or load_settings()
    model = model or next(iter(settings.models))
    runs = _PhaseRuns(
        phase_dir, prompt, settings.for_model(model), model, runner or _build_model_runner(model, settings), on_output
    )
    verifier = verifier or SubAgentVerifier(settings=settings)

    async def verify(attempt: int) -> VerificationResult:
        on = VerificationScope(
            turn_id=runs.name, attempt=attempt, delivery=attempt, model=model, locale=settings.locale
        )
        return await verifier.verify_phase(
            runs.latest / "output", quality_gate, expected_files, description=prompt, verifying=on
        )

    verified = await verify_with_retries(
        runs.run_attempt,
        verify,
        phase_id=phase_dir.name,
        feedback=FeedbackChannel(phase_dir, locale=settings.locale),
        max_retries=verifier.max_retries if max_retries is None else max_retries,
    )
    runs.publish_output()
    return verified.value


def _build_model_runner(model: str, settings: Settings) -> tuple[Runner, str]:
    if model not in settings.models:
        raise SettingsError([f"model {model!r} is not in HELIX_MODELS ({', '.join(settings.models)})"])
    return build_runner(settings.models[model])


class _PhaseRuns:
    def __init__(
        self,
        phase_dir: Path,
        prompt: str,
        settings: Settings,
        model: str,
        runner: tuple[Runner, str],
        on_output: OnOutput | None,
    ) -> None:
        self.name = f"phase-{secrets.token_hex(8)}"
        self.latest = phase_dir
        self._phase_dir = phase_dir
        self._prompt = prompt
        self._settings = settings
        self._model, (self._runner, self._option) = model, runner
        self._on_output = on_output
        self._session = ""
        phase_dir.mkdir(parents=True, exist_ok=True)

    async def run_attempt(self, attempt: int, feedback: str) -> PhaseRun[RunResult]:
        directory = self._phase_dir / "attempts" / f"{self.name}-{attempt}"
        (directory / "output").mkdir(parents=True)
        if attempt > 1:
            with contextlib.suppress(OutputTooLarge, OSError):  # start with an empty output
                copy_files(scan_tree(self.latest / "output"), directory / "output")
        self.latest = directory
        result = await run_in_thread(lambda stop: self._run_agent(attempt, feedback, directory, stop))
        self._session = result.agent_session or self._session
        completion = result.completion
        return PhaseRun(result, [] if completion.verdict is Verdict.COMPLETE else [completion.reason])

    def _run_agent(self, attempt: int, feedback: str, directory: Path, stop: Stop) -> RunResult:
        order = Order(
            turn_id=self.name,
            session_id=self._phase_dir.name,
            attempt=attempt,
            delivery=attempt,
            prompt=feedback or self._prompt,
            messages=({"role": "user", "content": self._prompt},),
            workdir=self._phase_dir,
            directory=directory,
            agent_session=self._session,
            model=self._model,
            option=self._option,
            deadline=time.monotonic() + self._settings.deadline_seconds,
            idle_seconds=self._settings.idle_seconds,
            kill_grace_seconds=self._settings.kill_grace_seconds,
            action_log=self._settings.action_log,
        )
        return self._runner.run(order, self._forward_output, stop)

    def _forward_output(self, event: AgentEvent) -> None:
        if self._on_output and event.kind == "output":
            self._on_output(event.text)

    def publish_output(self) -> None:
        """Replace the phase's ``output`` folder by the verified output, keeping a copy in the run's own folder."""
        output, fresh = self._phase_dir / "output", self._phase_dir / f".output-{self.name}"
        old = fresh.with_name(f"{fresh.name}-old")
        copy_files(scan_tree(self.latest / "output"), fresh)
        with contextlib.suppress(FileNotFoundError):
            output.replace(old)
        fresh.replace(output)
        remove_tree(old, ignore_errors=True)
