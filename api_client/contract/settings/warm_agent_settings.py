"""The settings of agents that stay alive, or start early, for the next message."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_constant, declare_setting
from api_client.contract.settings.setting_values import number_parser


@dataclass(frozen=True, kw_only=True)
class WarmAgentSettings(SettingsGroup):
    """Settings of agent processes that keep running for their session's next message, or start in advance."""

    claude_warm_seconds: float = declare_setting(
        300.0,
        number_parser(0, 86_400),
        "How long an idle Claude CLI is kept for its session's next message (docs/claude-cli.md); 0: never.",
    )
    claude_warm_processes: int = declare_constant(16, "How many are kept in each worker process.")
    claude_warm_per_owner: int = declare_constant(2, "How many of these for one owner.")
    claude_warm_mb: int = declare_constant(
        0,
        "MiB that kept CLIs of a worker process may hold together; 0: a quarter of the memory by CPUs, at least 1 GiB.",
    )
    claude_spares: int = declare_constant(
        1, "How many CLIs a worker process starts ahead, while new sessions come; 0: none."
    )
