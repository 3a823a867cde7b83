"""The worker's half of the port *Work* (``api_client.contract.work``), for kinds of work.

Chat messages are the built-in kind; packages add other kinds by entry points (docs/ARCHITECTURE.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import SettingsError
from api_client.contract.plugins import WORK, UnusablePlugin, load_plugin
from api_client.contract.session_paths import session_directory
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.turns.record.accepted import AcceptedAnswer
from api_client.turns.record.moves import Move
from worker.files import session, workspace
from worker.files.session_fence import FencedSessionFolder, SessionFolder
from worker.turns.leases.lease import Lease
from worker.turns.parts import EngineParts

#: The earlier attempts, in order.
History = Sequence[AttemptRecord]
#: All files of an answer by name; None for the delivery's own and repaired files.
Files = Mapping[str, str] | None


class SessionSetUp(NamedTuple):
    """The inputs for writing a session's CLAUDE.md (``session.prepare``)."""

    root: Path
    template: str
    tools: bool


class TurnWork:
    """Worker side of chat messages, and base class of other kinds of work."""

    def locate_folder(self, settings: Settings, turn: Turn) -> Path:
        """Return the folder of the turn's files, by default the session's folder.

        Raises:
            SettingsError: this worker lacks a required folder; another worker may have it.
        """
        return session_directory(settings.sessions_dir, turn.request.session_id)

    async def start(self, parts: EngineParts, lease: Lease) -> Move | None:
        """Return the transition that ends the turn instead of its first run; None to run the agent."""
        return None

    def write_prompt(self, settings: Settings, turn: Turn, history: History) -> str:
        """Return the agent's prompt; empty for the user's message or the feedback on the last attempt.

        Raises:
            SettingsError: this worker may not run the agent.
        """
        return ""

    def list_inputs(self, settings: Settings, turn: Turn) -> tuple[Path, ...]:
        """Return files outside the project that the agent may read."""
        return ()

    def prepare(
        self, holder: FencedSessionFolder, directory: Path, turn: Turn, history: History, rules: SessionSetUp
    ) -> None:
        """Prepare the delivery's ``directory`` or the session for the agent. Raises ``OSError``."""
        session.prepare_session(holder, turn, rules.root, rules.template, tools=rules.tools)

    async def carry_out(self, parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Move:
        """Carry out an additional task of this kind of work that runs no agent.

        Raises:
            Fenced: another worker has the turn.
            SettingsError: this worker is not configured for the task.
        """
        raise SettingsError([f"no work for the task {lease.claim.link.task}"])

    def publish(
        self, settings: Settings, holder: SessionFolder, turn: Turn, accepted: AcceptedAnswer, files: Files
    ) -> None:
        """Write an accepted answer to its final place. May be called twice or be interrupted. Raises ``OSError``."""
        if files is None:
            own = workspace.read_accepted_files(holder.path / "attempts" / accepted.delivery)
            files = {**own, **accepted.mended}
        if accepted.mended:
            workspace.keep_repaired_files(holder, accepted.delivery, accepted.mended)
        # A run stored together with its verdict is not in ``turn`` yet, so the transition has the newer agent session.
        answer, changed = accepted.move.answer, accepted.move.fields.values
        session.record_acceptance(holder, turn, answer, agent_session=changed.get("agent_session", turn.agent_session))
        durable = settings.durability == "power"
        workspace.publish_answer(holder, answer.response, attempt_id=accepted.delivery, files=files, durable=durable)

    def give_up(self, settings: Settings, turn: Turn) -> None:
        """Remove what only a further attempt would have read, because the turn fails."""


_CHAT = TurnWork()


def find_work_of(turn: Turn) -> TurnWork:
    """Return the worker side of a turn's kind of work. Raises ``SettingsError`` if the kind is not installed."""
    return _load(turn.request.work) if turn.request.work else _CHAT


@cache
def _load(name: str) -> TurnWork:
    try:
        made: TurnWork = load_plugin(WORK, name)()
    except UnusablePlugin as error:
        raise SettingsError([str(error)]) from error
    return made
