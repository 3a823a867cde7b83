"""Lets validation rules run programs in the sandbox and ask models."""

from __future__ import annotations

import functools
import secrets
import time
from pathlib import Path, PurePosixPath

import structlog

from api_client.contract.completion import Verdict
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, load_settings
from api_client.contract.usage import Usage
from worker.agents.runner_lookup import build_runner
from worker.enforcement.validator_process import lift_memory_limit
from worker.enforcement.validators import services
from worker.enforcement.validators.services import CannotRun, ModelPrompt, ModelReply, ProgramResult, ValidationProgram
from worker.files.folder_trees import temporary_folder
from worker.runners.base import Order, RunResult
from worker.runners.sandbox.bubblewrap import SandboxMount
from worker.verification.gates.gate_program import ProgramLimits, run_program
from worker.verification.gates.gate_sandbox import GateSandbox
from worker.verification.gates.stop import StopRequest

__all__ = ["LocalServices", "provide_services"]


log = structlog.get_logger()


class LocalServices:
    """Runs programs and asks models on this machine on behalf of validation rules. Thread-safe."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._given = settings

    @functools.cached_property
    def _settings(self) -> Settings:
        return self._given or load_settings()

    def run_program(self, program: ValidationProgram) -> ProgramResult:
        """Run a rule's program, in the sandbox unless the settings turn it off, and return the result.

        Raises ``CannotRun``.
        """
        fence = GateSandbox.from_settings(self._settings)
        if self._settings.sandbox != "off" and (problem := fence.obstacle or fence.shared):
            raise CannotRun(f"no sandbox, {problem}")
        with temporary_folder("rule-") as folder:
            work = folder / "files"
            work.mkdir()
            for path, text in program.files.items():
                _write_input(work, path, text)
            limits = ProgramLimits(seconds=program.seconds, memory_mb=program.memory_mb)
            with lift_memory_limit():
                ran = run_program(
                    program.argv,
                    work,
                    limits=limits,
                    stdin=program.stdin.encode("utf-8", "replace"),
                    mark=f"rule-{secrets.token_hex(8)}",
                    home=folder / "home",
                    fence=fence,
                    own=SandboxMount(folder, writable=True),
                )
        if ran.error or ran.cause or ran.code is None:
            raise CannotRun(f"{program.argv[0]}: {ran.error or ran.problem or 'it left no exit code'}")
        return ProgramResult(ran.code, ran.lines)

    def ask_model(self, question: ModelPrompt) -> ModelReply:
        """Ask a configured model once, without write access to files, and return the reply. Raises ``CannotRun``."""
        settings = self._settings
        if question.model not in settings.models:
            known = ", ".join(settings.models)
            raise CannotRun(f"the model {question.model!r} is not in HELIX_MODELS ({known})")
        try:
            runner, option = build_runner(settings.models[question.model])
        except SettingsError as error:
            raise CannotRun(str(error)) from None
        with temporary_folder("judge-") as folder:
            (folder / "run" / "output").mkdir(parents=True)
            order = Order(
                turn_id=f"judge-{secrets.token_hex(8)}",
                session_id="",
                attempt=1,
                delivery=1,
                prompt=question.prompt,
                messages=({"role": "user", "content": question.prompt},),
                workdir=folder,
                directory=folder / "run",
                model=question.model,
                option=option,
                locale="en",
                deadline=time.monotonic() + question.seconds,
                idle_seconds=question.seconds,
                kill_grace_seconds=settings.kill_grace_seconds,
                read_only=True,
            )
            with lift_memory_limit():
                ran = runner.run(order, lambda _event: None, StopRequest())
        if ran.completion.verdict is not Verdict.COMPLETE:
            raise CannotRun(f"{question.model} gave no verdict: {ran.completion.reason}")
        return _build_reply(ran)


def provide_services(settings: Settings | None = None) -> None:
    """Allow the rules in this process to run programs and ask models on this machine."""
    services.provide_services(LocalServices(settings))


def _build_reply(ran: RunResult) -> ModelReply:
    amounts = {name: ran.usage.get(name) for name in ("input_tokens", "output_tokens", "cost_usd")}
    known = {name: value for name, value in amounts.items() if isinstance(value, int | float) and value >= 0}
    spent = Usage(
        input_tokens=int(known.get("input_tokens", 0)),
        output_tokens=int(known.get("output_tokens", 0)),
        cost_usd=float(known.get("cost_usd", 0.0)),
    )
    return ModelReply(text=ran.text, spent=spent)


def _write_input(folder: Path, path: str, text: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        return
    try:
        target = folder.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", errors="replace", newline="")
    except OSError as error:  # the name is too long, or a file is where a folder is needed
        log.warning("rule.file_left_out", path=path[:200], reason=str(error)[:200])
