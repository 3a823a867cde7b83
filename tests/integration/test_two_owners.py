"""Two owners try each other's phases, folders, inbox, outputs, idempotency keys and chats: CVE class "foreign object".

Real relay and worker processes, real HTTP. The class hit Open WebUI as CVE-2026-45349 (whoever knew a chat's id joined
it) and this project in phases (two owners shared one folder): each test here names what must not cross.
"""

import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api_client import api_keys as ring
from tests.installation import installed, settings_on
from tests.support import playing, wait_until
from worker.processes.embedded_broker import EmbeddedBroker

SCRIPT = """
- when: write it
  attempts:
    - - write: {path: output/a.md, content: "# written by alice, secret 4711"}
      - say: geschrieben
- when: chat
  attempts: [[say: "Antwort. <!-- STEP: done -->"]]
- attempts: [[say: "nichts geschrieben"]]
"""
WRITES = "write it"  # the words that make the scripted agent write a.md
SUSPENDS = {"human": True, "timeout_seconds": 600, "default": "reject"}


@dataclass
class Owner:
    """One key's holder, as a client over HTTP."""

    http: httpx2.AsyncClient
    folder: str

    async def phase(self, description: str, directory: str = "", **more: Any) -> httpx2.Response:
        headers = more.pop("headers", {})
        phase = {"id": "one", "description": description, "output_files": ["a.md"], "max_attempts": 1}
        phase |= more.pop("phase", {})
        body = {"directory": directory or self.folder, "phases": [phase], "escalation": {"human": False}, **more}
        return await self.http.post("/v1/phases", json=body, headers=headers)

    async def ended(self, answer: httpx2.Response) -> dict[str, Any]:
        assert answer.status_code == 202, answer.text
        return await self.until(answer, lambda turn: bool(turn["outcome"]))

    async def until(self, answer: httpx2.Response, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        url = answer.json()["data"][0]["url"]

        async def seen() -> dict[str, Any] | None:
            turn: dict[str, Any] = (await self.http.get(url)).json()
            return turn if holds(turn) else None

        return dict(await wait_until(seen, tick=0.1))


@dataclass
class Two:
    """The installation: two owners of plain keys, an operator, and its root; ``folder`` is this test's own."""

    root: Path
    folder: str
    alice: Owner
    bob: Owner
    operator: Owner


@dataclass(frozen=True)
class Site:
    """One relay and one worker for all tests here; keys by name."""

    root: Path
    url: str
    keys: dict[str, str]


@pytest.fixture(scope="module")
def installation(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("two-owners")
    settings = playing(
        settings_on(broker, root, locale="en"), SCRIPT, phase_directories=("work=alice", "work=bob", "hers=alice")
    )
    for name in ("work", "hers", "nobodys"):
        (root / name).mkdir()
    rights = {"alice": "user", "bob": "user", "ops": "operator"}
    keys = {
        name: ring.add_key(settings.keys_path, ring.ApiKey(name=name, hash="", owner=name, right=right))
        for name, right in rights.items()
    }
    with installed(settings) as site:
        site.worker()
        yield Site(root, site.relay().url, keys)


@pytest.fixture
async def two(installation: Site) -> AsyncIterator[Two]:
    folder = f"work/{secrets.token_hex(4)}"
    (installation.root / folder).mkdir()
    clients = [
        httpx2.AsyncClient(base_url=installation.url, headers={"authorization": f"Bearer {key}"}, timeout=60)
        for key in installation.keys.values()
    ]
    yield Two(installation.root, folder, *(Owner(client, folder) for client in clients))
    for client in clients:
        await client.aclose()


async def test_foreign_object_output_of_another_owner_lets_no_phase_pass(two: Two) -> None:
    passed = await two.alice.ended(await two.alice.phase(WRITES))
    assert passed["outcome"] == "passed"
    failed = await two.bob.ended(await two.bob.phase("anything"))
    assert (failed["outcome"], failed["error"]["code"]) == ("failed", "phase_not_verified")
    assert "MISSING_FILE" in failed["error"]["message"]
    places = [two.root / "projects" / "phases" / turn["session_id"] / "one" / "output" for turn in (passed, failed)]
    assert (places[0] / "a.md").read_text() == "# written by alice, secret 4711"
    assert not (places[1] / "a.md").exists()
    assert not list((two.root / two.folder).iterdir()), "nobody's output lies in the shared folder"


async def test_foreign_object_a_suspended_phase_holds_up_nobody_elses(two: Two) -> None:
    suspended = await two.bob.phase("anything", escalation=SUSPENDS)
    await two.bob.until(suspended, lambda turn: turn["state"] == "suspended")
    assert (await two.alice.ended(await two.alice.phase(WRITES)))["outcome"] == "passed"


async def test_foreign_object_inbox_and_decisions_are_the_owners(two: Two) -> None:
    suspended = await two.bob.phase("anything", escalation=SUSPENDS)
    turn = await two.bob.until(suspended, lambda turn: turn["state"] == "suspended")
    url = f"/v1/inbox/{turn['turn_id']}"
    hers = (await two.alice.http.get("/v1/inbox")).json()["data"]
    assert turn["turn_id"] not in {each["turn_id"] for each in hers}
    assert (await two.alice.http.get(url)).status_code == 404
    forged = await two.alice.http.post(f"{url}/decision", json={"decision": "reject", "for": "bob"})
    assert forged.status_code == 404
    for path in ("", "/attempts", "/events"):
        assert (await two.alice.http.get(f"/v1/turns/{turn['turn_id']}{path}")).status_code == 404
    assert (await two.alice.http.delete(f"/v1/turns/{turn['turn_id']}")).status_code == 404
    his = (await two.bob.http.get("/v1/inbox")).json()["data"]
    assert turn["turn_id"] in {each["turn_id"] for each in his}
    files = (await two.bob.http.get(url)).json()["proposal"]["files"]
    assert (two.root / files).is_dir()
    decided = await two.operator.http.post(f"{url}/decision", json={"decision": "reject", "for": "bob"})
    decision = decided.json()["decision"]
    assert (decision["for"], decision["by"].startswith("key:")) == ("bob", True)


async def test_foreign_object_a_folder_opens_to_those_it_is_granted_to(two: Two) -> None:
    for directory in ("hers", "nobodys", "gone", ".", "hers/../hers", "work/../hers"):
        refused = await two.bob.phase("x", directory)
        assert refused.status_code in {400, 403}, directory
        assert refused.json()["error"]["param"] == "directory"
    refused = await two.bob.phase("x", "hers")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "directory_not_granted")
    (two.root / two.folder / "way").symlink_to(two.root / "hers")
    assert (await two.bob.phase("x", f"{two.folder}/way")).status_code == 400
    assert (await two.alice.phase("x", "hers")).status_code == 202
    assert (await two.operator.phase("x", "nobodys")).status_code == 202


async def test_foreign_object_input_files_name_ones_own_phases_only(two: Two) -> None:
    passed = await two.alice.ended(await two.alice.phase(WRITES))
    stolen = {"input_files": ["phases/one/output/a.md"], "id": "two"}
    turn = await two.bob.ended(await two.bob.phase("anything", phase=stolen))
    assert (turn["outcome"], turn["error"]["code"]) == ("error", "config")
    own = await two.alice.ended(await two.alice.phase(WRITES, phase=stolen))
    assert own["outcome"] == "passed"
    there = f"projects/phases/{passed['session_id']}/one/output/a.md"
    assert (two.root / there).is_file()
    for path in (there, f"../{there}", f"phases/../../{there}"):
        answer = await two.bob.phase("anything", phase={"input_files": [path]})
        assert answer.status_code == 400 or (await two.bob.ended(answer))["error"]["code"] == "config"


async def test_foreign_object_idempotency_keys_and_chats_are_told_apart_by_owner(two: Two) -> None:
    same = {"idempotency-key": f"{two.folder} 1", "x-conversation-id": "chat-1"}
    body = {"model": "scripted", "messages": [{"role": "user", "content": "chat"}]}
    hers = (await two.alice.http.post("/v1/turns", json=body, headers=same)).json()
    his = (await two.bob.http.post("/v1/turns", json=body, headers=same)).json()
    assert hers["turn_id"] != his["turn_id"]
    assert hers["session_id"] != his["session_id"]
    again = (await two.alice.http.post("/v1/turns", json=body, headers=same)).json()
    assert again["turn_id"] == hers["turn_id"]
    phases = [await each.phase(WRITES, headers={"idempotency-key": f"{two.folder} 2"}) for each in (two.alice, two.bob)]
    ids = {answer.json()["data"][0]["turn_id"] for answer in phases}
    assert len(ids) == 2
    sessions = {
        (await owner.ended(answer))["session_id"] for owner, answer in zip((two.alice, two.bob), phases, strict=True)
    }
    assert len(sessions) == 2


@pytest.mark.parametrize(
    "directory", [".helix", ".helix/broker", "work/.git", "projects", "projects/phases", "a" * 300]
)
async def test_hidden_folders_and_those_of_sessions_are_for_nobodys_phases(two: Two, directory: str) -> None:
    for owner in (two.alice, two.operator):
        refused = await owner.phase("x", directory)
        assert refused.json()["error"]["param"] == "directory"
    assert refused.status_code == 400


async def test_a_folder_that_is_missing_is_refused_and_one_that_vanishes_is_waited_for(two: Two) -> None:
    missing = await two.operator.phase("x", "gone")
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "directory")
    (two.root / "brief").mkdir()
    suspended = await two.operator.phase("anything", "brief", escalation=SUSPENDS)
    turn = await two.operator.until(suspended, lambda turn: turn["state"] == "suspended")
    later = await two.operator.phase("anything", "brief")  # waits behind it
    (two.root / "brief").rmdir()
    decision = {"decision": "retry", "note": "again"}
    await two.operator.http.post(f"/v1/inbox/{turn['turn_id']}/decision", json=decision)
    waiting = await two.operator.until(suspended, lambda turn: (turn["waits"] or {}).get("reason") == "unfit")
    assert "brief" in waiting["waits"]["said"], "it says what the workers lack"
    (two.root / "brief").mkdir()
    for answer in (suspended, later):
        await two.operator.http.post(f"{answer.json()['data'][0]['url']}/cancel")
        ended = await two.operator.ended(answer)
        assert (ended["outcome"], ended["strikes"]) == ("cancelled", 0), json.dumps(ended["error"])


async def test_an_input_that_is_a_link_or_a_pipe_is_refused_with_its_place(two: Two) -> None:
    os.mkfifo(two.root / two.folder / "pipe")
    (two.root / two.folder / "link").symlink_to("/etc/passwd")
    answer = await two.alice.phase("x", phase={"input_files": ["pipe", "link", "later.md"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_phases")
    told = answer.json()["error"]["message"]
    assert "phases[1].input_files[1]: 'pipe' is a pipe" in told
    assert "phases[1].input_files[2]: 'link' is a link" in told
    assert "later.md" not in told
