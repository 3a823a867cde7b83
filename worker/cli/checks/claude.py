"""Check the Claude CLI: installed, of a known version, with a key and working hooks."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from worker.cli.checks.finding import Finding
from worker.cli.checks.models import _read_version

#: The version whose behaviour was measured (docs/claude-cli.md).
MEASURED = "2.1.329"
#: An address without a service, where the CLI starts, runs its hooks and fails without a model call.
_NOWHERE = "http://127.0.0.1:9"
_SECONDS = 60.0


def check_claude(settings: Settings) -> Iterator[Finding]:
    """Check the Claude CLI's installation, version, key and hooks, and yield findings."""
    from worker.runners.claude.cli_program import find_program

    try:
        program = find_program(settings)
    except SettingsError as error:
        yield Finding("claude", "wrong", error.problems[0], "install it, or set HELIX_CLAUDE_PATH to where it is")
        return
    yield check_version(program)
    yield check_key(settings)
    yield from check_other_service(settings)
    yield check_hooks(settings)


def check_version(program: str) -> Finding:
    """Check that the installed Claude CLI has the version that this project was tested with."""
    try:
        found = _read_version(program)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("claude version", "wrong", f"{program} does not run: {error}", "install it again")
    if found.split()[0] == MEASURED:
        return Finding("claude version", "ok", f"{program}: {found}")
    fix = f"install {MEASURED}, or measure this one: CLAUDE_CLI={program} python -m tests.claude"
    return Finding("claude version", "warning", f"{program} says {found}; measured was {MEASURED}", fix)


def check_key(settings: Settings) -> Finding:
    """Check whether the settings give the agents credentials for the Claude CLI."""
    if settings.claude_api_key:
        return Finding("claude key", "ok", "HELIX_CLAUDE_API_KEY, or the key of the model's block, is set")
    if given := [name for name in settings.claude_env if os.environ.get(name)]:
        return Finding("claude key", "ok", f"by HELIX_CLAUDE_ENV the agent is given {', '.join(given)}")
    fix = "set HELIX_CLAUDE_API_KEY; a login in the user's home directory is not used"
    return Finding("claude key", "warning", "no key in this environment; the workers need one", fix)


def check_other_service(settings: Settings) -> Iterator[Finding]:
    """Report agents that use Bedrock or a similar service, whose calls bypass the model proxy."""
    used = [name for name in settings.claude_env if name.startswith("CLAUDE_CODE_USE_") and os.environ.get(name)]
    if used:
        said = f"{used[0]} is set: its model calls bypass the model proxy, so no end of them is certified"
        fix = "nothing, if the CLI's own evidence is enough for you (docs/certification.md)"
        yield Finding("claude call log", "warning", said, fix)
    if used and not settings.sandbox_hosts and settings.sandbox != "off":
        fix = "name its host in HELIX_SANDBOX_HOSTS, such as bedrock-runtime.eu-central-1.amazonaws.com"
        yield Finding(
            "claude service", "warning", f"{used[0]} is set, and a sandbox leads to the Messages API alone", fix
        )


def check_hooks(settings: Settings) -> Finding:
    """Run the Claude CLI once and check that its hooks work, because without hooks no run counts as complete."""
    from worker.runners.base import Order
    from worker.runners.claude.runner import ClaudeCliRunner
    from worker.runners.sandbox.bubblewrap import find_obstacle
    from worker.runners.sandbox.guard_client import AgentProcesses

    if settings.sandbox == "required" and (problem := find_obstacle()):
        said = f"not tried, because HELIX_SANDBOX=required lets no agent start: {problem}"
        return Finding("claude hooks", "wrong", said, "see the finding about the sandbox")

    class UnstoppedRun:
        reason = ""
        lease_ends = time.monotonic() + _SECONDS

    agents = AgentProcesses()
    try:
        with tempfile.TemporaryDirectory() as folder:
            workdir = Path(folder)
            (workdir / "run" / "output").mkdir(parents=True)
            order = Order(
                turn_id="doctor",
                session_id="doctor",
                attempt=1,
                delivery=os.getpid(),
                prompt="doctor",
                messages=(),
                workdir=workdir,
                directory=workdir / "run",
                deadline=time.monotonic() + _SECONDS,
            )
            nowhere = replace(settings, claude_api_url=_NOWHERE, claude_api_key="none")
            completion = ClaudeCliRunner(agents, nowhere).run(order, lambda _: None, UnstoppedRun()).completion
    finally:
        agents.stop_guard()
    return report_hooks(completion.evidence.get("hooks", []), completion.reason)


def report_hooks(ran: list[str], reason: str) -> Finding:
    """Return the finding about a test run of the Claude CLI. ``ran`` are the events whose hooks were called."""
    missing = [event for event in ("SessionStart", "SessionEnd") if event not in ran]
    if not missing:
        return Finding("claude hooks", "ok", "SessionStart and SessionEnd in our run left their marks")
    fix = "look for disableAllHooks or allowManagedHooksOnly in the machine's managed settings (/etc/claude-code)"
    return Finding("claude hooks", "wrong", f"no mark of {' and '.join(missing)}: {reason}", fix)
