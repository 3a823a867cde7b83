"""What keeps an installation or a worker from starting is said once, with what to do, before anything runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from api_client.contract.errors import HelixError, SettingsError, StoreUnavailable
from api_client.contract.keys import Keys
from api_client.contract.settings import CONSTANTS, Settings
from api_client.contract.store_refusals import find_refusal
from api_client.store.unfinished_restore import RESTORING
from tests.installation import Installation, children_of, environ_of, turns
from tests.support import processes_with, wait_for
from worker.cli.installation.start_checks import await_store, blame_store, run_in_fork
from worker.processes.exit_reports import ExitReporter
from worker.processes.program import REFUSED, SUPERVISED
from worker.processes.supervisor import NotReady

COMMANDS = pytest.mark.parametrize(
    "command",
    [["up", "--port", "0"], ["run", "worker", "--processes", "2"], ["run", "worker", "--foreground"]],
    ids=" ".join,
)
#: Nothing listens on this port, and nothing can: it is privileged and not of a service.
NOWHERE = "redis://127.0.0.1:1/0"
#: What a store says of itself between the first key of a restore and the last.
HALF = "the store is half restored"


@pytest.fixture
def half_restored(settings: Settings) -> Settings:
    redis.Redis.from_url(settings.redis_url).hset(Keys(settings.namespace).installation, RESTORING, "digest")
    return settings


def environ(root: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HELIX_") and k != "REDIS_URL"}
    return kept | {"HELIX_ROOT": str(root)} | more


def refused(command: list[str], given: dict[str, str]) -> list[str]:
    """What a command that does not start says; its processes may have begun to log."""
    done = subprocess.run(turns(*command), env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert processes_with(f"HELIX_ROOT={given['HELIX_ROOT']}") == {}
    return [line for line in done.stderr.splitlines() if line.startswith(("turns: ", "waiting "))]


@COMMANDS
def test_a_model_whose_program_is_missing_keeps_it_from_starting(tmp_path: Path, command: list[str]) -> None:
    given = environ(
        tmp_path,
        HELIX_CLAUDE_API_KEY="sk-ant-of-a-test",
        HELIX_CLAUDE_PATH="no-such-cli",
        REDIS_URL=NOWHERE,
    )
    [line] = refused(command, given)
    assert line.startswith("turns: model helix-consultant: HELIX_CLAUDE_PATH='no-such-cli': no such program; see docs/")
    assert "install the CLI for this user, or do without it: HELIX_MODELS=scripted=scripted" in line


UNREADABLE = {"HELIX_LEASE_SECONDS": "0", "HELIX_CLAUDE_API_KEY_FILE": "/no/file"}
UNUSABLE = {"HELIX_BUDGETS": "model:nobody=1"}
CONTRADICTION = {"HELIX_VERIFIER_MODEL": "haiku"}
NO_CLI = {"HELIX_MODELS": "a=claude_cli", "HELIX_CLAUDE_PATH": "no-such-cli"}


@pytest.mark.parametrize(
    ("command", "given", "says"),
    [
        (["up", "--port", "0"], UNREADABLE | NO_CLI, ["HELIX_CLAUDE_API_KEY_FILE", "HELIX_LEASE_SECONDS"]),
        (["up", "--port", "0"], CONTRADICTION, ["haiku", "nobody", "bad.yaml:", "k.json"]),
        (["up", "--port", "0"], NO_CLI, ["nobody", "no-such-cli", "bad.yaml:", "k.json"]),
        (["run", "relay", "--port", "0"], UNREADABLE, ["HELIX_CLAUDE_API_KEY_FILE", "HELIX_LEASE_SECONDS"]),
        (["run", "relay", "--port", "0"], CONTRADICTION, ["haiku", "nobody", "bad.yaml:", "k.json"]),
        (["run", "relay", "--port", "0"], {}, ["no broker", "nobody", "bad.yaml:", "k.json"]),
        (["run", "worker"], UNREADABLE | NO_CLI, ["HELIX_CLAUDE_API_KEY_FILE", "HELIX_LEASE_SECONDS"]),
        (["run", "worker"], NO_CLI, ["no broker", "nobody", "no-such-cli"]),
    ],
)
def test_all_settings_that_keep_it_from_starting_are_told_at_once(
    tmp_path: Path, command: list[str], given: dict[str, str], says: list[str]
) -> None:
    """As long as some cannot be read, that is all of those: what the others say may follow from a default value."""
    for name in ("bad.yaml", "k.json"):
        (tmp_path / name).write_text("{")
    files = {"HELIX_POLICY": str(tmp_path / "bad.yaml"), "HELIX_KEYS_FILE": str(tmp_path / "k.json")}
    lines = refused(command, environ(tmp_path, **UNUSABLE, **given, **files))
    assert [part for part, line in zip(says, lines, strict=True) if part not in line] == [], lines


@COMMANDS
def test_a_store_that_does_not_answer_is_named_and_not_waited_for_long(tmp_path: Path, command: list[str]) -> None:
    given = environ(tmp_path, REDIS_URL=NOWHERE, **{CONSTANTS: json.dumps({"store_wait_seconds": "0.2"})})
    found = refused(command, given)
    assert f"waiting for the store at {NOWHERE}: it does not answer" in found[0]
    assert found[-1].startswith(f"turns: the store does not answer: waited 0.2 s for the store at {NOWHERE} (")
    assert "start it, or correct REDIS_URL" in found[-1]


def test_a_broker_that_does_not_answer_is_named_where_it_is_another_server(tmp_path: Path, settings: Settings) -> None:
    short = {CONSTANTS: json.dumps({"store_wait_seconds": "0.2"})}
    given = environ(tmp_path, HELIX_STORE_URL=settings.store_url, HELIX_BROKER_URL=NOWHERE, **short)
    assert f"waited 0.2 s for the broker at {NOWHERE}" in refused(["up", "--port", "0"], given)[-1]


class OldServer(socketserver.StreamRequestHandler):
    """Answers as a server of another release: ``version`` is its own, ``hello`` its answer to HELLO."""

    version, hello = b"6.2.14", b"%1\r\n+proto\r\n:3\r\n"

    def handle(self) -> None:
        while head := self.rfile.readline():
            words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
            told = b"redis_version:" + self.version + b"\r\n"
            answers = {b"HELLO": self.hello, b"PING": b"+PONG\r\n", b"INFO": b"$%d\r\n%s\r\n" % (len(told), told)}
            self.wfile.write(answers.get(words[0].upper(), b"+OK\r\n"))


@contextlib.contextmanager
def answering(**changes: bytes) -> Iterator[str]:
    """The address of an ``OldServer``."""
    handler = type("Changed", (OldServer,), changes)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"
        server.shutdown()


@COMMANDS
@pytest.mark.parametrize("name", ["store", "broker"])
def test_a_server_that_is_too_old_is_refused_before_anything_runs(
    tmp_path: Path, settings: Settings, command: list[str], name: str
) -> None:
    with answering() as url:
        broker = {"HELIX_STORE_URL": settings.store_url, "HELIX_BROKER_URL": url}
        [line] = refused(command, environ(tmp_path, **({"REDIS_URL": url} if name == "store" else broker)))
    assert line == f"turns: the {name}: redis 6.2.14 is too old; use Valkey, or Redis 7.0 or newer [invalid_settings]"


@COMMANDS
def test_a_server_that_speaks_an_older_protocol_is_told_at_once(tmp_path: Path, command: list[str]) -> None:
    with answering(hello=b"-ERR unknown command 'HELLO'\r\n") as url:
        [line] = refused(command, environ(tmp_path, REDIS_URL=url))
    assert "must speak RESP3" in line


@COMMANDS
def test_a_signal_ends_the_wait_for_the_store(tmp_path: Path, command: list[str]) -> None:
    given = environ(tmp_path, REDIS_URL=NOWHERE, **{CONSTANTS: json.dumps({"store_wait_seconds": "3600"})})
    waiting = subprocess.Popen(turns(*command), env=given, stderr=subprocess.PIPE, text=True)
    try:
        assert waiting.stderr
        assert any("waiting for the store" in line for line in waiting.stderr)
        waiting.send_signal(signal.SIGTERM)
        waiting.communicate(timeout=120)
    finally:
        waiting.kill()
        waiting.wait()
    assert processes_with(f"HELIX_ROOT={tmp_path}") == {}


@COMMANDS
def test_a_half_restored_store_is_said_once(tmp_path: Path, half_restored: Settings, command: list[str]) -> None:
    given = environ_of(replace(half_restored, root=tmp_path))
    [line] = refused(command, given)
    assert line.startswith(f"turns: {HALF}")


def test_a_worker_process_leaves_the_reason_to_its_supervisor(tmp_path: Path, half_restored: Settings) -> None:
    command = [sys.executable, "-P", "-m", "worker.celery_worker", "-n", "one@%h", "-c", "1"]
    given = environ_of(replace(half_restored, root=tmp_path))
    alone = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert alone.returncode == 1
    assert HALF in alone.stderr
    watched = subprocess.run(command, env=given | {SUPERVISED: "yes"}, capture_output=True, text=True, check=False)
    assert (watched.returncode, watched.stderr) == (REFUSED, "")


def test_the_reason_of_a_process_that_was_ready_before_is_logged(half_restored: Settings) -> None:
    with capture_logs() as logs:
        ExitReporter(half_restored).report_exit("worker-1@here", 4711, REFUSED)
        wait_for(lambda: logs)
    [line] = logs
    assert (line["event"], line["worker"]) == ("worker.refused", "worker-1@here")
    assert HALF in line["error"]


def test_a_wrong_password_is_said_before_a_taken_port(tmp_path: Path, settings: Settings) -> None:
    url = settings.store_url.replace("unix://", "unix://nobody:wrong-secret@")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = refused(
            ["up", "--port", str(taken.getsockname()[1])],
            environ(tmp_path, REDIS_URL=url),
        )
    assert "does not accept this user and password" in found[-1]


def test_a_half_restored_store_is_said_before_a_taken_port(tmp_path: Path, half_restored: Settings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command, given = ["run", "relay", "--port", str(port)], environ_of(replace(half_restored, root=tmp_path))
        [line] = refused(command, given)
        assert line.startswith(f"turns: {HALF}")
        redis.Redis.from_url(half_restored.redis_url).delete(Keys(half_restored.namespace).installation)
        [line] = refused(command, given)
        assert line.startswith(f"turns: cannot listen on 127.0.0.1:{port} ")


def test_a_process_that_was_never_ready_is_explained_by_the_store_where_that_is_why(settings: Settings) -> None:
    away = replace(settings, store_url=NOWHERE, broker_url=NOWHERE)
    with pytest.raises(StoreUnavailable, match="does not answer"), blame_store(away):
        raise NotReady("worker-1 was not ready after 180 s")
    with pytest.raises(NotReady), blame_store(settings):
        raise NotReady("worker-1 was not ready after 180 s")


def test_the_wait_ends_once_the_processes_end(settings: Settings) -> None:
    stops = threading.Event()
    stops.set()
    await_store(replace(settings, store_url=NOWHERE, broker_url=NOWHERE, store_wait_seconds=3600.0), stops)


# The process that keeps a worker's processes alive stays small: it never loads what only looks at the store.


@pytest.mark.parametrize(
    "error",
    [
        SettingsError(["this is wrong", "and that"]),
        StoreUnavailable("nobody listens"),
        StoreUnavailable("", find_refusal(ResponseError("OOM command not allowed"))),
    ],
    ids=["settings", "silent", "refused"],
)
def test_what_a_copy_finds_wrong_is_raised_here(error: HelixError) -> None:
    def work(_stops: threading.Event) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        run_in_fork(work)(threading.Event())
    assert (str(raised.value), vars(raised.value)) == (str(error), vars(error))


def test_a_copy_that_nobody_waits_for_any_more_ends() -> None:
    before, stops = set(children_of(os.getpid())), threading.Event()
    waits = run_in_fork(lambda _gone: threading.Event().wait())
    assert len(set(children_of(os.getpid())) - before) == 1
    stops.set()
    waits(stops)
    assert set(children_of(os.getpid())) <= before


def test_a_supervisor_has_no_client_of_the_store_and_a_worker_no_templates(installation: Installation) -> None:
    worker = installation.worker()
    loaded = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in (worker.pid, *worker.children().values())}
    assert "hiredis" not in loaded.pop(worker.pid)
    assert all("hiredis" in maps and "markupsafe" not in maps for maps in loaded.values())


def test_a_worker_imports_little_to_look_at_its_store_and_to_say_that_it_stops(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # each import is a line of its log
    worker = installation.worker()
    worker.ask_to_end()
    worker.await_end()
    imported = {line.rpartition("|")[2].strip() for line in worker.log_file.read_text().splitlines()}
    assert {"worker.cli.checks.server_version", "worker.cli.installation.stop_announcement"} <= imported
    assert imported & {"worker.cli.checks.broker", "rich.pretty"} == set()
