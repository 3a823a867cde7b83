"""A conversation whose turns run on several hosts: none of it is lost or mixed.

They share no folder, only an object store; what must hold whatever they share is tried with one shared folder too.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract import failpoints
from api_client.contract.failpoints import FailpointError
from api_client.contract.keys import session_digest
from api_client.contract.session_files import SessionFilesAway
from api_client.contract.session_paths import session_directory
from api_client.contract.settings import Settings
from api_client.contract.tasks import ChainTask
from api_client.contract.turn import Outcome, Turn
from tests.installation import web
from tests.integration.engine import GOOD, NO_MARKER, Bench, Play, says
from tests.objects.seaweedfs import READER
from tests.ports import free_port
from worker.plugins.object_store.check import object_store
from worker.plugins.object_store.object_clearing import clear_objects
from worker.plugins.object_store.objects import ObjectStoreClient, load_snapshot
from worker.plugins.object_store.snapshot_store import SnapshotStore
from worker.runners.base import Emit, Order, RunResult, Stop
from worker.turns.leases.lease import Lease

Hosts = Callable[..., Bench]


@pytest.fixture
async def client(away: Settings) -> AsyncIterator[TurnsClient]:
    async with TurnsClient(away) as made:
        yield made


@pytest.fixture(params=["object store", "shared folder"])
def shared(request: pytest.FixtureRequest, away: Settings) -> Settings:
    """Settings under which several hosts have their sessions' files in common: in either way there is."""
    return away if request.param == "object store" else replace(away, files="", files_endpoint="")


@pytest.fixture
async def either(shared: Settings, client: TurnsClient, tmp_path: Path) -> AsyncIterator[Hosts]:
    """Hosts that share an object store, or a folder."""
    made: dict[str, Bench] = {}

    def host(name: str) -> Bench:
        if name not in made:
            root = tmp_path / (name if shared.files else "all")
            root.mkdir(exist_ok=True)
            made[name] = Bench(replace(shared, root=root), client, name)
        return made[name]

    yield host
    for each in made.values():
        each.close()


@pytest.fixture
async def hosts(away: Settings, client: TurnsClient, tmp_path: Path) -> AsyncIterator[Hosts]:
    made: dict[str, Bench] = {}

    def host(name: str, **changes: Any) -> Bench:
        if name not in made:
            root = tmp_path / name
            root.mkdir()
            made[name] = Bench(replace(away, root=root, **changes), client, name)
        return made[name]

    yield host
    for each in made.values():
        each.close()


def remembers(word: str, said: str = GOOD, seen: list[str] | None = None) -> Play:
    """An agent that writes its word behind those that it finds, and a file of its answer."""

    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        memory = order.workdir / "memory.txt"
        if seen is not None and memory.exists():
            seen.extend(memory.read_text().split())
        (order.directory / "output" / "chart.csv").write_text(word)
        (order.workdir / "notes").mkdir(exist_ok=True)
        (order.workdir / "notes" / word).write_text(word)
        with memory.open("a") as file:
            file.write(f"{word} ")
        return says(said)(order, emit, stop)

    return play


async def tell(bench: Bench, *plays: Play) -> Turn:
    turn_id = await bench.submit(*plays)
    await asyncio.to_thread(bench.carry_out, turn_id)
    return await bench.client.reader.read_turn(turn_id)


def folder(bench: Bench) -> Path:
    return session_directory(bench.settings.sessions_dir, "s")


def held(bench: Bench) -> dict[str, bytes]:
    """What a session's folder holds, but for what belongs to its host alone."""
    top = folder(bench)
    files = (path for path in top.rglob("*") if path.is_file())
    return {str(path.relative_to(top)): path.read_bytes() for path in files if ".held" not in path.parts}


async def test_each_message_finds_what_the_messages_before_left_on_other_hosts(either: Hosts) -> None:
    for number, name in enumerate("abbac", 1):
        seen: list[str] = []
        turn = await tell(either(name), remembers(f"w{number}", seen=seen))
        assert turn.outcome is Outcome.PASSED
        assert seen == [f"w{each}" for each in range(1, number)]
    assert {f"notes/w{each}" for each in range(1, 6)} < held(either("c")).keys()


async def test_a_retry_and_an_accepted_answer_leave_the_same_folder_on_the_next_host(either: Hosts) -> None:
    await tell(either("a"), remembers("w1", NO_MARKER), remembers("w2"))
    before = held(either("a"))
    turn_id = await either("b").submit()
    seen: list[dict[str, bytes]] = []

    def looks(order: Order, emit: Emit, stop: Stop) -> RunResult:
        seen.append(held(either("b")))
        return says(GOOD)(order, emit, stop)

    either("b").runner.plays[:] = [looks]
    await asyncio.to_thread(either("b").carry_out, turn_id)
    [found] = seen
    # Of the message before, or with the host's own paths.
    same = before.keys() - {"status.json", "context/messages.json", "output/.done", "CLAUDE.md"}
    assert {path: found.get(path) for path in same} == {path: before[path] for path in same}


async def test_a_relay_on_another_machine_sends_the_files_of_an_answer(
    either: Hosts, shared: Settings, tmp_path: Path
) -> None:
    turn = await tell(either("a"), remembers("w1"))
    root = tmp_path / ("relay" if shared.files else "all")
    root.mkdir(exist_ok=True)
    async with web(replace(shared, root=root)) as http:
        listed = (await http.get(f"/v1/turns/{turn.turn_id}/files")).json()["data"]
        assert [(each["path"], each["size"]) for each in listed] == [("chart.csv", 2)]
        assert (await http.get(listed[0]["link"])).text == "w1"
        assert (await http.get(f"/v1/turns/{turn.turn_id}/files/none.csv")).status_code == 404


def taken_from(bench: Bench, turn_id: str) -> ChainTask:
    """A reaper takes a turn from a host that is lost. Returns its next link."""
    bench.store.hset(bench.keys.turn(turn_id), "lease_until", 1)
    bench.store.zadd(bench.keys.due, {turn_id: 1})
    bench.ledger.reap_turn(turn_id, may_take=True)
    found = bench.store.hget(bench.keys.turn(turn_id), "next")
    assert isinstance(found, bytes)
    return ChainTask.parse(found.decode())


async def due_now(bench: Bench, turn_id: str) -> None:
    """Nobody waits before a turn is delivered again."""
    bench.store.hset(bench.keys.turn(turn_id), "not_before", 0)


async def pointer(bench: Bench) -> str:
    found = bench.store.hget(bench.keys.files, session_digest("s"))
    assert isinstance(found, bytes)
    return found.decode()


async def test_what_a_fenced_holder_uploads_is_never_current(hosts: Hosts, away: Settings) -> None:
    """It is late between its upload and its commit: another host has taken the turn over and ended it."""
    await tell(hosts("a"), remembers("w1"))
    late = hosts("a")
    turn_id = await late.submit(remembers("late"))
    reached, go = threading.Event(), threading.Event()
    save = late.service.parts.files.save_files

    async def slow(lease: Lease, *, bounded: bool = True) -> str:
        kept = await save(lease, bounded=bounded)
        if not reached.is_set():
            reached.set()
            await asyncio.to_thread(go.wait)
        return kept

    late.service.parts.files.save_files = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor() as pool:
        working = pool.submit(late.carry_out, turn_id)
        await asyncio.to_thread(reached.wait)
        link = await asyncio.to_thread(taken_from, late, turn_id)
        seen: list[str] = []
        hosts("b").runner.plays.append(remembers("w2", seen=seen))
        await asyncio.to_thread(hosts("b").carry_out, turn_id, link)
        taken = await pointer(late)
        go.set()
        await asyncio.to_thread(working.result)
    assert seen == ["w1"]
    assert await pointer(late) == taken
    assert "notes/late" not in load_snapshot(ObjectStoreClient(away), taken).manifest.files
    third: list[str] = []
    await tell(hosts("c"), remembers("w3", seen=third))
    assert third == ["w1", "w2"]


@pytest.mark.parametrize(("point", "nth"), [("files.restored", 1), ("files.uploaded", 1), ("files.uploaded", 2)])
async def test_a_host_that_dies_at_its_files_costs_nothing(
    hosts: Hosts, point: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it has uploaded: the next host finds the session as the last stored move left it."""
    dying = hosts("a")
    await tell(dying, remembers("w1"))
    turn_id = await dying.submit(remembers("w2"))
    with monkeypatch.context() as armed:
        armed.setattr(failpoints, "_points", failpoints._read_failpoint(f"{point}=raise@{nth}"))
        with pytest.raises(FailpointError):
            await asyncio.to_thread(dying.carry_out, turn_id)
    link = await asyncio.to_thread(taken_from, dying, turn_id)
    hosts("b").runner.plays.append(remembers("w2"))
    await asyncio.to_thread(hosts("b").carry_out, turn_id, link)
    assert (await dying.client.reader.read_turn(turn_id)).outcome is Outcome.PASSED
    seen: list[str] = []
    await tell(hosts("c"), remembers("w3", seen=seen))
    assert seen == ["w1", "w2"]


@contextmanager
def unreachable(bench: Bench) -> Iterator[None]:
    """Within it a host does not reach the object store."""
    kept = bench.service.parts.files
    assert isinstance(kept, SnapshotStore)
    nowhere = replace(bench.settings, files_endpoint=f"http://127.0.0.1:{free_port()}")
    away, short = kept._objects, kept._short
    kept._objects = kept._short = ObjectStoreClient(nowhere, patience=0.2)
    yield
    kept._objects, kept._short = away, short


async def test_a_host_that_cannot_bring_a_session_takes_no_more_and_leaves_the_session_as_it_was(hosts: Hosts) -> None:
    await tell(hosts("b"), remembers("other"))
    away = hosts("a")
    turn_id = await away.submit(remembers("never"))
    before = await pointer(away)
    with unreachable(away):
        await asyncio.to_thread(away.carry_out, turn_id)
        assert "object store" in away.service.parts.files.find_trouble()
    assert await pointer(away) == before
    turn = await away.client.reader.read_turn(turn_id)
    assert (turn.state, turn.handed_over, turn.strikes) == ("queued", 1, 0)
    assert away.service.parts.files.find_trouble() == ""
    seen: list[str] = []
    hosts("b").runner.plays.append(remembers("w2", seen=seen))
    await due_now(away, turn_id)
    await asyncio.to_thread(hosts("b").carry_out, turn_id)
    assert seen == ["other"]


async def test_a_folder_that_could_not_be_brought_up_to_date_is_not_uploaded(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object store answers no reading, and takes what is written: a host that has an old state of the session."""
    stale = hosts("a")
    await tell(stale, remembers("w1"))
    await tell(hosts("b"), remembers("w2"))
    turn_id = await stale.submit()
    before = await pointer(stale)

    def refused(*_: object) -> list[bytes]:
        raise SessionFilesAway("not now")

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStoreClient, "read_parts", refused)
        await asyncio.to_thread(stale.carry_out, turn_id)
    assert (await stale.client.reader.read_turn(turn_id)).handed_over == 1
    assert await pointer(stale) == before


async def test_a_turn_whose_object_store_stays_away_ends_with_that_code(hosts: Hosts) -> None:
    await tell(hosts("a"), remembers("w1"))
    away = hosts("b")
    turn_id = await away.submit()
    with unreachable(away):
        for _ in range(9):
            await due_now(away, turn_id)
            await asyncio.to_thread(away.carry_out, turn_id)
    turn = await away.client.reader.read_turn(turn_id)
    assert turn.outcome is Outcome.ERROR
    assert turn.error is not None
    assert turn.error.code == "files_unavailable"


async def test_an_accepted_answer_ends_its_turn_even_if_its_files_cannot_be_kept_any_more(hosts: Hosts) -> None:
    """The object store goes between the seal and the commit: the sealed snapshot stays the session's."""
    sealing = hosts("a")
    seal = sealing.on_loop.seal_answer
    with ExitStack() as stack:

        async def sealed(*given: Any) -> bool:
            done = await seal(*given)
            stack.enter_context(unreachable(sealing))
            return done

        sealing.on_loop.seal_answer = sealed  # type: ignore[method-assign, assignment]
        turn = await tell(sealing, remembers("w1"))
    assert turn.outcome is Outcome.PASSED
    files = load_snapshot(ObjectStoreClient(sealing.settings), await pointer(sealing)).manifest.files
    assert "notes/w1" in files
    assert "output/response.md" not in files
    seen: list[str] = []
    assert (await tell(hosts("b"), remembers("w2", seen=seen))).outcome is Outcome.PASSED
    assert seen == ["w1"]


async def test_a_sealed_answer_is_committed_by_a_host_that_does_not_reach_the_object_store(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = hosts("a")
    turn_id = await dying.submit(remembers("w1"))
    with monkeypatch.context() as armed:
        armed.setattr(failpoints, "_points", failpoints._read_failpoint("answer.published=raise@1"))
        with pytest.raises(FailpointError):
            await asyncio.to_thread(dying.carry_out, turn_id)
    link = await asyncio.to_thread(taken_from, dying, turn_id)
    before = await pointer(dying)
    with unreachable(hosts("b")):
        await asyncio.to_thread(hosts("b").carry_out, turn_id, link)
    assert (await dying.client.reader.read_turn(turn_id)).outcome is Outcome.PASSED
    assert await pointer(dying) == before


async def test_a_snapshot_that_the_object_store_lost_ends_the_turn_as_a_lost_session(
    hosts: Hosts, away: Settings
) -> None:
    await tell(hosts("a"), remembers("w1"))
    objects = ObjectStoreClient(away)
    for each in list(objects.list_objects()):
        objects.remove_object(each.name)
    turn = await tell(hosts("b"), remembers("w2"))
    assert turn.outcome is Outcome.ERROR
    assert turn.error is not None
    assert turn.error.code == "session_lost"


async def test_a_relay_that_cannot_reach_the_object_store_says_so(hosts: Hosts, away: Settings, tmp_path: Path) -> None:
    turn = await tell(hosts("a"), remembers("w1"))
    gone = replace(away, files_endpoint=f"http://127.0.0.1:{free_port()}", root=tmp_path / "relay")
    gone.root.mkdir()
    async with web(gone) as http:
        for path in ("files", "files/chart.csv"):
            answer = await http.get(f"/v1/turns/{turn.turn_id}/{path}")
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "files_unavailable"
            assert answer.headers["retry-after"]
        assert (await http.get(f"/turns/{turn.turn_id}")).status_code == 200, "its page shows all but the files"


@pytest.mark.parametrize(
    ("changes", "environment", "word"),
    [
        ({}, {}, "ok"),
        ({"files": "s3://none-such"}, {"AWS_ACCESS_KEY_ID": READER}, "AccessDenied"),
        ({}, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
        ({"files_endpoint": "http://127.0.0.1:9"}, {}, "object store"),
    ],
)
def test_doctor_says_what_is_wrong_with_the_object_store(
    away: Settings, changes: dict[str, str], environment: dict[str, str], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = list(object_store(replace(away, **changes)))
    assert [each.check for each in found] == ["files"]
    assert found[0].state == ("ok" if word == "ok" else "wrong")
    assert word == "ok" or word in found[0].message


async def test_gc_removes_what_nobody_needs_and_no_snapshot_that_somebody_reads(
    hosts: Hosts, away: Settings, client: TurnsClient
) -> None:
    for number, name in enumerate("ab" * 6, 1):
        await tell(hosts(name), remembers(f"w{number}"))
    objects = ObjectStoreClient(away)
    objects.put_object(f"{session_digest('s')}/late.0.0", b"of a fenced holder")
    before = list(objects.list_objects())
    kept = await clear_objects(client.store, objects, now=time.time(), session_seconds=0, dry_run=False)
    assert (kept.objects, kept.problems) == (0, []), "all of it is within the grace"
    later = time.time() + away.files_grace_seconds + 60
    cleared = await clear_objects(client.store, objects, now=later, session_seconds=0, dry_run=False)
    left = {each.name for each in objects.list_objects()}
    assert cleared.objects == len(before) - len(left) > 10
    assert len(left) < 12
    seen: list[str] = []
    await tell(hosts("c"), remembers("last", seen=seen))
    assert seen == [f"w{each}" for each in range(1, 13)]


async def test_a_session_that_is_too_large_fails_with_a_word_and_does_not_spoil_the_next_message(hosts: Hosts) -> None:
    small = hosts("a", files_max_bytes=2**20)

    def large(order: Order, emit: Emit, stop: Stop) -> RunResult:
        (order.workdir / "large").write_bytes(os.urandom(2**20 + 1))
        return says(GOOD)(order, emit, stop)

    await tell(small, remembers("w1"))
    turn = await tell(small, large)
    assert turn.outcome is Outcome.ERROR
    assert turn.error is not None
    assert turn.error.code == "session_too_large"
    seen: list[str] = []
    assert (await tell(small, remembers("w2", seen=seen))).outcome is Outcome.PASSED
    assert seen == ["w1"]
