"""The settings of workers."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_constant, declare_setting
from api_client.contract.settings.setting_values import choice_parser, integer_parser, number_parser


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(SettingsGroup):
    """Settings of workers: how many agents they run, how long their leases last, and how they shut down."""

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
    reap_seconds: float = declare_constant(1.0, "How often each worker looks for turns that need attention.")
    announce_seconds: float = declare_constant(5.0, "An unclaimed turn is announced again; doubles.")
    transient_delay_seconds: float = declare_constant(1.0, "First delay after a passing error; doubles.")
    transient_retries: int = declare_constant(4, "Passing errors (429, 5xx, network) forgiven per attempt.")
    kill_grace_seconds: float = declare_constant(5.0, "Time between SIGTERM and SIGKILL for an agent.")
    stalled_seconds: float = declare_constant(
        60.0, "A worker that takes no message for this long, though it could, is restarted; 0: never."
    )
    strikes: int = declare_constant(5, "Deliveries that may end in a dead worker before the turn is dead.")
    validation_seconds: float = declare_constant(10.0, "A validator that takes longer has failed.")
    action_log: str = declare_constant("", "File in which the scripted agent records what it really executed (tests).")
    failpoint: str = declare_constant("", "Where this process dies or freezes on purpose (tests); see failpoints.py.")
    idle_seconds: float = declare_constant(600.0, "An agent silent for this long is stopped.")
    log_level: str = declare_constant("info", "Least severe level written.")
    affinity_patience: float = declare_constant(
        0.2, "A message waits so long for the worker that can best continue its session."
    )
