"""The settings of agents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from api_client.contract.settings.declaration import SettingsGroup, declare_constant, declare_setting
from api_client.contract.settings.setting_values import (
    choice_parser,
    integer_parser,
    names,
    parse_path,
    parse_web_address,
)

_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]", re.ASCII)


def parse_hosts(value: str) -> tuple[str, ...]:
    """Parse comma-separated hosts in the form ``name:port``; the port defaults to 443."""
    hosts = []
    for item in names(value.lower()):
        bare = ":" not in item or item.endswith("]")
        host, _, port = (item, "", "443") if bare else item.rpartition(":")
        valid = port.isascii() and port.isdecimal() and 0 < int(port) < 65_536
        if not (_HOST.fullmatch(host) and valid):
            raise ValueError("must look like name,name:port,*.name or [::1]:port, without a scheme or a path")
        hosts.append(f"{host}:{port}")
    return tuple(hosts)


def parse_foreign_names(value: str) -> tuple[str, ...]:
    """Parse names of environment variables to pass to agents. Names of this program's settings are refused."""
    given = names(value)
    if any(name.startswith("HELIX_") or name == "REDIS_URL" for name in given):
        raise ValueError("must not name our settings: agents do not get them")
    return given


def parse_folders(value: str) -> tuple[str, ...]:
    """Parse comma-separated folders, given relative to HELIX_ROOT and located below it."""
    given = names(value)
    if any(Path(name).is_absolute() or ".." in Path(name).parts or Path(name) == Path() for name in given):
        raise ValueError("must be folders below HELIX_ROOT, such as adr,docs/decisions")
    return given


def parse_program(value: str) -> str:
    """Parse a program's name or path. Paths become absolute, and names are searched for on PATH later."""
    return parse_path(value) if "/" in value else value


@dataclass(frozen=True, kw_only=True)
class Agents(SettingsGroup):
    """Settings of agents: what they may read, write and reach, and how they call models."""

    sandbox: str = declare_setting(
        "auto",
        choice_parser("auto", "off", "required"),
        "bubblewrap around agents: auto: where it works, but openai_http, python, scripted; required: for all.",
        per_model=True,
    )
    sandbox_hosts: tuple[str, ...] = declare_setting(
        (),
        parse_hosts,
        "Hosts that an agent may reach from a sandbox besides its model: name[:port],... or *.name; port 443 if none.",
        per_model=True,
    )
    limit_memory_mb: int = declare_setting(
        4096,
        integer_parser(0, 10**7),
        "Memory an agent and all it starts may use together, in MiB; 0: no limit.",
        per_model=True,
    )
    writable: tuple[str, ...] = declare_setting(
        (),
        parse_folders,
        "Folders below HELIX_ROOT that claude_cli may write besides its own, such as adr.",
        per_model=True,
    )
    claude_path: str = declare_setting(
        "claude", parse_program, "The Claude Code CLI: a path, or a name on PATH (docs/claude-cli.md).", per_model=True
    )
    claude_api_url: str = declare_setting(
        "", parse_web_address, "Base address of the Messages API for the CLI; none: its own default."
    )
    claude_api_key: str = declare_setting(
        "",
        str,
        "API key, or `claude setup-token` token, for the CLI; a key of the worker's own is not used.",
        secret=True,
    )
    claude_env: tuple[str, ...] = declare_setting(
        (),
        parse_foreign_names,
        "Names of the worker's own environment that the CLI is given, such as HTTPS_PROXY,AWS_REGION.",
        per_model=True,
    )
    claude_tools: tuple[str, ...] = declare_setting(
        ("Read", "Write", "Edit", "Glob", "Grep"),
        names,
        "The CLI's built-in tools that exist at all; `default`: all.",
        per_model=True,
    )
    claude_allowed_tools: tuple[str, ...] = declare_setting(
        (),
        names,
        "Permission rules beyond reading the project and writing in the run's folder, such as WebSearch.",
        per_model=True,
    )
    agent_path: str = declare_setting(
        "",
        str,
        "The program of codex, acp and command agents, or the Python of your own; none: by name.",
        per_model=True,
    )
    agent_env: tuple[str, ...] = declare_setting(
        (),
        parse_foreign_names,
        "Names of the worker's own environment that these agents are given, such as HTTPS_PROXY.",
        per_model=True,
    )
    agent_allow: tuple[str, ...] = declare_setting(
        (),
        names,
        "Kinds of tools that an acp agent may use when it asks, such as execute,fetch (docs/agents.md); else no.",
        per_model=True,
    )
    openai_url: str = declare_setting(
        "",
        parse_web_address,
        "Base address of an OpenAI-compatible service, with /v1, for openai_http:MODEL and agents.",
    )
    openai_api_key: str = declare_setting("", str, "Key for that service.", secret=True)
    service_at_once: int = declare_setting(
        0,
        integer_parser(0, 10**6),
        "Agents of all workers that may ask a model's service at once (operations.md); 0: any number.",
        per_model=True,
    )
    limit_open_files: int = declare_constant(
        4096, "Files each process of an agent may have open; 0: as many as the worker."
    )
    limit_tmp_mb: int = declare_constant(
        1024, "Size of a sandbox's /tmp, and of its /dev/shm, in MiB of memory; 0: half the machine's."
    )
    limit_processes: int = declare_constant(1024, "Processes and threads an agent may have, all together; 0: no limit.")
    limit_folder_mb: int = declare_constant(
        2048, "What one run of an agent may write into its folder and its HOME, in MiB; 0: no limit."
    )
    claude_permission_mode: str = declare_constant(
        "acceptEdits", "What the CLI may do without asking; nobody is there to ask, so the rest is denied."
    )
