"""``turns up`` and ``turns run worker``: whole installations in real processes."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from api_client.contract.settings import Settings, load_settings
from tests.installation import Installation, WorkerProcess, turns
from tests.support import alive, processes_with, wait_for


class Up:
    """A real ``turns up --json`` in its own root."""

    def __init__(self, root: Path, *, flower: bool = False, **environ: str) -> None:
        self.root = root
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("HELIX_") and k != "REDIS_URL"}
        self.environ |= {"HELIX_ROOT": str(root)} | environ
        self.process = subprocess.Popen(
            turns("up", "--json", "--port", "0", *([] if flower else ["--no-flower"])),
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=root,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.told = json.loads(line)

    @property
    def run_file(self) -> Path:
        return self.root / ".helix" / "run.json"

    def processes(self) -> dict[int, str]:
        return processes_with(f"HELIX_ROOT={self.root}") | processes_with(str(self.root / ".helix"))

    def pid_of(self, part: str) -> int:
        """The only process with this in its command line; one that was just forked has its parent's for a moment."""
        found: list[int] = []

        def one() -> bool:
            found[:] = [pid for pid, command in self.processes().items() if part in command]
            return len(found) == 1

        wait_for(one)
        return found[0]

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[str, str]:
        self.process.send_signal(number)
        return self.process.communicate(timeout=120)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(**given: Any) -> Up:
        started.append(Up(tmp_path, **given))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()
    wait_for(lambda: not any(each.processes() for each in started))


def test_one_command_starts_an_installation_and_ctrl_c_ends_all_of_it(up: Callable[..., Up]) -> None:
    installation = up()
    told = installation.told
    assert json.loads(installation.run_file.read_text()) == {
        k: told[k] for k in ("redis_url", "web_url", "pid", "models", "settings", "operator_token_file")
    }
    assert stat.S_IMODE(installation.run_file.stat().st_mode) == 0o600
    assert load_settings(installation.environ).redis_url == told["redis_url"]  # other commands find the broker
    with urllib.request.urlopen(f"{told['web_url']}/readyz", timeout=60) as answer:
        assert answer.status == 200
    assert len(installation.processes()) >= 5  # itself, broker, a worker and its guard, web

    second = subprocess.run(turns("up"), env=installation.environ, capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert second.stderr.startswith(f"turns: `turns up` already runs on {installation.root} (process {told['pid']})")
    assert installation.run_file.exists()  # the second one takes nothing from the first

    _, said = installation.end()
    assert said.startswith(f"starting ... (logs: {installation.root / '.helix' / 'logs'})\n"), "before it is ready"
    assert installation.process.returncode == 0
    assert not installation.run_file.exists()
    wait_for(lambda: not installation.processes())


def test_nothing_survives_when_it_is_killed_and_it_starts_again_on_the_same_data(up: Callable[..., Up]) -> None:
    first = up()
    turn_id = subprocess.run(
        turns("submit", "hello"), env=first.environ, capture_output=True, text=True, check=True
    ).stdout.strip()
    first.end(signal.SIGKILL)
    wait_for(lambda: not first.processes())
    assert first.run_file.exists()  # nobody could remove it; the next start must not believe it
    second = up()
    assert second.told["pid"] != first.told["pid"]
    shown = subprocess.run(
        turns("turn", "show", turn_id), env=second.environ, capture_output=True, text=True, check=True
    )
    assert turn_id in shown.stdout


def test_it_obeys_a_policy_file_of_the_folder_it_is_started_in(up: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: [{rule: length, options: {max_words: 1}, reactions: [fail]}]")
    environ = up(HELIX_POLICY="policy.yaml").environ
    del environ["HELIX_POLICY"]  # another shell, which finds the installation by its folder
    command = turns("submit", "--watch", "Warum?")
    asked = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ANSWER_OVER_LENGTH" in asked.stdout, asked


def test_what_dies_is_started_again(up: Callable[..., Up]) -> None:
    installation = up()
    for part in ("valkey-server", f"-1@{socket.gethostname()}", " run relay --host"):
        before = installation.pid_of(part)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda before=before: not alive(before))
        wait_for(lambda part=part: any(part in command for command in installation.processes().values()))

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"{installation.told['web_url']}/readyz", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_for(ready)


def test_a_taken_port_is_told_with_the_way_out_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environ = {**os.environ, "HELIX_ROOT": str(tmp_path)}
        environ.pop("REDIS_URL", None)
        done = subprocess.run(
            turns("up", "--port", str(port)), env=environ, capture_output=True, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == (
        f"turns: cannot listen on 127.0.0.1:{port} (Address already in use); "
        "--port names another; 0: a free one [cannot_start]\n"
    )
    assert processes_with(str(tmp_path / ".helix")) == {}


@pytest.mark.parametrize("command", [["up"], ["run", "worker"], ["run", "worker", "--foreground"]])
def test_a_wrong_password_of_the_store_is_said_at_once(tmp_path: Path, settings: Settings, command: list[str]) -> None:
    url = settings.store_url.replace("unix://", "unix://nobody:wrong-secret@")
    environ = {
        **os.environ,
        "HELIX_ROOT": str(tmp_path),
        "REDIS_URL": url,
    }
    done = subprocess.run(turns(*command), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("turns: the store does not accept this user and password (WRONGPASS"), done.stderr
    assert "correct user and password in REDIS_URL" in last
    assert "wrong-secret" not in done.stderr
    assert processes_with(f"HELIX_ROOT={tmp_path}") == {}


def test_a_validator_that_is_not_offered_here_keeps_it_from_starting(tmp_path: Path) -> None:
    environ = {**os.environ, "HELIX_ROOT": str(tmp_path), "HELIX_VALIDATORS": "step_marker,adr_struture"}
    environ.pop("REDIS_URL", None)
    done = subprocess.run(turns("up"), env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, "not offered on this machine: adr_struture" in done.stderr) == (2, True), done.stderr


def test_flower_opens_no_page_and_obeys_no_order_without_its_password(up: Callable[..., Up]) -> None:
    told = up(flower=True).told

    def status(path: str, password: str = "", method: str = "GET") -> int:
        request = urllib.request.Request(f"{told['flower_url']}{path}", method=method)
        if password:
            request.add_header("Authorization", f"Basic {base64.b64encode(f'turns:{password}'.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    for path in ("/", "/workers", "/tasks", "/api/tasks", "/broker", "/metrics", "/healthcheck"):
        assert status(path) == 401, path
        assert status(path, "wrong") in {401, 403}, path
        assert status(path, told["flower_password"]) == 200, path
    revoke = "/api/task/revoke/x"
    assert (status(revoke, "", "POST"), status(revoke, told["flower_password"], "POST")) == (401, 200)


def test_a_worker_starts_as_many_processes_as_it_is_told_and_restarts_the_one_that_dies(
    worker_process: Callable[..., WorkerProcess],
) -> None:
    worker = worker_process("--processes", "2")
    before = worker.children()
    assert set(before) == {"1", "2"}
    assert "16 agents and 2 validations at once, in 2 processes" in worker.log_file.read_text()
    os.kill(before["1"], signal.SIGKILL)
    wait_for(lambda: worker.children().get("1") not in {None, before["1"]})
    assert worker.children()["2"] == before["2"]


def test_a_worker_that_is_killed_leaves_nothing(installation: Installation) -> None:
    worker = installation.worker()
    worker.kill()
    wait_for(lambda: not processes_with(f"HELIX_NAMESPACE={installation.settings.namespace}"))


def test_two_workers_on_one_host_have_different_names(worker_process: Callable[..., WorkerProcess]) -> None:
    one, two = (worker_process("--processes", "2", wait=False) for _ in range(2))
    for worker in (one, two):
        worker.wait_ready()
    for worker in (one, two):
        assert "DuplicateNodename" not in worker.log_file.read_text()
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for w in (one, two) for pid in w.children().values()]
    names = {command.split("\0")[command.split("\0").index("-n") + 1] for command in commands}
    assert len(names) == 4


def test_a_single_process_runs_in_the_foreground_and_ends_at_sigterm(
    worker_process: Callable[..., WorkerProcess],
) -> None:
    worker = worker_process("--foreground")
    assert b"celery_worker" in Path(f"/proc/{worker.pid}/cmdline").read_bytes()
    worker.kill(signal.SIGTERM)
    assert worker.process.wait(60) == 0


def test_ctrl_c_says_which_agents_it_waits_for_and_the_turn_is_handed_over_not_lost(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    script = tmp_path / "slow.yaml"
    script.write_text("- attempts: [[hang]]\n")
    running = up(HELIX_MODELS=f"m=scripted:{script}", HELIX_SHUTDOWN_SECONDS="1")
    environ = {**running.environ, "HELIX_MODELS": f"m=scripted:{script}"}
    told = subprocess.run(turns("submit", "hello", "--json"), env=environ, capture_output=True, text=True)
    turn_id = json.loads(told.stdout)["turn_id"]

    _watched_until(environ, turn_id, "attempt 1")
    with redis.Redis(unix_socket_path=running.told["redis_url"].removeprefix("unix://")) as store:
        told_workers = lambda: [json.loads(text) for text in store.hgetall("helix:{helix}:workers").values()]  # noqa: E731
        wait_for(lambda: [each for each in told_workers() if each["free"] < each["slots"] and each["slots"] > 2])
    _, said = running.end()
    assert "stopping: waiting for 1 agent at work, up to 1 s" in said
    again = up(HELIX_MODELS=f"m=scripted:{script}", HELIX_SHUTDOWN_SECONDS="1")
    _watched_until(environ, turn_id, "handed over: its worker was stopped")
    subprocess.run(turns("turn", "cancel", turn_id), env=environ, capture_output=True, check=False)
    assert "worker lost" not in _watched_until(environ, turn_id, "")
    _, said = again.end()
    assert "stopping: " in said


def _watched_until(environ: dict[str, str], turn_id: str, words: str) -> str:
    """What `turns turn watch` shows until it shows these words; all of it, to the turn's end, where there are none."""
    command, said = turns("turn", "watch", turn_id), ""
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as watching:
        assert watching.stdout
        try:
            for line in watching.stdout:
                said += line
                if words and words in said:
                    return said
        finally:
            watching.kill()
    assert not words, said
    return said
