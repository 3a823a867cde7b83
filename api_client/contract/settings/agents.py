"""The rights of an agent, and its way to its model."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaring import setting
from api_client.contract.settings.setting_values import (
    choice,
    folders,
    foreign_names,
    host_names,
    integer,
    names,
    program_path,
    text,
    web_address,
)


@dataclass(frozen=True, kw_only=True)
class Agents:
    """The rights of an agent, and its way to its model."""

    box: str = setting(
        "auto",
        choice("auto", "off", "required"),
        "bubblewrap around agents: auto: around claude_cli where it works; required: around every agent, or none runs.",
        per_model=True,
    )
    box_hosts: tuple[str, ...] = setting(
        (),
        host_names,
        "Hosts that claude_cli may reach from a box besides its model: name[:port],... or *.name; port 443 if none.",
        per_model=True,
    )
    limit_memory_mb: int = setting(
        4096,
        integer(0, 10**7),
        "Memory an agent and all it starts may use together, in MiB; 0: no limit.",
        per_model=True,
    )
    limit_processes: int = setting(
        1024, integer(0, 10**6), "Processes and threads an agent may have, all together; 0: no limit.", per_model=True
    )
    limit_open_files: int = setting(
        4096, integer(0, 10**6), "Files each process of an agent may have open; 0: as many as the worker."
    )
    limit_tmp_mb: int = setting(
        1024, integer(0, 10**7), "Size of a box's /tmp, and of its /dev/shm, in MiB of memory; 0: half the machine's."
    )
    limit_folder_mb: int = setting(
        2048,
        integer(0, 10**7),
        "What one run of an agent may write into its folder and its HOME, in MiB; 0: no limit.",
        per_model=True,
    )
    writable: tuple[str, ...] = setting(
        (), folders, "Folders below HELIX_ROOT that claude_cli may write besides its own, such as adr.", per_model=True
    )
    claude_path: str = setting(
        "claude", program_path, "The Claude Code CLI: a path, or a name on PATH (docs/claude-cli.md).", per_model=True
    )
    claude_api_url: str = setting(
        "", web_address, "Base address of the Messages API for the CLI; none: its own default."
    )
    claude_api_key: str = setting(
        "",
        text,
        "API key, or `claude setup-token` token, for the CLI; a key of the worker's own is not used.",
        secret=True,
    )
    claude_env: tuple[str, ...] = setting(
        (),
        foreign_names,
        "Names of the worker's own environment that the CLI is given, such as HTTPS_PROXY,AWS_REGION.",
        per_model=True,
    )
    claude_permission_mode: str = setting(
        "acceptEdits",
        choice("acceptEdits", "auto", "bypassPermissions", "dontAsk", "manual", "plan"),
        "What the CLI may do without asking; nobody is there to ask, so the rest is denied.",
        per_model=True,
    )
    claude_tools: tuple[str, ...] = setting(
        ("Read", "Write", "Edit", "Glob", "Grep"),
        names,
        "The CLI's built-in tools that exist at all; `default`: all.",
        per_model=True,
    )
    claude_allowed_tools: tuple[str, ...] = setting(
        (),
        names,
        "Permission rules beyond reading the project and writing in the run's folder, such as WebSearch.",
        per_model=True,
    )
    openai_url: str = setting(
        "", web_address, "Base address of an OpenAI-compatible service, with /v1, for openai_http:MODEL."
    )
    openai_api_key: str = setting("", text, "Key for that service.", secret=True)
