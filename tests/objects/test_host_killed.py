"""A host is lost, or frozen for longer than its lease, at each step of a session's files; another one goes on.

Real workers with a HELIX_ROOT of their own each, a real broker and a real object store; the signals are real too.
"""

import hashlib
from collections.abc import AsyncIterator, Iterator

import pytest

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome
from tests.fault.matrix import Runs, Stage, resume
from tests.installation import asked
from tests.objects.seaweedfs import ObjectServer
from tests.support import wait_until
from worker.plugins.object_store.objects import read_contents
from worker.plugins.object_store.snapshots import SnapshotManifest

#: The step, which pass of it in a turn, and how many agents are paid for the turn that is hit when its host is lost.
STEPS = (
    ("files.restored", 1, 1),
    ("files.uploaded", 1, 2),  # uploaded, and not sealed: what that host has recorded is out of reach
    ("answer.sealed", 1, 1),
    ("answer.published", 1, 1),
    ("files.uploaded", 2, 1),  # sealed, and not committed
    ("turn.finished", 1, 1),
)
CASES = [(point, at, action, runs) for point, at, runs in STEPS for action in ("kill", "stop")]
_RULE = """
- when: "[{name} {word}]"
  attempts:
    - - write: {{path: output/{word}.csv, content: {word}}}
      - say: "Fertig.\\n\\n<!-- STEP: done -->"
"""
WORDS = ("first", "second", "third")


@pytest.fixture(scope="module")
def stage(_server: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    names = [f"{point}.{at}-{action}" for point, at, action, _ in CASES]
    script = "".join(_RULE.format(name=name, word=word) for name in names for word in WORDS)
    folder = tmp_path_factory.mktemp("apart")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in _server.environment.items():
            environment.setenv(name, value)
        away = {"files": _server.files, "files_endpoint": _server.url}
        with Stage(folder, script, **away) as made:
            made.start(0)
            for host in ("a", "b"):
                (folder / host).mkdir()
                made.worker(wait=False, root=folder / host)
            for worker in made.workers:
                worker.wait_ready()
            yield made


@pytest.fixture
async def runs(stage: Stage) -> AsyncIterator[Runs]:
    made = Runs(stage.action_log)
    yield made
    made.close()


async def snapshot(client: TurnsClient, session: str) -> tuple[str, SnapshotManifest]:
    """Who uploaded the current snapshot of a session, by turn and hash of the token; and what it holds."""
    found = await client.session_files.of(session)
    assert found is not None
    assert found.pointer is not None
    return found.pointer.name.partition("/")[2].rpartition(".")[0], found.manifest


@pytest.mark.parametrize(("point", "at", "action", "paid"), CASES, ids=[f"{p}.{n}-{a}" for p, n, a, _ in CASES])
async def test_a_conversation_goes_on_when_the_host_of_its_turn_is_lost(
    stage: Stage, runs: Runs, point: str, at: int, action: str, paid: int
) -> None:
    name = f"{point}.{at}-{action}"
    async with TurnsClient(stage.settings) as client:

        async def ask(word: str) -> str:
            return await client.submitter.submit(asked(f"[{name} {word}]", name))

        assert (await client.reader.await_result(await ask("first"), timeout=120)).outcome is Outcome.PASSED
        hosts = {pid: worker for worker in stage.workers for pid in worker.children().values()}
        stage.arm(point, f"{action}@{at}")
        turn_id = await ask("second")
        pid = await stage.fired(point, at)
        stage.disarm()
        lost = hosts[pid]
        if action == "kill":
            lost.kill()
        turn = await client.reader.await_result(turn_id, timeout=120)
        assert turn.outcome is Outcome.PASSED
        if action == "kill":
            stage.workers.remove(lost)
            stage.worker(root=stage.settings.root.parent / ("a" if "/a/" in str(lost.log_file) else "b"))
        else:
            resume(pid)
            if point != "turn.finished":
                await wait_until(lambda: stage.logged("turn.fenced", turn_id))
        assert len(runs.of(turn_id)) <= paid
        third = await client.reader.await_result(await ask("third"), timeout=120)
        assert third.outcome is Outcome.PASSED
        with stage.store as store:
            token = store.hget(stage.keys.turn(third.turn_id), "last_token")
        assert isinstance(token, bytes)
        uploader, manifest = await snapshot(client, name)
        assert uploader == f"{third.turn_id}.{hashlib.sha256(token).hexdigest()[:16]}", "no late upload is current"
        answers = {path.rpartition("/")[2] for path in manifest.files if path.startswith("attempts/")}
        assert {f"{word}.csv" for word in WORDS} <= answers, "each message's file is in the session"
        done = manifest.files["output/.done"]
        [content] = read_contents(client.session_files.objects, done.pack, [done])
        assert f'"{third.turn_id}-1'.encode() in content, "and its end is the last answer"
