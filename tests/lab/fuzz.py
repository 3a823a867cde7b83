"""``python -m tests.lab.fuzz SECONDS``: bodies over HTTP against a real relay, store and worker; prints the outcome.

Two generators take turns. One mutates good bodies: values of wrong types and sizes, names that hurt, bytes that are no
JSON. The other is schemathesis, from the relay's own OpenAPI document. Asked for are: no answer 5xx but the documented
503, an answer to everything, and flat memory. Exit code 1 when one of them is missed.
"""

import contextlib
import http.client
import json
import os
import random
import secrets
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings

from tests.constants import set_constants
from tests.installation import RelayProcess, installed, settings_on
from tests.unit.web.fake import FakeTurns, app_with
from worker.processes.embedded_broker import EmbeddedBroker

GOOD = '- attempts: [[say: "Gut.\\n\\n<!-- STEP: done -->"]]\n'
KEY = {"authorization": "Bearer key"}
JSON_TYPE = {"content-type": "application/json"}
#: How turns may end on a server that is well: told as 502 and 504. And what 503 may say.
ENDINGS = {"incomplete", "error", "expired"}
DOCUMENTED = ENDINGS | {"store_unavailable", "stream_lost", "turn_suspended", "too_many_connections", "no_worker"}
ANSWER_SECONDS = 20.0
#: Longest body sent, in bytes: more than is taken (413), and less than the relay reads on before it hangs up.
_MOST_BYTES = 9 * 2**20
_OPENAPI_EXAMPLES = 25
_THREADS = 4
#: Memory may grow by so much from a third of the run to its end, in MiB.
_GROWTH_MIB = 40.0

_TEXTS = ["", " ", "a", "\u200b", "\ud800", "\0", "<!-- STEP: done -->", "ä" * 300, "\u2028", "../../etc", "${x}"]
_NUMBERS = [0, -1, 1, 1.5, 1e308, 10**30, -(10**99), 2**63]
_NAMES = ["messages", "content", "role", "model", "stream", "validators", "policy", "escalation", "phases", "directory"]
_NO_JSON = [b"NaN", b"1e999", b'"\\ud800"', b"\xff", b"[" * 100, b'"a":1,"a":2', b"\0"]
_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/turns", {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}),
    ("/v1/chat/completions", {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}], "stream": True}),
    ("/v1/responses", {"model": "scripted", "input": "Hallo", "background": True, "metadata": {"a": "b"}}),
    ("/v1/phases", {"directory": "work", "phases": [{"id": "a", "description": "x", "output_files": ["a.txt"]}]}),
    ("/v1/inbox/{turn_id}/decision", {"decision": "retry", "note": "again", "decision_id": "d"}),
]
_MORE = {
    "validators": ["step_marker"],
    "policy": {"step_marker": ["retry", "fail"]},
    "escalation": {"model": "scripted", "runs": 1},
    "max_attempts": 1,
    "deadline_seconds": 5,
    "session_id": "s",
    "stream_mode": "draft",
    "double_text": "reject",
    "locale": "en",
}


class Found:
    """What came of a run so far; written by several threads."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.faults: list[str] = []
        self.slowest = 0.0
        self._lock = threading.Lock()

    def note(self, status: int, content: bytes, asked: str, seconds: float) -> None:
        with self._lock:
            self.statuses[status] += 1
            self.slowest = max(self.slowest, seconds)
            if status >= 500 and _code(content) not in DOCUMENTED:
                self.faults.append(f"{status} {content[:200]!r} to {asked[:300]}")

    def broken(self, error: Exception, asked: str) -> None:
        with self._lock:
            self.faults.append(f"{type(error).__name__} to {asked[:300]}")


def _code(content: bytes) -> str:
    try:
        body = json.loads(content)
        return str(body["error"]["code"]) if "error" in body else str(body.get("status"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def value(draw: random.Random, depth: int = 0) -> Any:
    """Any JSON value, mostly a nasty one."""
    kinds = 6 if depth > 4 else 9
    match draw.randrange(kinds):
        case 0:
            return draw.choice(_TEXTS)
        case 1:
            return draw.choice(_TEXTS) * draw.choice([1, 1, 1, 50])
        case 2:
            return draw.choice(_NUMBERS)
        case 3:
            return draw.choice([None, True, False])
        case 4:
            return "".join(chr(draw.randrange(1, 0x2FFF)) for _ in range(draw.randrange(12)))
        case 5:
            return draw.choice(_NAMES)
        case 6:
            return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
        case 7:
            return [value(draw, depth + 1)] * draw.choice([1, 2, 30])
        case _:
            return {draw.choice([*_NAMES, *_TEXTS]): value(draw, depth + 1) for _ in range(draw.randrange(4))}


def mutated(draw: random.Random, body: Any) -> Any:
    """A good body with one of its values changed, wherever it stands."""
    if isinstance(body, dict) and body and draw.random() < 0.85:
        name = draw.choice([*body, draw.choice(_NAMES)])
        return {**body, name: mutated(draw, body[name]) if name in body and draw.random() < 0.7 else value(draw)}
    if isinstance(body, list) and body and draw.random() < 0.7:
        place = draw.randrange(len(body))
        return [*body[:place], mutated(draw, body[place]), *body[place + 1 :]]
    return value(draw)


def broken_bytes(draw: random.Random, content: bytes) -> bytes:
    """The bytes of a body with some of them changed, left out or doubled."""
    cut = draw.randrange(len(content) + 1)
    match draw.randrange(4):
        case 0:
            return content[:cut]
        case 1:
            return content[:cut] + bytes([draw.randrange(256)]) + content[cut + 1 :]
        case 2:
            return content[:cut] + draw.choice(_NO_JSON) + content[cut:]
        case _:
            return content + content


def mutate(url: str, turn_id: str, seed: int, until: float, found: Found) -> None:
    """Send mutated bodies until then."""
    draw = random.Random(seed)
    with contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS)) as connection:
        while time.monotonic() < until:
            path, good = draw.choice(_BODIES)
            body: Any = {**good, **{name: _MORE[name] for name in draw.sample(sorted(_MORE), draw.randrange(4))}}
            for _ in range(draw.choice([1, 1, 2, 3])):
                body = mutated(draw, body)
            content = json.dumps(body).encode()
            if draw.random() < 0.15:
                content = broken_bytes(draw, content)
            if len(content) > _MOST_BYTES:
                continue
            headers = KEY | JSON_TYPE
            if draw.random() < 0.1:
                headers |= {"idempotency-key": draw.choice(["k", "\x80", "a" * 300]), "x-owui-chat-id": "c\xe4"}
            if draw.random() < 0.2:
                headers |= {"x-owui-task": draw.choice(["title_generation", "moa_response_generation", "x"])}
            _send(connection, path.format(turn_id=turn_id), content, headers, found)


def _send(
    connection: http.client.HTTPConnection, path: str, content: bytes, headers: dict[str, str], found: Found
) -> None:
    began, asked = time.monotonic(), f"POST {path} {content[:200]!r}"
    try:
        connection.request("POST", path, content, headers)
        answer = connection.getresponse()
        found.note(answer.status, answer.read(), asked, time.monotonic() - began)
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        found.broken(error, asked)


def from_document(url: str, turn_id: str, until: float, found: Found) -> None:
    """Send what schemathesis makes of the OpenAPI document, until then."""
    document = schemathesis.openapi.from_dict(app_with(FakeTurns()).openapi())
    real = {"model": "scripted", "turn_id": turn_id, "response_id": f"resp_{turn_id}"}
    operations = [found_one.ok() for found_one in document.get_all_operations()]
    usual = hypothesis_settings(
        max_examples=_OPENAPI_EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    while time.monotonic() < until:
        for operation in operations:

            @usual
            @given(case=operation.as_strategy())
            def ask(case: schemathesis.Case) -> None:
                if time.monotonic() > until:
                    return
                if case.path_parameters and random.random() < 0.5:
                    case.path_parameters = {name: real[name] for name in case.path_parameters}
                began, asked = time.monotonic(), f"{case.method} {case.path} {case.body!r}"
                try:
                    answer: Any = case.call(base_url=url, headers=KEY, timeout=ANSWER_SECONDS)
                except Exception as error:
                    found.broken(error, asked)
                else:
                    found.note(answer.status_code, answer.content, asked, time.monotonic() - began)

            ask()


def main(seconds: float) -> int:
    """Fuzz for so long; returns the exit code."""
    warnings.simplefilter("ignore")
    set_constants(os.environ, "api_client.web.identity.access", TURNS_PER_MINUTE=0, UNFINISHED_TURNS=0, STORED_BYTES=0)
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        used = settings_on(
            broker,
            Path(folder) / "root",
            api_keys=("key",),
            phase_directories=("work=HELIX_API_KEYS",),
            retention_seconds=60.0,
            log_level="error",
        )
        (used.root / "work").mkdir()
        with installed(used) as site:
            site.play(GOOD, runner="inline")
            site.worker()
            return _fuzz(site.relay(), seconds)


def _fuzz(relay: RelayProcess, seconds: float) -> int:
    assert relay.process
    first = secrets.randbelow(10**6)
    status = Path(f"/proc/{relay.process.pid}/status")
    good = httpx2.post(f"{relay.url}/v1/chat/completions", json=_BODIES[0][1], headers=KEY, timeout=60)
    turn_id, found, until = good.headers["x-turn-id"], Found(), time.monotonic() + seconds
    threads = [
        threading.Thread(target=mutate, args=(relay.url, turn_id, seed, until, found))
        for seed in range(first, first + _THREADS - 1)
    ]
    threads.append(threading.Thread(target=from_document, args=(relay.url, turn_id, until, found)))
    for thread in threads:
        thread.start()
    time.sleep(seconds / 3)
    early = _memory(status)
    for thread in threads:
        thread.join(seconds + 2 * ANSWER_SECONDS)
    late, hangs = _memory(status), sum(thread.is_alive() for thread in threads)
    for fault in found.faults[:20]:
        print(fault)
    told = ", ".join(f"{count} x {status}" for status, count in sorted(found.statuses.items()))
    print(f"{found.statuses.total()} requests in {seconds:g} s (seed {first}): {told}")
    print(f"{len(found.faults)} faults, {hangs} hangs, slowest answer {found.slowest:.1f} s")
    print(f"memory of the relay: {early:.0f} MiB after a third, {late:.0f} MiB at the end")
    return int(bool(found.faults or hangs or late - early > _GROWTH_MIB))


def _memory(status: Path) -> float:
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
