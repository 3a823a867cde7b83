"""What a worker does for a kind of work: the other half of the port *Work* (``api_client.contract.work``).

A message of a chat is the kernel's own kind; packages add others by entry points. docs/ARCHITECTURE.md says how.
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
from worker.files.session_fence import FencedPlace, Place
from worker.turns.leases.lease import Lease
from worker.turns.parts import EngineParts

#: The attempts before, in order.
History = Sequence[AttemptRecord]
#: All files of an answer, by name; None: those of the delivery, and repaired ones.
Files = Mapping[str, str] | None


class SessionSetUp(NamedTuple):
    """What ``session.prepare`` writes a session's CLAUDE.md with."""

    root: Path
    template: str
    tools: bool


class TurnWork:
    """What a worker does for a message of a chat. Another kind derives from this and overrides what differs."""

    def locate_folder(self, settings: Settings, turn: Turn) -> Path:
        """Return the folder of the turn's files: here the session's, made or not.

        Raises:
            SettingsError: this worker does not have a folder that must be there; another worker may have it.
        """
        return session_directory(settings.sessions_dir, turn.request.session_id)

    async def start(self, parts: EngineParts, lease: Lease) -> Move | None:
        """Return the move that ends the turn instead of its first run; None to run the agent."""
        return None

    def write_prompt(self, settings: Settings, turn: Turn, history: History) -> str:
        """Return what the agent is asked; empty for the user's message, or the feedback on the attempt before.

        Raises:
            SettingsError: this worker may not run it.
        """
        return ""

    def list_inputs(self, settings: Settings, turn: Turn) -> tuple[Path, ...]:
        """Return files outside the project that the agent may read."""
        return ()

    def prepare(self, holder: FencedPlace, directory: Path, turn: Turn, history: History, rules: SessionSetUp) -> None:
        """Make the delivery's ``directory``, or the session, ready for its agent. Raises ``OSError``."""
        session.prepare(holder, turn, rules.root, rules.template, tools=rules.tools)

    async def carry_out(self, parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Move:
        """Carry out a task that the kind adds, and that runs no agent.

        Raises:
            Fenced: another worker has the turn. SettingsError: the set-up is wrong.
        """
        raise SettingsError([f"no work for the task {lease.claim.link.task}"])

    def publish(self, settings: Settings, holder: Place, turn: Turn, accepted: AcceptedAnswer, files: Files) -> None:
        """Put an accepted result where people and the next turn find it. May happen twice, and may stop anywhere.

        Raises ``OSError``.
        """
        if files is None:
            own = workspace.written_files(holder.path / "attempts" / accepted.delivery)
            files = {**own, **accepted.mended}
        if accepted.mended:
            workspace.keep_repaired(holder, accepted.delivery, accepted.mended)
        # A run that is stored with its verdict is not in ``turn`` yet: the next one continues the move's agent session.
        answer, changed = accepted.move.answer, accepted.move.fields.values
        session.accept(holder, turn, answer, agent_session=changed.get("agent_session", turn.agent_session))
        durable = settings.durability == "power"
        workspace.publish(holder, answer.response, attempt_id=accepted.delivery, files=files, durable=durable)

    def give_up(self, settings: Settings, turn: Turn) -> None:
        """Put away what only a further attempt would have read: the turn fails."""


_CHAT = TurnWork()


def find_work_of(turn: Turn) -> TurnWork:
    """Return what carries out a turn's kind of work. Raises ``SettingsError``: it is not installed here."""
    return _load(turn.request.work) if turn.request.work else _CHAT


@cache
def _load(name: str) -> TurnWork:
    try:
        made: TurnWork = load_plugin(WORK, name)()
    except UnusablePlugin as error:
        raise SettingsError([str(error)]) from error
    return made
