"""The next message of a session goes to the worker that keeps its agent, and to any other where it has no slot."""

import os
import signal
from pathlib import Path

import pytest
from celery import Celery

from api_client.broker.celery_message import celery_settings
from api_client.contract.settings import Settings
from api_client.contract.tasks import own_queue
from api_client.contract.turn import Turn, TurnRequest
from api_client.contract.worker_order import WorkerOrder
from tests.installation import Installation, WorkerProcess
from tests.support import alive, wait_for, wait_until

#: Nobody takes a turn from its agent's keeper within a test's time: who has it, has it by the rules.
PATIENT = 60.0
#: For a keeper that is gone: also on a machine that stutters one that is there is quicker.
SHORT = 3.0
HELLO = "Hi. <!-- STEP: done -->"
SCRIPT = f"""
- when: long
  attempts: [[wait: 300]]
- when: again
  attempts: [[say: "Hm."], [say: "{HELLO}"]]
- attempts: [[say: "{HELLO}"]]
"""


class Chat:
    """Messages of one session, each with all before it."""

    def __init__(self, installation: Installation, session: str = "s") -> None:
        self._at, self.session = installation, session
        self._messages: list[dict[str, str]] = []
        self.turns: list[Turn] = []

    async def ask(self, text: str = "hello") -> str:
        self._messages.append({"role": "user", "content": text})
        request = TurnRequest(model="scripted", messages=tuple(self._messages), session_id=self.session)
        return await self._at.client.submitter.submit(request)

    async def say(self, text: str = "hello") -> Turn:
        turn = await self._at.result(await self.ask(text))
        assert turn.outcome in ("passed", "passed_after_retry"), turn
        self._messages.append({"role": "assistant", "content": turn.response})
        self.turns.append(turn)
        return turn

    async def starts(self) -> list[tuple[str, str]]:
        """How each attempt began, and in which worker process."""
        attempts = [each for turn in self.turns for each in await self._at.client.reader.read_attempts(turn.turn_id)]
        return [(each.completion["evidence"]["start"], each.worker) for each in attempts]

    @property
    def keeper(self) -> str:
        """Who keeps its agent, as the store has it."""
        found = self._at.store.get(self._at.keys.affinity(self.session))
        assert found is None or isinstance(found, bytes)
        return (found or b"").decode()


def warm(installation: Installation, patience: float = PATIENT, **changes: object) -> Settings:
    """Have agents kept."""
    return installation.play(
        SCRIPT, runner="inline_living", claude_warm_seconds=300.0, affinity_patience=patience, **changes
    )


def kept(installation: Installation, session: str = "s") -> set[int]:
    """The worker processes that keep the session's agent."""
    return {int(path.name.rpartition("-")[2]) for path in (installation.settings.root / "kept").glob(f"{session}-*")}


def process_of(installation: Installation, name: str) -> int:
    """The id of the worker process of this name."""
    [pid] = filter(None, [worker.named(name) for worker in installation.workers])
    return pid


async def test_the_messages_of_a_chat_run_where_its_agent_is_kept(installation: Installation) -> None:
    warm(installation)
    installation.worker("--processes", "2")
    chats = [Chat(installation, name) for name in ("a", "b", "c")]
    for _ in range(5):
        for chat in chats:
            await chat.say()
    for chat in chats:
        starts = await chat.starts()
        assert [start for start, _ in starts] == ["cold", "warm", "warm", "warm", "warm"], starts
        assert {worker for _, worker in starts} == {chat.keeper}
        assert [turn.delivery for turn in chat.turns] == [1] * 5
        assert kept(installation, chat.session) == {process_of(installation, chat.keeper)}
    app = Celery(set_as_current=False)
    app.conf.update(celery_settings(installation.settings))
    queues = app.control.inspect(timeout=10, limit=2).active_queues() or {}
    assert len(queues) == 2
    for name, found in queues.items():
        assert own_queue(name) in {queue["name"] for queue in found}
    assert chats[0].keeper in queues


async def test_a_retry_of_its_message_runs_there_too(installation: Installation) -> None:
    warm(installation)
    installation.worker("--processes", "2")
    chat = Chat(installation)
    await chat.say()
    await chat.say("again")
    assert [start for start, _ in await chat.starts()] == ["cold", "warm", "cold"], "it is asked what it does not hold"
    assert {worker for _, worker in await chat.starts()} == {chat.keeper}


async def test_where_the_keeper_is_busy_another_runs_it_and_the_keepers_agent_ends(installation: Installation) -> None:
    warm(installation, SHORT, run_slots=2)
    installation.worker("--processes", "2")
    chat, others = Chat(installation), [Chat(installation, name) for name in ("long-1", "long-2")]
    await chat.say()
    keeper = chat.keeper
    long = [await other.ask("long") for other in others]
    for turn_id in long:
        await installation.until(turn_id, "running")
    [elsewhere] = [t for t in long if (await installation.client.reader.read_turn(t)).worker != keeper]
    await installation.client.canceller.cancel(elsewhere)
    await installation.result(elsewhere)
    turn = await chat.say()
    [(_, first), (start, second)] = await chat.starts()
    assert (start, turn.delivery, first) == ("cold", 1, keeper)
    assert second == chat.keeper != keeper
    await wait_until(lambda: kept(installation) == {process_of(installation, second)})
    [at_keeper] = set(long) - {elsewhere}
    assert (await installation.client.reader.read_turn(at_keeper)).state == "running", (
        "the keeper was busy all the time"
    )
    await installation.client.canceller.cancel(at_keeper)
    await installation.result(at_keeper)
    await chat.say()
    assert (await chat.starts())[-1] == ("warm", second)


async def two_workers(installation: Installation, patience: float) -> tuple[Chat, WorkerProcess]:
    """A chat whose agent one of two workers keeps, and that worker."""
    warm(installation, patience)
    first, second = installation.worker(), installation.worker()
    chat = Chat(installation)
    await chat.say()
    await chat.say()
    [(_, keeper), last] = await chat.starts()
    assert last == ("warm", keeper)
    return chat, first if first.named(keeper) else second


async def test_a_keeper_that_was_killed_costs_its_next_message_the_patience_and_nothing_else(
    installation: Installation,
) -> None:
    chat, worker = await two_workers(installation, SHORT)
    gone, pid = chat.keeper, process_of(installation, chat.keeper)
    worker.kill(signal.SIGKILL)
    await wait_until(lambda: not alive(pid))
    turn = await chat.say()
    assert ((await chat.starts())[-1][0], turn.delivery, turn.strikes) == ("cold", 1, 0)
    assert chat.keeper not in ("", gone)
    doorbell = f"{installation.settings.namespace}:celery:{own_queue(gone)}"
    assert installation.store.pttl(doorbell) != -1, "nobody takes it any more, so it ends by itself"
    await chat.say()
    assert (await chat.starts())[-1][0] == "warm"


async def test_a_keeper_that_comes_back_takes_nothing_and_ends_its_agent(installation: Installation) -> None:
    chat, _ = await two_workers(installation, SHORT)
    keeper, pid = chat.keeper, process_of(installation, chat.keeper)
    os.kill(pid, signal.SIGSTOP)
    try:
        turn = await chat.say()
    finally:
        os.kill(pid, signal.SIGCONT)
    start, worker = (await chat.starts())[-1]
    assert (start, turn.delivery, worker != keeper) == ("cold", 1, True)
    await wait_until(lambda: kept(installation) == {process_of(installation, worker)})
    doorbell = f"{installation.settings.namespace}:celery:{own_queue(keeper)}"
    await wait_until(lambda: installation.store.llen(doorbell) == 0)
    await chat.say()
    assert (await chat.starts())[-1] == ("warm", worker)
    assert [each.delivery for each in chat.turns] == [1] * 4, "each ran once"


async def test_a_worker_that_ends_is_nobodys_keeper(installation: Installation) -> None:
    chat, worker = await two_workers(installation, PATIENT)
    worker.ask_to_end()
    worker.await_end()
    assert not chat.keeper
    await chat.say()
    assert (await chat.starts())[-1][0] == "cold"


async def test_a_worker_that_ends_after_its_turns_keeps_nobodys_agent_meanwhile(installation: Installation) -> None:
    chat, worker = await two_workers(installation, PATIENT)
    keeper = chat.keeper
    [other] = [each for each in installation.workers if each is not worker]
    long = [await Chat(installation, f"long-{number}").ask("long") for number in range(6)]
    for turn_id in long:
        await installation.until(turn_id, "running")
    assert keeper in {(await installation.client.reader.read_turn(turn_id)).worker for turn_id in long}
    worker.ask_to_end()
    await wait_until(lambda: not chat.keeper and not kept(installation))
    await chat.say()
    start, elsewhere = (await chat.starts())[-1]
    assert (start, other.named(elsewhere) is not None) == ("cold", True)
    assert worker.process.poll() is None, "it waits for its turns"
    for turn_id in long:
        await installation.client.canceller.cancel(turn_id)


async def test_a_worker_that_takes_no_turns_keeps_nobodys_agent(installation: Installation) -> None:
    chat, _ = await two_workers(installation, PATIENT)
    keeper = chat.keeper
    await installation.client.workers.order_worker(keeper, WorkerOrder.QUIET)
    await wait_until(lambda: not chat.keeper and not kept(installation))
    await chat.say()
    start, worker = (await chat.starts())[-1]
    assert (start, worker != keeper) == ("cold", True)


async def test_a_keeper_that_was_killed_and_started_again_loses_no_turn(installation: Installation) -> None:
    warm(installation, SHORT)
    installation.worker("--processes", "2")
    chat = Chat(installation)
    await chat.say()
    for _ in range(3):
        os.kill(process_of(installation, chat.keeper), signal.SIGKILL)
        turn = await chat.say()
        assert ((await chat.starts())[-1][0], turn.delivery, turn.strikes) == ("cold", 1, 0)


async def test_nobody_is_the_keeper_of_an_agent_that_made_room_for_another(installation: Installation) -> None:
    warm(installation, claude_warm_per_owner=1)
    installation.worker()
    first, second = Chat(installation, "a"), Chat(installation, "b")
    await first.say()
    assert first.keeper
    await second.say()
    await wait_until(lambda: not first.keeper)
    assert (kept(installation, "a"), bool(second.keeper)) == (set(), True)


@pytest.mark.parametrize("because", ["it is switched off", "no model's agent can be kept"])
async def test_without_warmth_nothing_of_it_is_there(because: str, installation: Installation) -> None:
    warm(installation)
    if because == "it is switched off":
        installation.change(claude_warm_seconds=0.0)
    else:
        installation.play(SCRIPT)
    worker = installation.worker("--processes", "2")
    chat = Chat(installation)
    for _ in range(3):
        await chat.say()
    assert not chat.keeper
    app = Celery(set_as_current=False)
    app.conf.update(celery_settings(installation.settings))
    found = app.control.inspect(timeout=10, limit=2).active_queues() or {}
    assert {queue["name"] for queues in found.values() for queue in queues} == {
        "helix.run",
        "helix.run.preferred",
        "helix.check",
    }
    assert not (Path(installation.settings.root) / "kept").exists()
    wait_for(lambda: worker.process.poll() is None)
