"""The start of the Claude CLI: its program, environment, command line, files, and what it sees in a box."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from api_client.contract.settings import Settings
from worker.runners.base import Order
from worker.runners.claude import hooks as claude_hooks
from worker.runners.claude.cli_sessions import Base
from worker.runners.guard.box import PORT, Bind
from worker.runners.guard.outbound import Outbound, Upstream

#: The tools of a run that may only read.
READING_TOOLS = ("Read", "Glob", "Grep")
#: Where the CLI finds the Messages API when nobody says otherwise, and all it asks for there.
_DEFAULT_API = "https://api.anthropic.com"
_PATHS = frozenset({"/", "/v1/messages", "/v1/messages/count_tokens"})
_API_KEY = "ANTHROPIC_API_KEY"


def environment(settings: Settings, home: Path) -> dict[str, str]:
    """The agent's environment, built from scratch: nothing of the worker's own environment."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TZ": os.environ.get("TZ", ""),
        "TMPDIR": str(home / "tmp"),
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
        # "@/etc/passwd" in a message would put that file into the request, without asking anybody.
        "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
        # A run ends with its answer; nothing goes on in the background.
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        # Retries are the queue's: there they cost no slot, and are seen.
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "ANTHROPIC_BASE_URL": settings.claude_api_url,
        _key_name(settings.claude_api_key): settings.claude_api_key,
        **{name: os.environ.get(name, "") for name in settings.claude_env},
    }
    return {name: value for name, value in env.items() if value}


def outbound(settings: Settings) -> Outbound:
    """Return what the CLI may reach from a box: the Messages API, and the hosts that the installation names."""
    key = settings.claude_api_key
    ours: dict[bytes, str] = {}
    if key:
        bearer = _key_name(key) != _API_KEY
        ours = {b"x-api-key": "" if bearer else key, b"authorization": f"Bearer {key}" if bearer else ""}
    given = {name: os.environ.get(name, "") for name in settings.claude_env}
    return Outbound(
        upstream=Upstream(url=settings.claude_api_url or _DEFAULT_API, paths=_PATHS, ours=ours),
        hosts=settings.box_hosts,
        proxy=given.get("HTTPS_PROXY") or given.get("https_proxy") or "",
        ca=given.get("NODE_EXTRA_CA_CERTS", ""),
    )


def cut_environment(settings: Settings) -> dict[str, str]:
    """Return what differs in a box with its own network: the API is at its door, and the key stays outside."""
    key = settings.claude_api_key
    # The CLI wants one, and takes its kind from how it begins.
    placeholder = (
        {_key_name(key): f"{key[:13]}-in-the-box" if key.startswith("sk-ant-") else "in-the-box"} if key else {}
    )
    return {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{PORT}", **placeholder}


def _key_name(key: str) -> str:
    """A subscription's token (``claude setup-token``) and an API key have their own names."""
    return "CLAUDE_CODE_OAUTH_TOKEN" if key.startswith("sk-ant-oat") else _API_KEY


def arguments(settings: Settings, order: Order, settings_file: Path, session: str, base: Base) -> list[str]:
    """The command line, without the program. The prompt is on standard input: an argument may hold 128 kB only."""
    found = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
    # Settings of the user, here our empty HOME, and ours: what an agent writes into its folder is not honoured.
    found += ["--setting-sources", "user", "--settings", str(settings_file), "--strict-mcp-config"]
    # What is not allowed outright is denied: nobody is there to ask.
    mode = "dontAsk" if order.read_only else settings.claude_permission_mode
    tools = READING_TOOLS if order.read_only else settings.claude_tools
    found += ["--permission-mode", mode, "--tools", ",".join(tools)]
    if order.option:
        found += ["--model", order.option]
    if base.transcript is not None:
        found += ["--resume", str(base.transcript), "--fork-session"]
    return [*found, "--session-id", session]


def prepare(order: Order, home: Path, settings: Settings) -> Path:
    """Make the run's HOME with the session's CLAUDE.md, the folder for marks, and the settings file; returns that file.

    HOME and settings lie outside the folder the agent works in.

    Raises:
        OSError: they cannot be written.
    """
    marks = order.directory / "marks"
    for folder in (marks, home / ".claude", home / "tmp"):
        folder.mkdir(parents=True)
    memory = order.workdir / "CLAUDE.md"
    if memory.is_file() and not memory.is_symlink():
        shutil.copyfile(memory, home / ".claude" / "CLAUDE.md")
    path = home / "helix-settings.json"
    writing = claude_hooks.edit_rules(writable_paths(settings))
    content = claude_hooks.settings(
        marks,
        readable=[order.directory]
        if order.read_only
        else [*claude_hooks.readable_entries(settings.root), *_readable(order)],
        protected=[marks, home],
        allowed=() if order.read_only else [*writing, *settings.claude_allowed_tools],
    )
    path.write_text(content, encoding="utf-8")
    return path


def instructions(home: Path) -> str:
    """Return what ``prepare`` gave the CLI as its CLAUDE.md. The CLI adds its own instructions to that, unseen."""
    try:
        return (home / ".claude" / "CLAUDE.md").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def binds(settings: Settings, order: Order, program: Path, settings_file: Path, base: Base) -> list[Bind]:
    """Return what the CLI sees in a box besides the system and the delivery's folder; the later of two counts.

    Of a program only its one file: what lies beside it may be anything.
    """
    found = [Bind(program), Bind(program.resolve()), Bind(claude_hooks.HOOK)]
    if not order.read_only:
        found += [Bind(path) for path in [*claude_hooks.readable_entries(settings.root), *_readable(order)]]
        found += [Bind(path, writable=True) for path in writable_paths(settings)]
    home = settings_file.parent
    found += [Bind(home, writable=True), Bind(settings_file), Bind(order.directory / "marks", writable=True)]
    if base.transcript is not None:
        found.append(Bind(base.transcript))
    return found


def writable_paths(settings: Settings) -> list[Path]:
    """Folders of the project that agents may write, as the installation says; links are not followed."""
    paths = [settings.root / name for name in settings.writable]
    return [path for path in paths if path.is_dir() and path.resolve() == path]


def _readable(order: Order) -> list[Path]:
    """Return what of its session, and of its owner's earlier phases, an agent may read."""
    return [*(order.workdir / name for name in ("context", "input", "feedback.md")), *order.inputs]
