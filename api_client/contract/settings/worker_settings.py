"""The settings of workers."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_constant, declare_setting
from api_client.contract.settings.setting_values import ROLES, choice_parser, integer_parser, names, number_parser


def message_roles(value: str) -> tuple[str, ...]:
    """Parse comma-separated message roles, which must include ``user``."""
    roles = names(value)
    if "user" not in roles or not set(roles) <= set(ROLES):
        raise ValueError(f"must name user, and otherwise any of {', '.join(ROLES)}")
    return roles


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(SettingsGroup):
    """The way in which workers run agents."""

    run_slots: int = declare_setting(16, integer_parser(1, 1000), "Agents a worker runs at once, in all its processes.")
    lease_seconds: float = declare_setting(
        6.0, number_parser(0.5, 600), "A worker silent for this long has lost its turn."
    )
    shutdown_seconds: float = declare_setting(
        20.0,
        number_parser(0, 86_400),
        "On SIGTERM running agents may finish for this long; then their turns are handed over.",
    )
    log_format: str = declare_setting("console", choice_parser("console", "json"), "How log lines are written.")
    reap_seconds: float = declare_constant(
        1.0, number_parser(0.05, 60), "How often each worker looks for turns that need attention."
    )
    announce_seconds: float = declare_constant(
        5.0, number_parser(0.2, 600), "An unclaimed turn is announced again; doubles."
    )
    transient_delay_seconds: float = declare_constant(
        1.0, number_parser(0, 3600), "First delay after a passing error; doubles."
    )
    transient_retries: int = declare_constant(
        4, integer_parser(0, 100), "Passing errors (429, 5xx, network) forgiven per attempt."
    )
    kill_grace_seconds: float = declare_constant(
        5.0, number_parser(0, 600), "Time between SIGTERM and SIGKILL for an agent."
    )
    stalled_seconds: float = declare_constant(
        60.0,
        number_parser(0, 86_400),
        "A worker that takes no message for this long, though it could, is restarted; 0: never.",
    )
    strikes: int = declare_constant(
        5, integer_parser(2, 100), "Deliveries that may end in a dead worker before the turn is dead."
    )
    validation_seconds: float = declare_constant(
        10.0, number_parser(0.1, 3600), "A validator that takes longer has failed."
    )
    action_log: str = declare_constant(
        "", str, "File in which the scripted agent records what it really executed (tests)."
    )
    failpoint: str = declare_constant(
        "", str, "Where this process dies or freezes on purpose (tests); see failpoints.py."
    )
    idle_seconds: float = declare_constant(
        600.0, number_parser(0.1, 86_400), "An agent silent for this long is stopped."
    )
    log_level: str = declare_constant(
        "info", choice_parser("debug", "info", "warning", "error"), "Least severe level written."
    )
    affinity_patience: float = declare_constant(
        0.2, number_parser(0, 60), "A message waits so long for the worker that can best continue its session."
    )
