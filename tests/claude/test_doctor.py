"""``turns doctor`` starts the real CLI and sees whether its hooks work; no model is asked."""

from __future__ import annotations

from api_client.contract.settings import Settings
from tests.claude.running import Agent
from worker.cli.checks.claude import check_hooks, check_version


def test_working_hooks_are_seen(agent: Agent) -> None:
    assert check_hooks(Settings(root=agent.root, claude_path=str(agent.program))).state == "ok"
    assert check_version(str(agent.program)).state == "ok"


def test_hooks_that_do_not_load_are_seen(agent: Agent) -> None:
    bare = agent.wrapped('exec "$CLI" --bare "$@"').program
    assert check_hooks(Settings(root=agent.root, claude_path=str(bare))).state == "wrong"
