"""Back-up of a running installation and restore into an empty one, as docs/operations.md describes them."""

import asyncio
import contextlib
import gzip
import json
import shutil
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import RestoreRefused
from api_client.contract.phase import Phase
from api_client.contract.settings import Settings
from api_client.index.search import Search
from api_client.index.selection import select_turns
from tests.fault.staged.restore import DUMP, Forged, hostile, places, tree
from tests.installation import Installation, asked, end_all, run
from tests.ports import free_port
from tests.support import wait_for, wait_until
from tests.unit.runners.test_folder_trees import make_deep
from worker.files.folder_trees import remove_tree
from worker.plugins.backup import keyspace, restoring
from worker.plugins.backup.archive import ArchiveWriter
from worker.plugins.backup.folder_saving import save_folder
from worker.plugins.backup.keyspace import find_restore_server
from worker.processes.embedded_broker import EmbeddedBroker, ServerBinary, find_server

#: A chat's agent that answers, and one of a phase that writes its file.
SCRIPT = """
- when: add.py
  attempts:
    - - write: {path: output/add.py, content: "def add(a, b):\\n    return a + b\\n"}
      - say: Fertig.
      - verdict: true
- attempts:
    - - say: "Hello.\\n\\n<!-- STEP: what -->"
"""
PHASE = {"id": "build", "description": "Write add.py.", "output_files": ["add.py"], "verify_agent": False}


@pytest.fixture
def before(installation: Installation, private_broker: EmbeddedBroker) -> Settings:
    """The installation that is backed up."""
    return installation.play(SCRIPT, broker_url=private_broker.url, store_url=private_broker.url)


@pytest.fixture
def after(before: Settings, tmp_path: Path) -> Settings:
    """An empty one, without a server of its own."""
    root = tmp_path / "after"
    root.mkdir()
    return replace(before, root=root, broker_url="", store_url="")


@pytest.fixture
def started(after: Settings) -> Iterator[Callable[[], Settings]]:
    """Starts the embedded broker of the restored installation."""
    servers: list[EmbeddedBroker] = []

    def start() -> Settings:
        servers.append(EmbeddedBroker(after.root / ".helix" / "broker"))
        servers[-1].start()
        return replace(after, broker_url=servers[-1].url, store_url=servers[-1].url)

    yield start
    for server in servers:
        server.stop()


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_restored_installation_has_turns_keys_sessions_and_phases_and_goes_on(
    before: Settings,
    after: Settings,
    started: Callable[[], Settings],
    installation: Installation,
    tmp_path: Path,
) -> None:
    (before.root / "work").mkdir()
    (before.root / "work" / "notes.md").write_text("read me")
    key = run(before, "keys", "create", "alice").stdout.strip()
    worker = installation.worker()
    async with TurnsClient(before) as client:
        answered = await client.submitter.submit(asked("hello", "a"))
        await client.reader.await_result(answered, timeout=60)
        [built] = await client.phases.submit_phases([Phase.from_dict(PHASE)], directory="work")
        assert (await client.reader.await_result(built, timeout=60)).outcome == "passed"
        end_all([worker])
        waiting = await client.submitter.submit(asked("hello", "b"))
        reading = Phase.from_dict({**PHASE, "id": "next", "input_files": ["notes.md"]})
        [queued] = await client.phases.submit_phases([reading], directory="work")
        events = await client.reader.read_events(answered)
    archive = tmp_path / "backup"
    done = run(before, "data", "backup", str(archive), "--json")
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".backup")] == []

    killed = 0
    for point in ("restore.file=kill@1", "restore.file=kill@4", "restore.keys=kill@1"):
        half = run(after, "data", "restore", str(archive), HELIX_FAILPOINT=point)
        killed += half.returncode == -signal.SIGKILL
        refused = run(after, "up")
        assert (refused.returncode, "half restored" in refused.stderr) == (2, True)
    assert killed == 3
    done = run(after, "data", "restore", str(archive), "--json")
    assert done.returncode == 0, done.stderr
    assert not (after.root / ".helix" / "restoring").exists()

    restored = installation.settings = started()
    sessions = Path("projects/sessions/a")
    assert files_below(after.root / sessions) == files_below(before.root / sessions)
    assert (after.root / "work/phases/build/output/add.py").read_text().startswith("def add")
    assert (after.root / "work/notes.md").read_text() == "read me"
    async with TurnsClient(restored) as client:
        assert await client.reader.read_events(answered) == events
        assert run(after, "data", "restore", str(archive)).returncode == 2, "it is not empty any more"
        installation.worker()
        assert (await client.reader.await_result(waiting, timeout=60)).outcome == "passed"
        assert (await client.reader.await_result(queued, timeout=60)).outcome == "passed"
    relay = installation.relay()
    answer = httpx2.get(f"{relay.url}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=60)
    assert answer.status_code == 200
    assert httpx2.get(f"{relay.url}/v1/models", timeout=60).status_code == 401


async def test_every_turn_acknowledged_before_a_backup_began_is_in_it_under_load(
    before: Settings, after: Settings, started: Callable[[], Settings], tmp_path: Path
) -> None:
    acknowledged: list[str] = []
    async with TurnsClient(before) as client:

        async def load(session: str) -> None:
            while not stop.is_set():
                request = asked("hello", session)
                acknowledged.append(await client.submitter.submit(request))

        stop = threading.Event()
        loads = [asyncio.create_task(load(f"s{number}")) for number in range(8)]
        archives = []
        for number in range(3):
            await wait_until(lambda number=number: len(acknowledged) > 50 * (number + 1))
            known = set(acknowledged)
            path = tmp_path / f"backup-{number}"
            done = await asyncio.to_thread(run, before, "data", "backup", str(path))
            assert done.returncode == 0, done.stderr
            archives.append((path, known))
        stop.set()
        await asyncio.gather(*loads)
    path, known = archives[-1]
    assert run(after, "data", "restore", str(path)).returncode == 0
    async with TurnsClient(started()) as client:
        there = {found.turn_id for found in await select_turns(client.lists, Search())}
    assert len(known) > 150
    assert known <= there


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.999])
def test_half_an_archive_is_refused_and_nothing_is_written(
    before: Settings, after: Settings, tmp_path: Path, part: float
) -> None:
    (before.root / "projects" / "sessions" / "s").mkdir(parents=True)
    (before.root / "projects" / "sessions" / "s" / "big").write_bytes(bytes(range(256)) * 400)
    archive = tmp_path / "backup"
    assert run(before, "data", "backup", str(archive)).returncode == 0
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * part)])
    refused = run(after, "data", "restore", str(archive))
    assert refused.returncode == 2
    assert "[restore_refused]" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(after.root.rglob("projects")) == []
    assert not (after.root / ".helix" / "restoring").exists()


def test_a_changed_archive_is_refused_by_its_checksum(before: Settings, after: Settings, tmp_path: Path) -> None:
    (before.root / "projects" / "sessions" / "s").mkdir(parents=True)
    (before.root / "projects" / "sessions" / "s" / "answer").write_text("as it was")
    archive = tmp_path / "backup"
    assert run(before, "data", "backup", str(archive)).returncode == 0
    archive.write_bytes(gzip.compress(gzip.decompress(archive.read_bytes()).replace(b"as it was", b"not as it")))
    refused = run(after, "data", "restore", str(archive))
    assert (refused.returncode, "checksum" in refused.stderr) == (2, True)


def test_a_restore_goes_only_into_what_is_empty(before: Settings, after: Settings, tmp_path: Path) -> None:
    (before.root / "projects" / "sessions" / "s").mkdir(parents=True)
    (before.root / "projects" / "sessions" / "s" / "answer").write_text("mine")
    archive = tmp_path / "backup"
    assert run(before, "data", "backup", str(archive)).returncode == 0
    into_itself = run(replace(before, root=after.root), "data", "restore", str(archive))
    assert (into_itself.returncode, "not empty" in into_itself.stderr) == (2, True)
    assert not (after.root / "projects").exists()
    assert not (after.root / ".helix" / "restoring").exists()
    (after.root / "projects" / "sessions" / "s").mkdir(parents=True)
    (after.root / "projects" / "sessions" / "s" / "answer").write_text("other")
    over = run(after, "data", "restore", str(archive))
    assert (over.returncode, "empty HELIX_ROOT" in over.stderr) == (2, True)
    again = run(before, "data", "backup", str(archive))
    assert (again.returncode, "exists already" in again.stderr) == (2, True)


def test_a_restore_says_which_settings_differ_and_masks_secrets(
    before: Settings, after: Settings, tmp_path: Path
) -> None:
    archive = tmp_path / "backup"
    had = replace(before, run_slots=7, api_keys=("a-secret-key-of-mine",))
    assert run(had, "data", "backup", str(archive)).returncode == 0
    assert b"a-secret-key-of-mine" not in gzip.decompress(archive.read_bytes())
    told = json.loads(run(after, "data", "restore", str(archive), "--json").stdout)
    rows = {row["name"]: row for row in told["settings_that_differ"]}
    assert (rows["HELIX_RUN_SLOTS"]["was"], rows["HELIX_RUN_SLOTS"]["now"]) == ("7", "16")
    assert rows["HELIX_API_KEYS"]["was"]


def test_a_refused_archive_leaves_the_place_as_it_was(tmp_path: Path) -> None:
    """Each archive of the staged fault, without a process of its own (tests/fault/staged/restore.py)."""
    archive = tmp_path / "archive"
    for settings, look in places(tmp_path):
        before = look()
        for what, forged in hostile(tmp_path / "outside", 64 * 2**20).items():
            forged.write(archive)
            with pytest.raises(RestoreRefused):
                restoring.restore_archive(settings, archive, contextlib.nullcontext)
            assert look() == before, what


def test_a_file_gets_no_more_than_permissions(after: Settings, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    files = {"store.rdb": DUMP, "root/projects/run": b"#!"}
    Forged(
        files=files, modes={"root/projects/run": 0o6755}, facts={"namespace": after.namespace, "settings": []}
    ).write(archive)
    assert run(after, "data", "restore", str(archive)).returncode == 0
    assert stat.S_IMODE((after.root / "projects" / "run").stat().st_mode) == 0o755


def test_a_root_with_a_store_in_use_is_refused_and_stays_as_it_was(
    before: Settings, after: Settings, tmp_path: Path
) -> None:
    archive = tmp_path / "backup"
    assert run(before, "data", "backup", str(archive)).returncode == 0
    with EmbeddedBroker(after.root / ".helix" / "broker") as server:
        own = replace(after, broker_url=server.url, store_url=server.url)
        assert run(own, "submit", "hello").returncode == 0
    was = tree(after.root)
    refused = run(after, "data", "restore", str(archive))
    assert (refused.returncode, "the store is not empty" in refused.stderr) == (2, True)
    assert tree(after.root) == was


def test_a_server_that_reads_the_backup_and_fits_the_store_is_taken(private_settings: Settings, tmp_path: Path) -> None:
    broken = tmp_path / "broken-server"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    servers = [ServerBinary(broken, "9.9.9", "PATH"), find_server()]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keyspace, "find_servers", lambda: iter(servers))
        assert find_restore_server(private_settings, b"REDIS0010") == servers[1]
        with pytest.raises(RestoreRefused, match=r"broken-server 9.9.9 does not read it.*on PATH"):
            find_restore_server(private_settings, b"REDIS0099")


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs a redis-server older than the wheel's Valkey")
def test_a_backup_of_an_older_server_goes_back_into_one_like_it(
    before: Settings, after: Settings, tmp_path: Path
) -> None:
    archive, port = tmp_path / "backup", free_port()
    own = replace(before, broker_url=(url := f"redis://127.0.0.1:{port}/0"), store_url=url)
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            wait_for(lambda: run(own, "submit", "hello").returncode == 0)
            done = run(own, "data", "backup", str(archive))
            assert (done.returncode, "note:" in done.stdout) == (0, False), done.stderr
            with redis.Redis.from_url(url) as store:
                store.flushall()
                without = run(replace(own, root=after.root), "data", "restore", str(archive), PATH="/bin:/usr/sbin")
                assert "too old for what valkey-server" in without.stderr
                assert [*after.root.iterdir(), *store.keys()] == []
                done = run(replace(own, root=after.root), "data", "restore", str(archive))
                assert done.returncode == 0, done.stderr
            assert (
                "note: no server here" in run(own, "data", "backup", str(tmp_path / "b"), PATH="/bin:/usr/sbin").stdout
            )
        finally:
            server.terminate()


@pytest.mark.parametrize(("levels", "name"), [(1500, "d"), (60, "n" * 200)])
def test_a_folder_too_deep_to_be_restored_is_left_out_and_counted(tmp_path: Path, levels: int, name: str) -> None:
    make_deep(tmp_path / "top", levels, name)
    (tmp_path / "top" / "other").write_text("kept")
    with ArchiveWriter(tmp_path / "archive") as archive:
        assert save_folder(archive, tmp_path / "top", "root/projects", lambda _: False) == 1
        assert archive.entries["root/projects/other"].size == 4
    remove_tree(tmp_path / "top")
