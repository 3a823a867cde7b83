"""Prepares the start of the Claude CLI: environment, arguments, files and mounts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from api_client.contract.interruption import Interruption
from api_client.contract.session_paths import delivery_name
from api_client.contract.settings import Settings
from worker.files.safe_io import open_folder, read_file
from worker.runners import approval_client, tool_gate
from worker.runners.approval_server import build_tool_orders, find_question
from worker.runners.base import Order
from worker.runners.claude import hooks
from worker.runners.claude.answer_text import clean_text
from worker.runners.claude.claude_models import allowed_models
from worker.runners.claude.cli_sessions import _SETTINGS, ASKED, QUESTION, TOOL_ORDERS, USER_SETTINGS, BaseSession
from worker.runners.claude.cli_transcript import MAX_TRANSCRIPT
from worker.runners.claude.hooks import TOOL_HOOK
from worker.runners.guidance import link_skills, readable_paths
from worker.runners.guidance import read_instructions as read_all_instructions
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.bubblewrap import PROXY_URL, SandboxMount
from worker.runners.sandbox.destinations import AllowedDestinations, Upstream
from worker.runners.sandbox.launch import TOOLS_SERVER, TOOLS_URL, Launch, build_environment
from worker.runners.sandbox.resource_usage import ResourceLimits

READING_TOOLS = ("Read", "Glob", "Grep")
#: Default address of the Messages API, and the paths that the CLI uses.
_DEFAULT_API = "https://api.anthropic.com"
_PATHS = frozenset({"/", "/v1/messages", "/v1/messages/count_tokens"})
_API_KEY = "ANTHROPIC_API_KEY"
#: The CLI's tool that loads a skill, and where it finds skills below HOME.
_SKILL_TOOL, _SKILLS = "Skill", Path(".claude/skills")


def build_cli_environment(settings: Settings, home: Path) -> dict[str, str]:
    """Return the CLI's environment variables. Only configured variables are copied from the worker."""
    own = {
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
        # "@/etc/passwd" in a message would silently add that file to the request.
        "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
        # git's status shows nothing of the project here, but names files of other sessions.
        "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS": "1",
        "CLAUDE_CODE_GIT_CHECK_ONLY_IN_REPOSITORY": "1",
        # A run ends with its answer; no background work may continue.
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        # Retries belong to the queue, where they are visible and hold no slot.
        "CLAUDE_CODE_MAX_RETRIES": "1",
        # Bun's timed garbage collection takes a third of a chat's CPU time.
        "BUN_GC_TIMER_DISABLE": "1",
        # Bun's second compiler costs more CPU time than it saves.
        "BUN_JSC_useDFGJIT": "0",
        "ANTHROPIC_BASE_URL": settings.claude_api_url,
        _key_name(settings.claude_api_key): settings.claude_api_key,
    }
    return build_environment(home, settings.claude_env, own)


def allowed_destinations(settings: Settings, option: str) -> AllowedDestinations:
    """Return the hosts that the CLI may reach: the model service, and the hosts in the settings."""
    key = settings.claude_api_key
    ours: dict[bytes, str] = {}
    if key:
        bearer = _key_name(key) != _API_KEY
        ours = {b"x-api-key": "" if bearer else key, b"authorization": f"Bearer {key}" if bearer else ""}
    models, url = allowed_models(option, settings), settings.claude_api_url or _DEFAULT_API
    upstream = Upstream(url=url, paths=_PATHS, ours=ours, models=models, allows=settings.proxy_allows)
    return AllowedDestinations.from_settings(upstream, settings, settings.claude_env)


def proxy_environment(settings: Settings) -> dict[str, str]:
    """Return variables that make the CLI use the model proxy, with a placeholder as the API key."""
    key = settings.claude_api_key
    # The CLI requires a key, and derives its type from the prefix.
    placeholder = (
        {_key_name(key): f"{key[:13]}-in-the-sandbox" if key.startswith("sk-ant-") else "in-the-sandbox"} if key else {}
    )
    return {"ANTHROPIC_BASE_URL": PROXY_URL, **placeholder}


def _key_name(key: str) -> str:
    """Return the environment variable for a key, because subscription tokens and API keys use different variables."""
    return "CLAUDE_CODE_OAUTH_TOKEN" if key.startswith("sk-ant-oat") else _API_KEY


def build_cli_arguments(
    settings: Settings, order: Order, settings_file: Path, session: str, base: BaseSession
) -> list[str]:
    """Return the command-line arguments of the CLI, without the prompt, because arguments have a size limit."""
    found = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
    # Only user settings (our empty HOME) and ours: settings that an agent writes into its folder are ignored.
    found += ["--setting-sources", "user", "--settings", str(settings_file), "--strict-mcp-config"]
    if order.tool_access:
        found += ["--mcp-config", json.dumps({"mcpServers": {TOOLS_SERVER: {"type": "http", "url": TOOLS_URL}}})]
    # Deny what is not explicitly allowed: nobody could be asked.
    mode = "dontAsk" if order.read_only else settings.claude_permission_mode
    tools = READING_TOOLS if order.read_only else settings.claude_tools
    if settings.skills and not order.read_only and "default" not in tools:
        tools = (*tools, _SKILL_TOOL)
    found += ["--permission-mode", mode, "--tools", ",".join(tools)]
    if order.option:
        found += ["--model", order.option]
    if base.transcript is not None:
        found += ["--resume", str(base.transcript), "--fork-session"]
    return [*found, "--session-id", session]


def build_launch(
    settings: Settings,
    program: str,
    order: Order,
    home: Path,
    session: str,
    base: BaseSession,
    stdin: bytes | None,
    more: Sequence[str] = (),
) -> Launch:
    """Return the launch description that starts the CLI for an order whose folders are prepared."""
    file = home / _SETTINGS
    return Launch(
        argv=[program, *build_cli_arguments(settings, order, file, session, base), *more],
        env=build_cli_environment(settings, home),
        stdin=stdin,
        binds=sandbox_binds(settings, order, Path(program), file, base),
        sandbox=settings.sandbox,
        needs_sandbox=True,
        bounds=ResourceLimits.from_settings(settings),
        writes=[home],
        outbound=allowed_destinations(settings, order.option),
        proxy_env=proxy_environment(settings),
    )


def prepare_files(order: Order, home: Path, settings: Settings) -> Path:
    """Create a run's HOME and its files, and return the path of the CLI's settings file.

    HOME is outside the agent's working folder. Raises ``OSError``, and ``SettingsError`` for skills and instructions.
    """
    marks = order.directory / "marks"
    for folder in (marks, home / ".claude", home / "tmp"):
        folder.mkdir(parents=True)
    write_instructions(order, home, settings)
    if not order.read_only:
        link_skills(settings, home / _SKILLS)
    if order.tools:
        content = build_tool_orders(order, sandboxed=bubblewrap.uses_sandbox(settings.sandbox)) | {
            "question": str(home / QUESTION)
        }
        (home / TOOL_ORDERS).write_text(json.dumps(content), encoding="utf-8")
    (home / USER_SETTINGS).write_text("{}", encoding="utf-8")
    path = home / _SETTINGS
    path.write_text(build_settings(order, home, settings), encoding="utf-8")
    return path


def write_instructions(order: Order, home: Path, settings: Settings) -> None:
    """Write the session's CLAUDE.md and the model's instruction files, if any, into the HOME of the CLI."""
    if text := read_all_instructions(order, settings):
        (home / ".claude" / "CLAUDE.md").write_text(text, encoding="utf-8")


def build_settings(order: Order, home: Path, settings: Settings) -> str:
    """Return the content of the CLI's settings file for a run, with its hooks and permissions."""
    marks = order.directory / "marks"
    writing = hooks.edit_rules(writable_paths(settings))
    gateway = [f"mcp__{TOOLS_SERVER}"] if order.tool_access else []  # the gateway decides about each call
    loading = [_SKILL_TOOL] if settings.skills else []
    return hooks.build_settings(
        marks,
        readable=[order.directory]
        if order.read_only
        else [*readable_paths(settings), *readable_files(order), *([home / _SKILLS] if settings.skills else [])],
        protected=[marks, home],
        allowed=() if order.read_only else [*writing, *settings.claude_allowed_tools, *gateway, *loading],
        tools=home / TOOL_ORDERS if order.tools else None,
    )


def find_deferred_question(order: Order, result: Mapping[str, Any]) -> Interruption | None:
    """Return the question about the tool call at which the CLI stopped for a person's decision, or None."""
    call = result.get("deferred_tool_use")
    if not isinstance(call, dict) or not isinstance(call.get("input"), dict):
        return None
    return find_question(order, clean_text(call.get("name")), call["input"], clean_text(call.get("id")))


def adapt_base(order: Order, base: BaseSession, home: Path) -> BaseSession:
    """Return the session to continue, with its transcript adapted to this run's folder. Raises ``OSError``."""
    answered = order.interruption
    if answered is None or base.transcript is None:
        return base
    then = delivery_name(order.turn_id, order.attempt, answered.delivery).encode()
    moved = re.sub(re.escape(then) + rb"(?!\d)", order.directory.name.encode(), read_base(base))
    path = home / ASKED
    path.write_bytes(moved)
    return replace(base, transcript=path)


def read_base(base: BaseSession) -> bytes:
    """Return the content of the transcript that a run continues, or empty bytes for a new session."""
    if base.transcript is None:
        return b""
    with open_folder(base.transcript.parent) as folder:
        return read_file(base.transcript.name, folder, MAX_TRANSCRIPT)


def read_instructions(home: Path) -> str:
    """Return the content of the CLAUDE.md in the CLI's HOME, or an empty string if there is none."""
    try:
        return (home / ".claude" / "CLAUDE.md").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def sandbox_binds(
    settings: Settings, order: Order, program: Path, settings_file: Path, base: BaseSession
) -> list[SandboxMount]:
    """Return the files and folders to mount in the CLI's sandbox. Later mounts hide earlier mounts."""
    found = [SandboxMount(program), SandboxMount(program.resolve()), SandboxMount(hooks.HOOK)]
    if not order.read_only:
        found += [SandboxMount(path) for path in [*readable_paths(settings), *readable_files(order)]]
        found += [SandboxMount(path, writable=True) for path in writable_paths(settings)]
    home = settings_file.parent
    gate = Path(tool_gate.__file__)
    hooked = (TOOL_HOOK, gate, gate.with_name("tool_rules"), Path(approval_client.__file__), home / TOOL_ORDERS)
    tools = [SandboxMount(path) for path in hooked] if order.tools else []
    found += [
        SandboxMount(home, writable=True),
        SandboxMount(settings_file),
        SandboxMount(home / USER_SETTINGS),
        *tools,
        SandboxMount(order.directory / "marks", writable=True),
    ]
    if base.transcript is not None:
        found.append(SandboxMount(base.transcript))
    return found


def writable_paths(settings: Settings) -> list[Path]:
    """Return the project folders that the settings let agents write. Skip folders that are links."""
    paths = [settings.root / name for name in settings.writable]
    return [path for path in paths if path.is_dir() and path.resolve() == path]


def readable_files(order: Order) -> list[Path]:
    """Return the session's files and folders that the agent may read, besides the run's own folder."""
    return [*(order.workdir / name for name in ("context", "input", "feedback.md")), *order.inputs]
