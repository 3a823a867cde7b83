"""``turns doctor``: what is wrong with this installation, said before a turn finds out."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, load
from worker.cli.finding import Finding, State, tell
from worker.cli.output import json_option

#: The version whose endings were measured (docs/claude-cli.md).
MEASURED = "2.1.329"

#: Nothing listens there: the CLI starts, runs its hooks, and fails without asking anybody.
_NOWHERE = "http://127.0.0.1:9"
_SECONDS = 60.0

_UNBOXED = "install bubblewrap (Debian: apt-get install bubblewrap); see docs/security.md"


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Look for what is wrong: settings, store, session folder, and the agent's CLI with its hooks.

    Starts the Claude CLI once, without any model call. Exit codes: 0 nothing wrong, 1 something is.
    """
    tell(examine(), as_json=as_json)


def examine() -> Iterator[Finding]:
    """Every finding, in the order in which one would mend them."""
    try:
        settings = load()
    except SettingsError as error:
        for problem in error.problems:
            yield Finding("settings", "wrong", problem, "see `turns config` and docs/settings.md")
        return
    yield Finding("settings", "ok", f"HELIX_ROOT is {settings.root}")
    yield store(settings)
    yield sessions(settings)
    yield box(settings)
    if any(runner.partition(":")[0] == "claude_cli" for runner in settings.models.values()):
        yield from claude(settings)
    else:
        yield Finding("claude", "ok", "no model of HELIX_MODELS uses claude_cli: not looked at")


def store(settings: Settings) -> Finding:
    """Whether the store answers."""
    from redis import Redis
    from redis.exceptions import RedisError

    if not settings.store_url:
        return Finding("store", "warning", "no store is set and none runs here", "set REDIS_URL, or run `turns up`")
    try:
        with Redis.from_url(settings.redis_url, socket_timeout=3, socket_connect_timeout=3) as redis:
            redis.ping()
    except (RedisError, OSError, ValueError) as error:
        return Finding(
            "store", "wrong", f"does not answer: {type(error).__name__}", "is REDIS_URL right? is it running?"
        )
    return Finding("store", "ok", "answers")


def sessions(settings: Settings) -> Finding:
    """Whether sessions can be written: their folder, or the nearest one above it that exists."""
    folder = settings.sessions_dir
    while not folder.exists():
        folder = folder.parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return Finding("sessions", "ok", f"{settings.sessions_dir} can be written")
    return Finding("sessions", "wrong", f"{folder} cannot be written", "let the workers' user write there")


def claude(settings: Settings) -> Iterator[Finding]:
    """The Claude CLI: there, of a known version, allowed to run, and its hooks at work."""
    from worker.runners.claude_command import find_program

    try:
        program = find_program(settings)
    except SettingsError as error:
        yield Finding("claude", "wrong", error.problems[0], "install it, or set HELIX_CLAUDE_PATH to where it is")
        return
    yield version(program)
    allowed = rights(settings, os.geteuid())
    yield allowed
    yield key(settings)
    if allowed.state == "ok":
        yield hooks(settings)


def version(program: str) -> Finding:
    """Whether the CLI's version is the one whose endings were measured."""
    try:
        with tempfile.TemporaryDirectory() as home:
            env = {"HOME": home, "PATH": os.environ.get("PATH", os.defpath), "DISABLE_AUTOUPDATER": "1"}
            told = subprocess.run([program, "--version"], env=env, capture_output=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("claude version", "wrong", f"{program} does not run: {error}", "install it anew")
    found = told.decode("utf-8", "replace").strip() or "nothing"
    if found.split()[0] == MEASURED:
        return Finding("claude version", "ok", f"{program}: {found}")
    fix = f"install {MEASURED}, or measure this one: CLAUDE_CLI={program} python -m tests.claude"
    return Finding("claude version", "warning", f"{program} says {found}; measured was {MEASURED}", fix)


def box(settings: Settings) -> Finding:
    """What agents run in, and what keeps them from running in a box."""
    from worker.runners.box import obstacle

    real = any(runner.partition(":")[0] == "claude_cli" for runner in settings.models.values())
    if settings.box == "off":
        return Finding("box", "warning" if real else "ok", "off: agents have the rights of the worker's user", _UNBOXED)
    if problem := obstacle():
        wrong: State = "wrong" if settings.box == "required" else "warning" if real else "ok"
        return Finding("box", wrong, f"none, HELIX_BOX={settings.box}: {problem}", _UNBOXED)
    who = "every agent runs" if settings.box == "required" else "claude_cli runs"
    return Finding("box", "ok", f"{who} in a bubblewrap box; the network is not shut off (docs/security.md)")


def key(settings: Settings) -> Finding:
    """Whether the CLI is given something to log in with."""
    if settings.claude_api_key:
        return Finding("claude key", "ok", "HELIX_CLAUDE_API_KEY is set")
    if given := [name for name in settings.claude_env if os.environ.get(name)]:
        return Finding("claude key", "ok", f"by HELIX_CLAUDE_ENV the agent is given {', '.join(given)}")
    fix = "set HELIX_CLAUDE_API_KEY; a login in the user's home directory is not used"
    return Finding("claude key", "warning", "the agent gets no key", fix)


def rights(settings: Settings, user: int) -> Finding:
    """Whether the CLI takes its permission mode from this user."""
    if user == 0 and settings.claude_permission_mode == "bypassPermissions":
        fix = "run the workers as another user, or set HELIX_CLAUDE_PERMISSION_MODE=acceptEdits"
        return Finding("claude rights", "wrong", "the CLI refuses bypassPermissions to root", fix)
    return Finding("claude rights", "ok", f"permission mode {settings.claude_permission_mode}")


def hooks(settings: Settings) -> Finding:
    """Whether the hooks of a run are executed: without them no run is ever complete."""
    from worker.runners.base import Order
    from worker.runners.claude_cli import ClaudeCliRunner
    from worker.runners.processes import Processes

    class Never:
        reason = ""
        lease_ends = time.monotonic() + _SECONDS

    agents = Processes()
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
            completion = ClaudeCliRunner(agents, nowhere).run(order, lambda _: None, Never()).completion
    finally:
        agents.stop()
    return judge_hooks(completion.evidence.get("hooks", []), completion.reason)


def judge_hooks(ran: list[str], reason: str) -> Finding:
    """What the hooks of a run that reached no service tell. Pure."""
    missing = [event for event in ("SessionStart", "SessionEnd") if event not in ran]
    if not missing:
        return Finding("claude hooks", "ok", "SessionStart and SessionEnd of our own run left their marks")
    fix = "look for disableAllHooks or allowManagedHooksOnly in the machine's managed settings (/etc/claude-code)"
    return Finding("claude hooks", "wrong", f"no mark of {' and '.join(missing)}: {reason}", fix)
