"""The supervisor with real processes."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from api_client.contract.settings import Settings
from tests.ports import free_port
from tests.supervised import wait_ready
from tests.support import alive, wait_for
from worker.processes import own_programs
from worker.processes.program import Program, spawn_program, stop_process
from worker.processes.supervisor import NotReady, Supervisor

# Adds its pid to the ready file ($1) once it "works", all at once, and sleeps.
TELLS = '{ cat "$1" 2>/dev/null; echo $$; } > "$1.draft"; mv "$1.draft" "$1"'
WORKS = f"{TELLS}; exec sleep 60"


def program(tmp_path: Path, name: str, script: str = WORKS, **more: object) -> Program:
    ready = tmp_path / f"{name}.ready"
    return Program(name=name, command=["sh", "-c", script, "sh", str(ready)], ready_file=ready, **more)  # type: ignore[arg-type]


def test_each_program_starts_after_the_one_before_it_is_ready_and_the_last_stops_first(tmp_path: Path) -> None:
    story = tmp_path / "story"
    script = f"""trap 'echo stop $0 >> {story}; exit' TERM
        sleep 0.2; echo start $0 >> {story}; touch "$1"; while :; do sleep 0.02; done"""
    programs = [
        Program(name=n, command=["sh", "-c", script, n, str(tmp_path / n)], ready_file=tmp_path / n) for n in "abc"
    ]
    with Supervisor(programs):
        pass
    assert story.read_text().split("\n")[:-1] == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


def test_programs_alongside_each_other_start_and_end_at_the_same_time_and_the_next_waits_for_both(
    tmp_path: Path,
) -> None:
    story = tmp_path / "story"

    def beside(name: str, other: str, **more: Any) -> Program:
        """Ready only when the other has begun, and gone only when the other is asked to end."""
        script = f"""cd {tmp_path}; echo start $0 >> story; touch $0.begun
            trap 'echo stop $0 >> story; touch $0.asked; until test -e {other}.asked; do sleep 0.02; done; exit' TERM
            until test -e {other}.begun; do sleep 0.02; done; touch "$1"; while :; do sleep 0.02; done"""
        command = ["sh", "-c", script, name, f"{name}.ready"]
        return Program(name=name, command=command, ready_file=tmp_path / f"{name}.ready", grace_seconds=60.0, **more)

    last = program(tmp_path, "last", f'echo start last >> {story}; touch "$1"; exec sleep 60')
    with Supervisor([beside("a", "b"), beside("b", "a", alongside=True), last]) as supervisor:
        assert all(supervisor.pid(name) for name in ("a", "b", "last"))
    told = story.read_text().split("\n")[:-1]
    assert (sorted(told[:2]), told[2], sorted(told[3:])) == (["start a", "start b"], "start last", ["stop a", "stop b"])


def test_a_killed_program_is_started_again_and_is_ready_again_before_anybody_is_told(tmp_path: Path) -> None:
    with Supervisor([program(tmp_path, "one"), program(tmp_path, "two")]) as supervisor:
        other = supervisor.pid("one")
        before = supervisor.kill("two")
        after = wait_ready(supervisor, "two", after=before)
        assert after != before
        assert not alive(before)
        assert (tmp_path / "two.ready").read_text().split() == [str(after)]  # the old mark was taken away
        assert supervisor.pid("one") == other


def test_a_death_and_the_end_of_all_are_seen_without_another_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.processes.supervisor._QUIET_SECONDS", 3600.0)
    with Supervisor([program(tmp_path, "one")]) as supervisor:
        for _ in range(3):
            wait_ready(supervisor, "one", after=supervisor.kill("one"))


def test_a_program_that_keeps_dying_is_started_again_more_and_more_slowly(tmp_path: Path) -> None:
    starts, go = tmp_path / "starts", tmp_path / "go"
    waits = f"until test -e {go}; do sleep 0.02; done"  # for the supervisor to have seen its first start
    dies = program(tmp_path, "dies", f'date +%s.%N >> {starts}; touch "$1"; {waits}; sleep 0.1; exit 3')
    with capture_logs() as told, Supervisor([dies]):
        go.touch()
        wait_for(lambda: starts.exists() and len(starts.read_text().split()) >= 4)
    at = [float(line) for line in starts.read_text().split()]
    pauses = [later - earlier for earlier, later in itertools.pairwise(at)]
    said = [line["restart_seconds"] for line in told if line["event"] == "process.exited"]
    assert said[:3] == [0.2, 0.4, 0.8]
    assert all(pause >= 0.1 + meant for pause, meant in zip(pauses, said, strict=False))  # 0.1 s of life before each


def test_a_program_that_was_stable_is_started_again_without_delay(tmp_path: Path) -> None:
    with capture_logs() as told, Supervisor([program(tmp_path, "one")], stable_seconds=0.0) as supervisor:
        pid = supervisor.pid("one")
        for _ in range(3):
            supervisor.kill("one")
            pid = wait_ready(supervisor, "one", after=pid)
    assert [line["restart_seconds"] for line in told if line["event"] == "process.exited"] == [0.2] * 3


def test_nothing_survives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from tests.integration.test_supervisor import program
from worker.processes.supervisor import Supervisor
Supervisor([program(Path({str(tmp_path)!r}), n) for n in ("one", "two")]).run(lambda: print("ready", flush=True))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        wait_for(lambda: "ready\n" in process.stdout.readline())
        pids = [int((tmp_path / f"{name}.ready").read_text()) for name in ("one", "two")]
        assert all(map(alive, pids))
        process.kill()
    wait_for(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_as_a_command_it_stops_everything_at_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    supervisor = Supervisor([program(tmp_path, "one")])
    supervisor.run(lambda: os.kill(os.getpid(), number))
    assert not alive(int((tmp_path / "one.ready").read_text()))
    assert signal.getsignal(number) is before  # ours are gone again


def test_a_signal_during_the_start_stops_what_was_started(tmp_path: Path) -> None:
    told = []
    slow = program(tmp_path, "slow", 'touch "$1.begun"; exec sleep 60')

    def interrupt() -> None:
        wait_for((tmp_path / "slow.ready.begun").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    Supervisor([program(tmp_path, "one"), slow]).run(lambda: told.append("ready"))
    assert told == []
    assert not alive(int((tmp_path / "one.ready").read_text()))


def test_what_is_done_meanwhile_waits_for_no_program_and_its_error_ends_them(tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = program(tmp_path, "waits", f"until test -e {go}; do sleep 0.02; done; {WORKS}")
    supervisor = Supervisor([waits])
    supervisor.start(meanwhile=lambda _stops: go.touch())
    supervisor.stop()

    def refuse(_stops: threading.Event) -> None:
        wait_for(lambda: refused.pid("one"))
        raise ValueError("not with this store")

    refused = Supervisor([program(tmp_path, "one")])
    with pytest.raises(ValueError, match="not with this store"):
        refused.run(lambda: pytest.fail("it was never ready"), meanwhile=refuse)
    assert not refused.pid("one")


def test_a_program_deaf_to_sigterm_is_killed_with_everything_in_its_group(tmp_path: Path) -> None:
    deaf = program(
        tmp_path,
        "deaf",
        """trap '' TERM; sleep 60 & echo $! > "$1.new"; mv "$1.new" "$1"; while :; do sleep 1; done""",
        grace_seconds=0.3,
    )
    with Supervisor([deaf]) as supervisor:
        pids = [supervisor.pid("deaf"), int(wait_for((tmp_path / "deaf.ready").read_text))]
    wait_for(lambda: not any(map(alive, pids)))


def test_what_a_dead_program_left_in_its_group_is_killed_before_the_next_start(tmp_path: Path) -> None:
    leaves = program(tmp_path, "leaves", 'sleep 60 & echo $! > "$1.new"; mv "$1.new" "$1"; wait')
    with Supervisor([leaves]) as supervisor:
        orphan = int(wait_for((tmp_path / "leaves.ready").read_text))
        wait_ready(supervisor, "leaves", after=supervisor.kill("leaves"))
        wait_for(lambda: not alive(orphan))


def test_a_second_signal_kills_without_grace(tmp_path: Path) -> None:
    deaf = program(tmp_path, "deaf", f"trap '' TERM; {TELLS}; while :; do sleep 0.1; done", grace_seconds=600)

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()

    Supervisor([deaf]).run(twice)  # with its grace it would outlast the time limit of a test
    assert not alive(int((tmp_path / "deaf.ready").read_text()))


def test_a_program_that_cannot_start_stops_the_others_and_shows_its_last_words(tmp_path: Path) -> None:
    broken = program(tmp_path, "broken", "echo no such luck; exit 4")
    with pytest.raises(NotReady, match=r"(?s)broken ended at its start with exit code 4.*no such luck"):
        Supervisor([program(tmp_path, "one"), broken], logs=tmp_path).start()
    assert not alive(int((tmp_path / "one.ready").read_text()))


def test_a_program_that_is_never_ready_is_given_up_in_time(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=r"never was not ready after 0.3 s"):
        Supervisor([program(tmp_path, "never", "sleep 60", ready_seconds=0.3)]).start()


def test_a_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=r"(?s)absent ended at its start.*No such file"):
        Supervisor(
            [Program(name="absent", command=["/no/such/program"], ready=lambda pid: False)], logs=tmp_path
        ).start()


def test_a_frozen_program_is_ended_too(tmp_path: Path) -> None:
    with Supervisor([program(tmp_path, "one", grace_seconds=0.3)]) as supervisor:
        pid = supervisor.kill("one", signal.SIGSTOP)
    assert not alive(pid)


def test_a_mark_that_nobody_could_renew_in_a_freeze_of_the_machine_is_not_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, monotonic = [0.0], time.monotonic
    clock = SimpleNamespace(**vars(time) | {"monotonic": lambda: monotonic() + ahead[0]})
    monkeypatch.setattr("worker.processes.supervisor.time", clock)
    looks = itertools.count()

    class Watched(Supervisor):
        def _check_programs(self) -> None:
            super()._check_programs()
            self.looked = next(looks)

    with Watched([program(tmp_path, "one", stale_seconds=60.0)]) as supervisor:
        pid = supervisor.pid("one")
        for _ in range(2):
            ahead[0], seen = ahead[0] + 100.0, supervisor.looked
            wait_for(lambda seen=seen: supervisor.looked > seen + 2)  # type: ignore[misc]
        assert (supervisor.pid("one"), alive(pid)) == (pid, True)


def test_a_program_with_a_lock_runs_once(tmp_path: Path) -> None:
    one = program(tmp_path, "one", lock=tmp_path / "lock")
    with Supervisor([one]), pytest.raises(NotReady, match="another process holds"):
        Supervisor([program(tmp_path, "two", lock=tmp_path / "lock")], logs=tmp_path).start()
    with Supervisor([one]):
        pass  # the lock is free again


def test_a_child_that_starts_when_its_parent_is_already_gone_does_not_run(tmp_path: Path) -> None:
    # The parent's id is checked after the kernel was asked: between fork and prctl the parent may have died.
    script = f"""
import os, sys; sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from worker.processes import own_programs
from worker.processes.program import Program, spawn_program
os.getpid = lambda: 1
print(spawn_program(Program(name="x", command=["touch", {str(tmp_path / "ran")!r}])).wait())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
    assert not (tmp_path / "ran").exists()


def test_a_program_starts_with_the_default_signals(tmp_path: Path) -> None:
    process = spawn_program(Program(name="x", command=["grep", "SigIgn", "/proc/self/status"]), tmp_path / "log")
    process.wait(60)
    ignored = int((tmp_path / "log").read_text().split()[1], 16)
    # What Python ignores for itself; that a shell had us ignore SIGHUP or SIGINT is the caller's wish, and is kept.
    assert [number for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (number - 1) & 1] == []
    assert stop_process(process, 1.0) == 0


def test_a_program_that_stops_renewing_its_mark_or_takes_it_away_is_ended_and_started_again(tmp_path: Path) -> None:
    script = 'while test ! -e "$1.{}"; do touch "$1"; sleep 0.05; done; {} exec sleep 60'
    silent = program(tmp_path, "silent", script.format("stop", 'rm "$1.stop";'), stale_seconds=3.0)
    deaf = program(tmp_path, "deaf", script.format("stop", 'rm "$1.stop" "$1";'), stale_seconds=60.0)
    with capture_logs() as told, Supervisor([silent, deaf]) as supervisor:
        before = {name: supervisor.pid(name) for name in ("silent", "deaf")}
        for name in before:
            (tmp_path / f"{name}.ready.stop").touch()
        for name, pid in before.items():
            assert wait_ready(supervisor, name, after=pid) != pid
    assert {line["name"] for line in told if line["event"] == "process.stale"} == {"deaf", "silent"}


def test_it_shows_that_all_work_for_as_long_as_they_do(tmp_path: Path) -> None:
    """What a liveness check asks for (compose): no sign while one of them is stale or starts again."""
    shown: list[bool] = []
    renews = """echo $$ >> "$1"; while test ! -e "$1.deaf"; do touch "$1"; sleep 0.05; done
        trap "" TERM; until test -e "$1.end"; do sleep 0.05; done"""
    stubborn = program(tmp_path, "one", renews, stale_seconds=3.0, grace_seconds=60.0)
    beside = program(tmp_path, "two", alongside=True)
    with Supervisor([stubborn, beside], show=lambda: shown.append(True), show_seconds=0.0) as supervisor:
        wait_for(lambda: len(shown) > 3)
        (tmp_path / "one.ready.deaf").touch()
        with capture_logs() as logs:
            wait_for(lambda: any(line["event"] == "process.stale" for line in logs))
        seen = len(shown)
        wait_ready(supervisor, "two", after=supervisor.kill("two"))  # the watching thread went round several times
        assert len(shown) == seen
        (tmp_path / "one.ready.deaf").unlink()
        (tmp_path / "one.ready.end").touch()
        wait_for(lambda: len(shown) > seen)  # started again: it works, and that is shown


def test_a_stale_program_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    script = 'trap "" TERM; touch "$1"; while :; do sleep 0.05; done'
    stubborn = program(tmp_path, "one", script, stale_seconds=0.3, grace_seconds=0.3)
    with Supervisor([stubborn]) as supervisor:
        pid = supervisor.pid("one")
        assert wait_ready(supervisor, "one", after=pid) != pid


def test_a_program_that_answers_no_longer_is_killed_and_started_again(tmp_path: Path) -> None:
    """It ignores SIGTERM as a loop does that is stuck in one long call; single misses cost nothing."""
    asked = itertools.count()
    stuck = tmp_path / "stuck"

    def answers() -> bool:
        return next(asked) % 2 == 0 or not stuck.exists()  # every second question is missed while it is stuck

    def silent() -> bool:
        return not stuck.exists()

    ignores = f'trap "test -e {stuck} || exit 0" TERM; echo $$ >> "$1"; while :; do sleep 0.05; done'
    flaky = program(tmp_path, "flaky", answers=answers, ask_seconds=0.02, misses=2)
    gone = program(tmp_path, "gone", ignores, answers=silent, ask_seconds=0.02, misses=3, grace_seconds=60.0)
    with Supervisor([flaky, gone]) as supervisor, capture_logs() as logs:
        before = {name: supervisor.pid(name) for name in ("flaky", "gone")}
        stuck.touch()
        wait_for(lambda: supervisor.pid("gone") not in {0, before["gone"]})
        stuck.unlink()
        wait_ready(supervisor, "gone", after=before["gone"])
        assert supervisor.pid("flaky") == before["flaky"]
        assert not alive(before["gone"])
    assert {line["name"] for line in logs if line["event"] == "process.unanswering"} == {"gone"}


def test_a_relay_whose_loop_stands_still_is_started_again(settings: Settings) -> None:
    port = free_port()
    relay = replace(own_programs.web_program(settings, "127.0.0.1", port), ask_seconds=0.1, misses=2)
    with Supervisor([relay]) as supervisor:
        before = supervisor.pid("web")
        os.kill(before, signal.SIGSTOP)  # as long as nobody wakes it up, and no signal but SIGKILL reaches it
        assert wait_ready(supervisor, "web", after=before) != before
        wait_for(lambda: own_programs.fetch_status("127.0.0.1", port, "/healthz") == 200)
