"""The worker's interface for kinds of work; ``api_client.contract.work`` has the client's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import SettingsError
from api_client.contract.plugins import WORK, UnusablePlugin, make_plugin
from api_client.contract.session_paths import session_directory
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.turns.record.accepted import AcceptedAnswer
from api_client.turns.record.transition import Transition
from worker.files import session, workspace
from worker.files.session_fence import FencedSessionFolder, SessionFolder
from worker.turns.engine_parts import EngineParts
from worker.turns.leases.lease import Lease

History = Sequence[AttemptRecord]
#: All files of an answer by name; None for the delivery's own and repaired files.
Files = Mapping[str, str] | None


class SessionSetUp(NamedTuple):
    """The settings for writing a session's CLAUDE.md file."""

    root: Path
    template: str
    tools: bool
    skills: str


class TurnWork:
    """Base class for how a worker carries out a kind of work. The base class itself handles chat messages."""

    def locate_folder(self, settings: Settings, turn: Turn) -> Path:
        """Return the folder for the turn's files, by default the folder of the session.

        Raises ``SettingsError`` if this worker lacks a required folder.
        """
        return session_directory(settings.sessions_dir, turn.request.session_id)

    async def start(self, parts: EngineParts, lease: Lease) -> Transition | None:
        """Check a turn before its first run. Return the transition that ends it at once, or None to run the agent."""
        return None

    def write_prompt(self, settings: Settings, turn: Turn, history: History) -> str:
        """Return the agent's prompt, or an empty string to use the user's message or the feedback.

        Raises ``SettingsError``.
        """
        return ""

    def list_inputs(self, settings: Settings, turn: Turn) -> tuple[Path, ...]:
        """Return files outside the project folder that the agent may read."""
        return ()

    def prepare(
        self, holder: FencedSessionFolder, directory: Path, turn: Turn, history: History, rules: SessionSetUp
    ) -> None:
        """Prepare the session's folder and the run's own ``directory`` for the agent. Raises ``OSError``."""
        session.prepare_session(holder, turn, rules.root, rules.template, tools=rules.tools, skills=rules.skills)

    async def carry_out(self, parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Transition:
        """Carry out a task without an agent that only turns with this kind of work have. Return the turn's transition.

        Raises ``LeaseLost``, or ``SettingsError`` if this worker is not configured for the task.
        """
        raise SettingsError([f"no work for the task {lease.claim.chain_task.task}"])

    def publish(
        self, settings: Settings, holder: SessionFolder, turn: Turn, accepted: AcceptedAnswer, files: Files
    ) -> None:
        """Write the accepted answer and its files to their final place. Raises ``OSError``.

        This method may be interrupted and called again.
        """
        if files is None:
            own = workspace.read_accepted_files(holder.path / "attempts" / accepted.delivery)
            files = {**own, **accepted.mended}
        if accepted.mended:
            workspace.keep_repaired_files(holder, accepted.delivery, accepted.mended)
        answer, changed = accepted.transition.answer, accepted.transition.fields.values
        session.record_acceptance(holder, turn, answer, agent_session=changed.get("agent_session", turn.agent_session))
        durable = settings.durability == "power"
        workspace.publish_answer(holder, answer.response, attempt_id=accepted.delivery, files=files, durable=durable)

    def give_up(self, settings: Settings, turn: Turn) -> None:
        """Delete data of a failing turn that only further attempts would need."""


_CHAT = TurnWork()


def find_turn_work(turn: Turn) -> TurnWork:
    """Return the handler for the turn's kind of work. Raises ``SettingsError`` if none is installed."""
    return _load_work(turn.request.work) if turn.request.work else _CHAT


def is_work_installed(turn: Turn) -> bool:
    """Return True if this worker has the package for the turn's kind of work."""
    try:
        find_turn_work(turn)
    except SettingsError:
        return False
    return True


@cache
def _load_work(name: str) -> TurnWork:
    try:
        made: TurnWork = make_plugin(WORK, name)
    except UnusablePlugin as error:
        raise SettingsError([str(error)]) from error
    return made
