"""``turns data gc``: what is old goes, what is live stays, and stopping in the middle loses nothing."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys, keys_for_turn
from api_client.contract.phase import Phase
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.index.clearing import clear
from tests.installation import environ_of
from tests.unit.runners.test_folder_trees import make_deep
from worker.cli import main
from worker.files.folder_clearing import GONE, OldFolder, find_old_folders, remove_folder

DAY = 86_400.0


def session(settings: Settings, name: str, *, days: float, attempts: dict[str, float]) -> Path:
    """A session's folder as old as this, with deliveries as old as these (days)."""
    folder = settings.sessions_dir / name
    for delivery, age in attempts.items():
        path = folder / "attempts" / delivery
        path.mkdir(parents=True)
        (path / "transcript").write_text("x" * 1000)
        for each in (path / "transcript", path):
            os.utime(each, (time.time() - age * DAY,) * 2)
    (folder / "status.json").write_text(json.dumps({"session_id": name}))
    for each in (folder / "status.json", folder / "attempts", folder):
        os.utime(each, (time.time() - days * DAY,) * 2)
    return folder


NOTHING = {"records": 0, "events": 0, "attempts": 0, "policies": 0}


@pytest.fixture
def gc(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:  # type: ignore[type-arg]
    """Runs ``turns data gc --json``: sessions are kept for 30 days, attempts for 3."""
    for name, value in environ_of(settings).items():
        monkeypatch.setenv(name, value)

    def gc(*arguments: str, code: int = 0) -> dict:  # type: ignore[type-arg]
        with pytest.raises(SystemExit) as ended:
            main(["data", "gc", "--json", "--sessions", "30", "--attempts", "3", *arguments])
        assert (ended.value.code or 0) == code
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return gc


def submit(settings: Settings, name: str) -> str:
    async def run() -> str:
        async with TurnsClient(settings) as client:
            message = {"role": "user", "content": "hello"}
            return await client.submitter.submit(TurnRequest(model="scripted", messages=(message,), session_id=name))

    return asyncio.run(run())


def test_old_folders_go_and_those_of_a_session_at_work_stay(settings: Settings, gc: Callable[..., dict]) -> None:  # type: ignore[type-arg]
    old = session(settings, "old", days=40, attempts={"a": 40})
    used = session(settings, "used", days=1, attempts={"old": 5, "new": 1})
    live = session(settings, "live", days=40, attempts={"a": 40})
    submit(settings, "live")
    stranger = settings.sessions_dir / "stranger"
    stranger.mkdir()
    (stranger / "status.json").write_text('{"session_id": "somebody-else"}')
    os.utime(stranger / "status.json", (0, 0))
    os.utime(stranger, (0, 0))
    outside = settings.root / "precious"
    outside.mkdir()
    (used / "attempts" / "old" / "link").symlink_to(outside)
    (settings.sessions_dir / "linked").symlink_to(outside)
    os.utime(used / "attempts" / "old", (time.time() - 5 * DAY,) * 2)
    os.utime(used / "attempts" / "old" / "link", (time.time() - 5 * DAY,) * 2, follow_symlinks=False)

    dry = gc("--dry-run")
    assert {name: dry["folders"][name] for name in ("sessions", "attempts", "bytes")} == {
        "sessions": 1,
        "attempts": 1,
        "bytes": 2000 + len('{"session_id": "old"}'),
    }
    assert old.exists()
    assert gc()["folders"] == dry["folders"]
    assert not old.exists()
    assert [path.name for path in (used / "attempts").iterdir()] == ["new"]
    assert (live / "attempts" / "a").exists()
    assert stranger.exists()
    assert outside.exists()
    assert gc()["folders"]["sessions"] == 0


def test_old_attempts_of_phases_go_alone(settings: Settings, gc: Callable[..., dict]) -> None:  # type: ignore[type-arg]
    turn = "turn-" + "a" * 32
    one, busy, linked = (settings.root / name / "phases" / "one" for name in ("done", "busy", "linked"))
    deliveries = {f"{turn}-1-1": 5, f"{turn}-2-2": 1, "mine": 5}
    for phase in (one, busy):
        for name, age in deliveries.items():
            output = phase / "attempts" / name / "output"
            output.mkdir(parents=True)
            (output / "a.py").write_text("x" * 100)
            for each in (output, output.parent):
                os.utime(each, (time.time() - age * DAY,) * 2)
        (phase / "output").mkdir()
    left = one.with_name(f"{GONE}1234")
    left.mkdir()
    linked.parent.mkdir(parents=True)
    linked.symlink_to(busy)
    for name in ("done", "linked", "busy", "taken away"):
        phases = asyncio.run(submit_phase(settings, name))
        if name != "busy":
            asyncio.run(cancel(settings, phases))

    dry = gc("--dry-run")["folders"]
    assert (dry["attempts"], dry["left_over"], dry["bytes"]) == (1, 1, 100)
    assert (one / "attempts" / f"{turn}-1-1").exists()
    assert gc()["folders"] == dry
    assert {path.name for path in (one / "attempts").iterdir()} == {f"{turn}-2-2", "mine"}
    assert (one / "output").exists()
    assert not left.exists()
    assert {path.name for path in (busy / "attempts").iterdir()} == set(deliveries), "its phase has not ended"
    with redis.Redis.from_url(settings.redis_url) as store:
        assert store.smembers(f"{Keys(settings.namespace).prefix}phase_folders") == {b"done", b"linked", b"busy"}


def test_old_attempts_in_the_private_places_of_owners_go_too(settings: Settings, gc: Callable[..., dict]) -> None:  # type: ignore[type-arg]
    old = f"turn-{'a' * 32}-1-1"
    places = {}
    for owner in ("done", "busy"):
        turn_id = asyncio.run(submit_phase(settings, "work", owner))
        session = asyncio.run(session_of(settings, turn_id))
        places[owner] = settings.root / "projects" / "phases" / session / "one"
        (places[owner] / "output").mkdir(parents=True)
        (places[owner] / "attempts" / old / "output").mkdir(parents=True)
        os.utime(places[owner] / "attempts" / old, (time.time() - 5 * DAY,) * 2)
        os.utime(places[owner] / "attempts" / old / "output", (time.time() - 5 * DAY,) * 2)
        if owner == "done":
            asyncio.run(cancel(settings, turn_id))
    assert gc()["folders"]["attempts"] == 1
    assert not (places["done"] / "attempts" / old).exists()
    assert (places["busy"] / "attempts" / old).exists(), "its phase has not ended"
    assert (places["done"] / "output").exists()


async def session_of(settings: Settings, turn_id: str) -> str:
    async with TurnsClient(settings) as client:
        return (await client.reader.read_turn(turn_id)).request.session_id


async def submit_phase(settings: Settings, directory: str, owner: str = "local") -> str:
    async with TurnsClient(settings) as client:
        phase = Phase.from_dict({"id": "one", "description": "Tu es."})
        [turn_id] = await client.phases.submit_phases([phase], directory=directory, owner=owner)
        return turn_id


async def cancel(settings: Settings, turn_id: str) -> None:
    async with TurnsClient(settings) as client:
        await client.canceller.cancel(turn_id)


def test_what_a_killed_clearing_left_goes_with_the_next(settings: Settings, gc: Callable[..., dict]) -> None:  # type: ignore[type-arg]
    left = session(settings, "s", days=40, attempts={"a": 40})
    left.rename(left.with_name(f"{GONE}1234"))
    assert gc()["folders"]["left_over"] == 1
    assert list(settings.sessions_dir.iterdir()) == []


def test_a_session_that_comes_back_to_work_at_the_last_moment_keeps_its_folder(settings: Settings) -> None:
    folder = session(settings, "s", days=40, attempts={"a": 40})
    assert not remove_folder(OldFolder("session", folder, "s", 0), live=lambda _: True)
    assert (folder / "attempts" / "a" / "transcript").exists()
    assert remove_folder(OldFolder("session", folder, "s", 0), live=lambda _: False)
    assert list(settings.sessions_dir.iterdir()) == []


def test_sessions_are_kept_for_ever_unless_a_time_is_set(settings: Settings) -> None:
    session(settings, "s", days=4000, attempts={"a": 4000})
    found = find_old_folders(
        settings.sessions_dir, now=time.time(), session_seconds=0, attempt_seconds=0, live=lambda _: False
    )
    assert list(found) == []


async def test_shorter_lives_are_given_to_what_has_finished_and_to_nothing_else(settings: Settings) -> None:
    async with TurnsClient(settings) as client:
        turns = {}
        for name in ("finished", "waiting", "dead"):
            message = {"role": "user", "content": name}
            request = TurnRequest(model="scripted", messages=(message,), session_id=name)
            turns[name] = await client.submitter.submit(request)
        await client.canceller.cancel(turns["finished"])
        await client.canceller.cancel(turns["dead"])
        long_ago = int((time.time() - 5 * DAY) * 1000)
        keys = keys_for_turn(settings.namespace, turns["dead"])
        redis = client.store.redis
        for name in ("finished", "dead"):
            await redis.hset(keys.turn(turns[name]), "finished_at", long_ago)
        await redis.hset(keys.turn(turns["dead"]), "outcome", "dead")
        for key in (keys.turn(turns["dead"]), keys.log(turns["dead"])):
            await redis.persist(key)

    async with TurnsClient(settings) as client:
        assert await clear(client.store, dry_run=True, events=DAY) == {
            "records": 0,
            "events": 1,
            "attempts": 0,
            "policies": 0,
        }
        assert len(await client.reader.read_events(turns["finished"])) > 0
        assert await clear(client.store, dry_run=False, events=DAY) == {
            "records": 0,
            "events": 1,
            "attempts": 0,
            "policies": 0,
        }
        assert await client.reader.read_events(turns["finished"]) == []
        assert [
            event async for event in client.reader.follow_turn(turns["finished"])
        ] == []  # and it does not wait for ever
        assert (await client.reader.await_result(turns["finished"], timeout=60)).outcome == "cancelled"
        for name in ("waiting", "dead"):
            assert await client.store.redis.ttl(keys.turn(turns[name])) == -1
            assert len(await client.reader.read_events(turns[name])) > 0
        assert await clear(client.store, dry_run=False, events=DAY) == {
            "records": 0,
            "events": 0,
            "attempts": 0,
            "policies": 0,
        }
    async with TurnsClient(replace(settings, retention_seconds=DAY)) as client:
        assert (await clear(client.store, dry_run=False))["records"] == 1
        assert await client.store.redis.exists(keys.turn(turns["finished"])) == 0
        assert await client.store.redis.exists(keys.turn(turns["waiting"])) == 1


def test_a_folder_of_any_depth_goes_and_holds_up_no_other(settings: Settings, gc: Callable[..., dict]) -> None:  # type: ignore[type-arg]
    deep = session(settings, "deep", days=40, attempts={"a": 40})
    make_deep(deep / "attempts" / "a" / "output")
    for each in (deep / "attempts" / "a", deep / "attempts", deep):
        os.utime(each, (time.time() - 40 * DAY,) * 2)
    session(settings, "other", days=40, attempts={"a": 40})
    assert gc()["folders"]["sessions"] == 2
    assert list(settings.sessions_dir.iterdir()) == []
