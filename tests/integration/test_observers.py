"""An observer that a package adds: real workers hand it every turn that ended, also after one is killed in between."""

import json
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
import redis
from structlog.testing import capture_logs

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.store.connection import SingleConnection
from api_client.turns.record.ledger import Ledger
from tests.installation import Installation
from tests.integration.lua.by_hand import FIRST, PASSED, request
from tests.support import wait_for
from worker import observers

#: Counts words by turn in a file. Where ``kill`` lies there, the process dies as it has events, and has noted nothing.
WORDS = """
    import json, os, signal
    from pathlib import Path

    class WordCounter:
        def observe(self, turn, events):
            folder = Path(os.environ["WORDS"])
            if (folder / "kill").exists():
                (folder / "kill").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            (folder / "counted").mkdir(exist_ok=True)
            said = "".join(event.data["text"] for event in events if event.kind == "attempt.output")
            (folder / "counted" / turn.turn_id).write_text(json.dumps(len(said.split())))
"""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installs the package, as pip would, for the processes that the test starts; returns where it counts."""
    info = tmp_path / "site" / "words-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "words.py").write_text(dedent(WORDS))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: words\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[helix_turns.observers]\nwords = words:WordCounter\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("WORDS", str(tmp_path))
    return tmp_path


async def test_an_observer_misses_no_turn_though_its_worker_is_killed_as_it_reads(
    installation: Installation, words: Path
) -> None:
    installation.play('- attempts: [[say: "One two three. <!-- STEP: done -->"]]')
    worker = installation.worker()
    wait_for(lambda: installation.store.exists(f"{installation.keys.prefix}read:observer:words"))
    first = await installation.answer("hello")
    counted = words / "counted"
    wait_for((counted / first.turn_id).exists)
    (words / "kill").touch()
    turns = [await installation.answer(f"hello {number}", f"s{number}") for number in range(4)]
    wait_for(lambda: not (words / "kill").exists())
    wait_for(lambda: all((counted / turn.turn_id).exists() for turn in turns))
    unharmed = [
        turn for turn in (first, *turns) if turn.delivery == 1
    ]  # the kill may have hit a run, which says it again
    assert {json.loads((counted / turn.turn_id).read_text()) for turn in unharmed} == {7}
    assert worker.process.poll() is None, "the supervisor started the killed process anew"


async def await_next_millisecond(client: TurnsClient) -> None:
    """Return when turns that have ended are read: those that ended before this millisecond."""
    now = await client.store.read_clock_ms()
    while await client.store.read_clock_ms() == now:
        pass


@pytest.mark.parametrize("lost_at", [1, 3])
async def test_a_process_that_loses_its_role_while_it_observes_leaves_the_rest_to_the_next(
    lost_at: int, client: TurnsClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    store = redis.Redis.from_url(settings.redis_url)

    def observe(turn: Turn, _: object) -> None:
        seen.append(turn.turn_id)
        for role in store.scan_iter("*observing:slow"):
            store.set(role, "another process") if len(seen) == lost_at else None

    monkeypatch.setattr(observers, "_load_observers", lambda: {"slow": SimpleNamespace(observe=observe)})
    ledger, feed = Ledger(settings, "w"), observers.ObserverFeed(settings, SingleConnection(settings))
    await ledger.release_turns()
    await feed.poll()
    turns = [await client.submitter.submit(request(session_id=f"s{number}")) for number in range(3)]
    for number, turn_id in enumerate(turns):
        claim = await ledger.claim_turn(turn_id, f"s{number}", FIRST)
        await ledger.commit_transition(claim, PASSED)
    await await_next_millisecond(client)
    await feed.poll()
    assert len(seen) == lost_at
    for role in store.scan_iter("*observing:slow"):
        store.delete(role)
    await feed.poll()
    assert sorted(seen[lost_at:]) == sorted(turns), "they come again: their batch was not confirmed"
    await ledger.close()
    store.close()


async def test_an_observer_that_raises_holds_up_no_other(
    client: TurnsClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def fail(turn: Turn, _: object) -> None:
        raise OSError("its service is away")

    def observe(turn: Turn, _: object) -> None:
        seen.append(turn.turn_id)

    found = {"broken": SimpleNamespace(observe=fail), "sound": SimpleNamespace(observe=observe)}
    monkeypatch.setattr(observers, "_load_observers", lambda: found)
    ledger, feed = Ledger(settings, "w"), observers.ObserverFeed(settings, SingleConnection(settings))
    await ledger.release_turns()
    await feed.poll()
    turn_id = await client.submitter.submit(request(session_id="s"))
    await ledger.commit_transition(await ledger.claim_turn(turn_id, "s", FIRST), PASSED)
    await await_next_millisecond(client)
    with capture_logs() as logs:
        await feed.poll()
    assert seen == [turn_id]
    assert [(each["event"], each["observer"]) for each in logs] == [("observer.failed", "broken")]
    await ledger.close()
