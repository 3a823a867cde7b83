"""The way a worker runs agents."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaring import setting
from api_client.contract.settings.setting_values import choice, integer, number


@dataclass(frozen=True, kw_only=True)
class Working:
    """The way a worker runs agents."""

    run_slots: int = setting(16, integer(1, 1000), "Agents a worker runs at once, in all its processes.")
    check_slots: int = setting(
        2, integer(1, 64), "Answers a worker judges at once, in all its processes; at least one in each."
    )
    worker_processes: int = setting(0, integer(0, 256), "Processes of a worker; 0: one per CPU that it may use.")
    idle_seconds: float = setting(
        600.0, number(0.1, 86_400), "An agent silent for this long is stopped.", per_model=True
    )
    lease_seconds: float = setting(6.0, number(0.5, 600), "A worker silent for this long has lost its turn.")
    shutdown_seconds: float = setting(
        20.0, number(0, 86_400), "On SIGTERM running agents may finish for this long; then their turns are handed over."
    )
    log_format: str = setting("console", choice("console", "json"), "How log lines are written.")
    log_level: str = setting("info", choice("debug", "info", "warning", "error"), "Least severe level written.")
