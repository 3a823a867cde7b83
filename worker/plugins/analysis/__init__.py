"""Analyses recorded turns: validates with another policy, compares flow versions, exports data, guards versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api_client.contract.settings import Settings
    from api_client.store.connection import SingleConnection
    from worker.plugins.analysis.flow_guard import FlowGuard

COMMANDS = {
    "policy.compare": (
        "worker.plugins.analysis.compare_command:compare",
        "Compare the turns of two flow versions, and say which difference is real.",
    ),
    "policy.replay": (
        "worker.plugins.analysis.policy_replay.replay_command:replay_policy",
        "Validate recorded answers by another policy, without an agent.",
    ),
}


def guard_flows(settings: Settings, connection: SingleConnection) -> FlowGuard | None:
    """Create the guard that rolls back failing flow versions. Return None if no version has a failure limit."""
    if not any("max_failure_rate" in block for block in settings.flow_settings.values()):
        return None
    from worker.plugins.analysis.flow_guard import FlowGuard

    return FlowGuard(settings, connection)
