"""Log lines of real processes, at their finest: a turn is found by its ids, and no secret or text is in them."""

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import redis

from tests.installation import Installation
from tests.ports import free_port
from tests.support import wait_for
from worker.processes.embedded_broker import find_server

PASSWORD, KEY, PROMPT, ANSWER, TROUBLE = (
    f"{name}-{secrets.token_hex(8)}" for name in ("pw", "key", "ask", "say", "err")
)
SCRIPT = f"""
- when: repariere
  attempts:
    - - tool: {{name: Read, detail: "{ANSWER}"}}
      - say: "Ohne Marker, {ANSWER}."
    - - say: "Mit Marker, {ANSWER}.\\n\\n<!-- STEP: what -->"
- when: stirbt
  attempts:
    - - say: "Ich fange an, {ANSWER}"
      - die
- when: kann nicht
  attempts:
    - - error: {{kind: permanent, message: "{TROUBLE}"}}
"""


@pytest.fixture
def guarded(installation: Installation, tmp_path: Path) -> Iterator[Installation]:
    """Settings of an installation whose broker asks for a password, at the finest level of its logs."""
    port = free_port()
    command = [
        str(find_server().path),
        "--port",
        str(port),
        "--requirepass",
        PASSWORD,
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
    wait_for(lambda: _pings(url))
    installation.play(SCRIPT, "big", broker_url=url, store_url=url, api_keys=(KEY,))
    installation.change(max_attempts=2, log_format="json", log_level="debug")
    yield installation
    process.kill()
    process.wait(60)


def _pings(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_a_turn_is_found_by_its_ids_and_no_line_holds_a_secret_or_a_text(guarded: Installation, tmp_path: Path) -> None:
    worker = guarded.worker()
    log = tmp_path / "web.log"
    url = guarded.relay(log=log).url
    asked = {text: ask(url, text) for text in ("repariere", "stirbt", "kann nicht")}
    assert httpx2.get(f"{url}/v1/models", headers={"authorization": f"Bearer {KEY}x"}, timeout=60).status_code == 401
    with redis.Redis.from_url(guarded.settings.store_url) as client:
        client.shutdown(nosave=True)  # what is said about a broker that is away is said too
    wait_for(lambda: worker.log_file.read_text().count("heartbeat.store_away") >= 2)
    wait_for(lambda: away_lines(worker.log_file.read_text()))
    said = worker.log_file.read_text() + log.read_text()
    assert 1 <= len(away_lines(said)) <= 2, "once a worker, not with every look"
    for secret in (PASSWORD, KEY, PROMPT, ANSWER, TROUBLE):
        assert secret not in said, next(line for line in said.splitlines() if secret in line)[:2000]
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    for text, turn_id in asked.items():
        found = [line for line in lines if line.get("turn_id") == turn_id]
        assert {"turn.submitted", "turn.finished", "request.served"} <= {line["event"] for line in found}, text
        assert len({line["session_id"] for line in found}) == 1
        assert [line["attempt"] >= 1 for line in found if line["event"] == "turn.finished"] == [True]
    assert all({"event", "level", "timestamp"} <= set(line) for line in lines)


def away_lines(said: str) -> list[str]:
    """What a reaper says of a store that is away."""
    return [line for line in said.splitlines() if '"store.away"' in line and '"thread": "reaper"' in line]


def ask(url: str, text: str) -> str:
    """The id of the turn that answered; a busy machine's 503 is asked again, as OpenAI's clients do."""
    body = {"model": "big", "messages": [{"role": "user", "content": f"{text} {PROMPT}"}]}
    headers = {"authorization": f"Bearer {KEY}"}

    def turn_id() -> str:
        answer = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60, headers=headers)
        return str(answer.headers.get("x-turn-id", ""))

    return str(wait_for(turn_id))
