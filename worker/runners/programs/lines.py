"""The output of a child process that speaks as the scripted agent does: JSON lines, and the verdict over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.runners.base import Completion, Transcript, judge
from worker.runners.guard.supervision import Ending


class ChildLines(Transcript):
    """Reads the JSON lines of a run."""

    @property
    def session(self) -> str:
        """The agent's own name of its session."""
        return str(self.facts.get("agent_session") or "")

    @property
    def said(self) -> Mapping[str, Any]:
        """What it says about itself."""
        return self.evidence

    def judge(self, ending: Ending, evidence: dict[str, Any]) -> Completion:
        """The verdict by what it said."""
        return judge(self, ending.exit.code, evidence)
