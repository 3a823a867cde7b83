"""Runs Codex: ``codex exec --json``, one process a run, in a fresh HOME with the session's state."""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract.settings import Settings
from worker.runners.codex.codex_events import CodexOutput
from worker.runners.guard import box
from worker.runners.programs.declaration import AgentProgram
from worker.runners.programs.runner import ProgramRunner, Run

_CONFIG = """\
model = "{model}"
model_provider = "helix"
approval_policy = "never"
check_for_update_on_startup = false
web_search = "disabled"

[analytics]
enabled = false

[model_providers.helix]
name = "helix"
base_url = "{url}"
wire_api = "responses"
env_key = "HELIX_AGENT_KEY"
# Retries are the queue's: there they cost no slot. And a stream that begins again would say its first half twice.
request_max_retries = 0
stream_max_retries = 0
"""
_PROGRAM = AgentProgram(
    program="codex",
    environment={"CODEX_HOME": "{home}/.codex", "HELIX_AGENT_KEY": "{key}"},
    files={".codex/config.toml": _CONFIG},
    instructions=".codex/AGENTS.md",
    state=(".codex/sessions",),
    api="responses",
)


class CodexRunner(ProgramRunner):
    """Runs Codex once. The model is after ``:`` in the model's runner, such as ``codex:gpt-5.1``."""

    name = "codex"

    def program(self, option: str, settings: Settings) -> AgentProgram:
        """The program of every run."""
        return _PROGRAM

    def model(self, option: str) -> str:
        """The model that its service is asked for."""
        return option

    def hear(self, run: Run) -> CodexOutput:
        """Return the reader of its output."""
        return CodexOutput(continues=bool(run.kept.session))

    def arguments(self, run: Run) -> Sequence[str]:
        """Return the command line. Our box is the sandbox where there is one: Codex cannot make its own in there."""
        sandbox = "read-only" if run.order.read_only else "workspace-write"
        if _boxed(run):
            sandbox = "danger-full-access"
        found = ["exec", "--json", "--skip-git-repo-check", "--sandbox", sandbox]
        for image in run.images:
            found += ["--image", str(image)]
        return [*found, *(["resume", run.kept.session] if run.kept.session else []), "-"]


def _boxed(run: Run) -> bool:
    try:
        return box.level(run.settings.box, wanted=True).kind != "none"
    except box.BoxError:
        return False  # it is not started at all
