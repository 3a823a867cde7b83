"""The guard with real processes: nothing of a run outlives the run, its lease, its guard or its worker."""

import math
import os
import resource
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import WAIT_SECONDS, alive, processes_with, wait_for
from worker.runners.sandbox import guard_client
from worker.runners.sandbox.agent_process import AgentExit, AgentProcess
from worker.runners.sandbox.guard import DOUBT_SECONDS
from worker.runners.sandbox.guard_client import SOURCE_ROOT, AgentProcesses
from worker.runners.sandbox.process_tags import TAG_VARIABLE, is_stopped, parent_of, process_tags

#: Marks are found on the whole machine: each run of these tests has its own.
RUN = f"guard-{secrets.token_hex(4)}"

#: Leaves a grandchild behind in a session of its own, which tells its process id and holds our output. It ends only
#: when that was told: from then on the grandchild may be swept at any moment.
LEAVES_A_CHILD = """
import os, sys, time
told, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.write(tell, b".")
        os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)"], {environ})
    os._exit(0)
os.wait()
os.read(told, 1)
"""
HOLDS = "\ntime.sleep(600)"
IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def agents() -> Iterator[AgentProcesses]:
    agents = AgentProcesses()
    yield agents
    agents.stop_guard()


@pytest.fixture
def start(agents: AgentProcesses, tmp_path: Path) -> Callable[..., AgentProcess]:
    numbers = iter(range(1000))

    def spawn(code: str, *, lease_ends: float = math.inf, stdin: bytes = b"", mark: str = "") -> AgentProcess:
        mark = mark or f"{RUN}.{next(numbers)}.1"
        argv = [sys.executable, "-S", "-c", code]
        return agents.spawn_agent(argv, mark=mark, env={"A": "b"}, cwd=tmp_path, stdin=stdin, lease_ends=lease_ends)

    return spawn


def line(agent: AgentProcess, seconds: float = WAIT_SECONDS) -> str:
    return bytes(wait_for(lambda: agent.read_output(0.1), seconds)).decode().strip()


def end(agent: AgentProcess, seconds: float = WAIT_SECONDS) -> AgentExit:
    ended = agent.wait_for_end(seconds)
    assert ended is not None, f"still there after {seconds} s"
    agent.close()
    return ended


def guard_of(agents: AgentProcesses) -> int:
    return agents.start_guard()


def test_an_agents_output_errors_and_exit_code_come_back(start: Callable[..., AgentProcess]) -> None:
    agent = start("import sys; print(sys.stdin.read()); print('oh', file=sys.stderr); sys.exit(3)", stdin=b"hello")
    assert line(agent) == "hello"
    assert agent.wait_for_end(60) == AgentExit(code=3, pid=agent.wait_for_end(0).pid)  # type: ignore[union-attr]
    assert agent.read_output(0.1) is None
    assert agent.read_stderr() == "oh\n"
    agent.close()


def test_a_long_input_needs_nobody_to_feed_it(start: Callable[..., AgentProcess]) -> None:
    agent = start("import sys; print(len(sys.stdin.read()))", stdin=b"x" * 3_000_000)
    assert line(agent) == "3000000"
    end(agent)


def test_an_agent_sees_nothing_of_the_workers_environment(
    start: Callable[..., AgentProcess], agents: AgentProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:secret@localhost/0")
    agent = start("import os; print(sorted(os.environ))")
    assert set(eval(line(agent))) <= {"A", TAG_VARIABLE, "LC_CTYPE"}
    end(agent)
    assert b"secret" not in Path(f"/proc/{guard_of(agents)}/environ").read_bytes()


def test_an_agent_inherits_no_descriptor_of_worker_or_guard(start: Callable[..., AgentProcess]) -> None:
    agent = start("import os; print(sorted(os.listdir('/proc/self/fd')))")
    assert set(eval(line(agent))) <= {"0", "1", "2", "3"}  # 3 is the folder being listed
    end(agent)


def test_an_agent_that_cannot_be_started_is_told_at_once(agents: AgentProcesses, tmp_path: Path) -> None:
    agent = agents.spawn_agent(["/no/such/agent"], mark=f"{RUN}.a.1", env={}, cwd=tmp_path, lease_ends=math.inf)
    assert "No such file or directory: '/no/such/agent'" in end(agent).error
    agent = agents.spawn_agent(["/bin/true"], mark=f"{RUN}.a.2", env={}, cwd=tmp_path / "nowhere", lease_ends=math.inf)
    assert "nowhere" in end(agent).error


def test_a_command_too_long_for_the_guard_is_an_error_and_not_the_end_of_it(
    agents: AgentProcesses, tmp_path: Path, start: Callable[..., AgentProcess]
) -> None:
    agent = agents.spawn_agent(
        ["/bin/true", "x" * 3_000_000], mark=f"{RUN}.a.1", env={}, cwd=tmp_path, lease_ends=math.inf
    )
    assert "Message too long" in end(agent).error
    assert end(start("pass")).code == 0


def test_an_agent_has_a_session_of_its_own(start: Callable[..., AgentProcess]) -> None:
    agent = start("import os; print(os.getsid(0) == os.getpgrp() == os.getpid())")
    assert line(agent) == "True"
    end(agent)


@pytest.mark.parametrize("room", [1, 3])
def test_a_guard_short_of_descriptors_tells_a_passing_error(
    agents: AgentProcesses, start: Callable[..., AgentProcess], room: int
) -> None:
    end(start("pass"))
    used = {int(path.name) for path in Path(f"/proc/{guard_of(agents)}/fd").iterdir()}
    limit = [number for number in range(100) if number not in used][room]
    resource.prlimit(guard_of(agents), resource.RLIMIT_NOFILE, (limit, limit))
    ended = end(start("pass"))
    assert ended.passing
    assert "Too many open files" in ended.error


def test_two_agents_never_share_a_mark(start: Callable[..., AgentProcess]) -> None:
    first = start(SLEEPS, mark=f"{RUN}.same.1")
    assert end(start(SLEEPS, mark=f"{RUN}.same.1")).error == f"an agent with mark {RUN}.same.1 runs already"
    first.terminate_agent(0)
    end(first)


def test_a_child_left_behind_in_its_own_session_is_gone_when_the_run_ends(start: Callable[..., AgentProcess]) -> None:
    agent = start(LEAVES_A_CHILD.format(environ="os.environ"))
    child = int(line(agent))
    ended = end(agent)
    assert (ended.code, ended.swept, ended.left) == (0, 1, ())
    assert not alive(child)


def test_a_child_that_wiped_its_environment_is_gone_when_the_run_ends(start: Callable[..., AgentProcess]) -> None:
    agent = start(LEAVES_A_CHILD.format(environ="{}"))
    child = int(line(agent))
    assert end(agent).swept == 1
    assert not alive(child)


def test_a_process_with_the_runs_mark_is_gone_when_the_run_ends_whoever_its_parent_is(
    start: Callable[..., AgentProcess],
) -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEPS], env={TAG_VARIABLE: f"{RUN}.m.1"}, stdout=subprocess.DEVNULL
    ) as other:
        wait_for(lambda: (other.pid, f"{RUN}.m.1") in process_tags())
        assert end(start("pass", mark=f"{RUN}.m.1")).swept == 1
        assert other.wait(WAIT_SECONDS) == -signal.SIGKILL


def test_the_end_of_one_agent_leaves_the_children_of_another_alone(start: Callable[..., AgentProcess]) -> None:
    busy = start(LEAVES_A_CHILD.format(environ="os.environ") + HOLDS)
    child = int(line(busy))
    end(start("pass"))
    assert alive(child)
    busy.terminate_agent(0)
    end(busy)
    assert not alive(child)


def test_an_agent_asked_to_stop_is_gone_long_before_its_grace_is_over(start: Callable[..., AgentProcess]) -> None:
    agent = start(SLEEPS)
    line(agent)
    agent.terminate_agent(600)
    ended = end(agent)
    assert (ended.code, ended.cause) == (-signal.SIGTERM, "terminated")


def test_an_agent_that_ignores_sigterm_is_killed_after_the_grace(start: Callable[..., AgentProcess]) -> None:
    agent = start(IGNORES_SIGTERM)
    line(agent)
    started = time.monotonic()
    agent.terminate_agent(0.3)
    assert end(agent).code == -signal.SIGKILL
    assert time.monotonic() - started >= 0.3


def test_an_agent_is_killed_when_its_lease_ends(start: Callable[..., AgentProcess]) -> None:
    agent = start(SLEEPS, lease_ends=time.monotonic() + 0.3)
    assert end(agent) == AgentExit(code=-signal.SIGKILL, cause="lease ended", pid=agent.wait_for_end(0).pid)  # type: ignore[union-attr]


def test_an_extended_lease_keeps_an_agent_alive(start: Callable[..., AgentProcess]) -> None:
    agent = start("import time; time.sleep(10.3)", lease_ends=time.monotonic() + 10)
    agent.extend_lease(time.monotonic() + 60)
    assert end(agent).code == 0


def test_an_agent_outlives_the_thread_that_started_it(start: Callable[..., AgentProcess]) -> None:
    started: list[AgentProcess] = []
    thread = threading.Thread(target=lambda: started.append(start(SLEEPS)))
    thread.start()
    thread.join()
    assert line(started[0]) == "ready"
    assert started[0].wait_for_end(0.3) is None
    started[0].terminate_agent(0)
    end(started[0])


def test_many_threads_start_agents_and_each_gets_its_own_output(start: Callable[..., AgentProcess]) -> None:
    seen: list[tuple[str, str]] = []

    def run(name: str) -> None:
        for number in range(3):
            word = f"{name}-{number}"
            agent = start(f"print({word!r})", mark=f"{RUN}.{word}")
            seen.append((word, line(agent)))
            end(agent)

    threads = [threading.Thread(target=run, args=[f"t{n}"]) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 36
    assert all(asked == answered for asked, answered in seen)


def test_a_killed_guard_takes_its_agents_and_their_children_along(
    agents: AgentProcesses, start: Callable[..., AgentProcess]
) -> None:
    agent = start(LEAVES_A_CHILD.format(environ="os.environ") + HOLDS, mark=f"{RUN}.orphan.1")
    child = int(line(agent))
    os.kill(guard_of(agents), signal.SIGKILL)
    assert end(agent).cause == "guard died"
    wait_for(lambda: not alive(child))
    assert f"{RUN}.orphan.1" not in [mark for _, mark in process_tags()]


#: A guard that dies when an agent has ended, before it looks for what that left behind.
DIES_BEFORE_IT_SWEEPS = """
import os, signal, sys
from worker.runners.sandbox import guard
del sys.argv[1]  # the module's name
guard.Guard._sweep_leftovers = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
guard.main()
"""


@pytest.mark.parametrize("code", [0, 3])
def test_how_an_agent_ended_is_known_though_its_guard_died_right_after_it(
    code: int, start: Callable[..., AgentProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_client, "FAST_PYTHON", [sys.executable, "-S", "-P", "-c", DIES_BEFORE_IT_SWEEPS])
    agent = start(LEAVES_A_CHILD.format(environ="dict(os.environ)") + f"\nsys.exit({code})")
    child = int(line(agent))
    ended = agent.wait_for_end(WAIT_SECONDS)
    assert ended
    assert (ended.code, ended.cause, ended.left) == (code, "", ())
    assert ended.pid
    wait_for(lambda: not alive(child))


def test_a_dead_guard_is_replaced(agents: AgentProcesses, start: Callable[..., AgentProcess]) -> None:
    first = guard_of(agents)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: guard_of(agents) != first)
    assert end(start("pass")).code == 0


def test_an_agent_asked_for_just_as_the_guard_dies_is_started_or_told_lost(
    agents: AgentProcesses, start: Callable[..., AgentProcess]
) -> None:
    for _ in range(20):
        os.kill(guard_of(agents), signal.SIGKILL)
        ended = end(start("pass"))
        assert (ended.code, ended.cause) in {(0, ""), (None, "guard died")}


def test_an_order_to_a_dead_guard_is_no_error_of_its_own(
    agents: AgentProcesses, start: Callable[..., AgentProcess]
) -> None:
    agent = start(SLEEPS)
    os.kill(guard_of(agents), signal.SIGKILL)
    assert end(agent) == AgentExit(cause="guard died")
    assert agent._send({"do": "terminate", "mark": agent.mark, "grace": 0}) == ""


def test_the_guard_is_not_ended_by_signals_meant_for_the_worker(
    agents: AgentProcesses, start: Callable[..., AgentProcess]
) -> None:
    guard = guard_of(agents)
    end(start("pass"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(guard, number)
    agent = start("import signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)")
    assert line(agent) == "True"
    end(agent)
    assert guard_of(agents) == guard


def test_the_guard_leaves_no_zombies_and_no_descriptors(
    agents: AgentProcesses, start: Callable[..., AgentProcess]
) -> None:
    end(start("pass"))
    ours, theirs = (len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", guard_of(agents)))  # noqa: PTH208
    for _ in range(10):
        end(start(LEAVES_A_CHILD.format(environ="os.environ")))
    wait_for(lambda: not [pid for pid, _ in process_tags() if parent_of(pid) == guard_of(agents)])
    assert len(os.listdir("/proc/self/fd")) <= ours  # noqa: PTH208
    wait_for(lambda: len(os.listdir(f"/proc/{guard_of(agents)}/fd")) == theirs)  # noqa: PTH208


def test_stopping_ends_all_agents_and_the_guard(agents: AgentProcesses, start: Callable[..., AgentProcess]) -> None:
    guard = guard_of(agents)
    agent = start(LEAVES_A_CHILD.format(environ="os.environ") + HOLDS)
    child = int(line(agent))
    agents.stop_guard()
    assert not alive(guard)
    assert not alive(child)
    assert end(agent).cause == "guard died"


def test_stopping_does_not_wait_for_a_frozen_guard(
    agents: AgentProcesses, start: Callable[..., AgentProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_client, "_STOP_SECONDS", 0.2)
    guard, agent = guard_of(agents), start(SLEEPS)
    line(agent)
    os.kill(guard, signal.SIGSTOP)
    agents.stop_guard()
    assert not alive(guard)
    assert end(agent).cause == "guard died"


# A worker of its own, which the test kills or freezes.

WORKER = """
import math, os, signal, sys, threading, time
from pathlib import Path
from worker.runners.sandbox.guard_client import AgentProcesses
agents = AgentProcesses()
agent = agents.spawn_agent([sys.executable, "-S", "-c", sys.argv[1]], mark=sys.argv[2], env={}, cwd=Path("/"),
                     lease_ends=time.monotonic() + float(sys.argv[3]))
print(agents.start_guard(), agent.read_output(60).decode().strip(), flush=True)
if len(sys.argv) > 4 and os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(600)
print(agent.wait_for_end(60), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def run(code: str, lease: float, *more: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", textwrap.dedent(WORKER), code, f"{RUN}.worker.1", str(lease), *more]
        env = {"PYTHONPATH": SOURCE_ROOT}
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def reads(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_killed_worker_leaves_no_agent_no_child_and_no_guard(
    worker: Callable[..., subprocess.Popen[str]],
) -> None:
    process = worker(LEAVES_A_CHILD.format(environ="os.environ") + HOLDS, 600)
    guard, child = map(int, reads(process).split())
    process.kill()
    wait_for(lambda: not alive(guard) and not alive(child))
    assert processes_with(f"{RUN}.worker.1") == {}


def test_a_worker_killed_together_with_its_guard_leaves_no_agent(
    worker: Callable[..., subprocess.Popen[str]],
) -> None:
    process = worker("import os, time; print(os.getpid(), flush=True); time.sleep(600)", 600)
    guard, agent = map(int, reads(process).split())
    os.kill(guard, signal.SIGSTOP)  # so that it cannot clean up
    process.kill()
    os.kill(guard, signal.SIGKILL)
    wait_for(lambda: not alive(agent))


def test_a_killed_worker_is_noticed_even_while_a_child_it_forked_lives_on(
    worker: Callable[..., subprocess.Popen[str]],
) -> None:
    process = worker("import os, time; print(os.getpid(), flush=True); time.sleep(600)", 600, "fork")
    guard, agent = map(int, reads(process).split())
    forked = int(reads(process))
    process.kill()
    try:
        wait_for(lambda: not alive(guard) and not alive(agent))
        assert alive(forked)
    finally:
        os.kill(forked, signal.SIGKILL)


def test_a_frozen_workers_agent_is_gone_once_its_lease_has_ended(
    worker: Callable[..., subprocess.Popen[str]],
) -> None:
    process = worker(LEAVES_A_CHILD.format(environ="os.environ") + HOLDS, 10.0)
    _, child = map(int, reads(process).split())
    process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: processes_with(f"HELIX_AGENT_MARK={RUN}.worker.1") == {})
        assert not alive(child)
    finally:
        process.send_signal(signal.SIGCONT)
    assert "cause='lease ended'" in reads(process)


#: Prints without end, and so does a child of it in a session of its own, with no mark.
COUNTS = """
import os, time
child = os.fork()
if child == 0:
    os.setsid()
    os.execve("/bin/sh", ["sh", "-c", "while :; do echo child; sleep 0.02; done"], {})
print(child, flush=True)
while True:
    print("agent", flush=True)
    time.sleep(0.02)
"""


def heard(agent: AgentProcess, *words: bytes) -> None:
    found: set[bytes] = set()
    wait_for(lambda: found.update((agent.read_output(0.1) or b"").split()) or found >= set(words))


def test_an_agent_whose_lease_is_over_is_suspended_with_all_it_started_and_goes_on_where_the_lease_does(
    start: Callable[..., AgentProcess],
) -> None:
    agent = start(COUNTS)
    child = int(line(agent).split()[0])
    agent.extend_lease(time.monotonic() - 1.0)  # as after a freeze
    wait_for(lambda: is_stopped(agent.pid) and not agent.read_output(0.2))
    agent.extend_lease(time.monotonic() - 1.0)  # what comes too late brings nothing back
    assert not agent.read_output(1.2)
    agent.extend_lease(math.inf)
    heard(agent, b"agent", b"child")
    agent.terminate_agent(0)
    assert end(agent).cause == "terminated"
    assert not alive(child)


@pytest.mark.parametrize("order", ["cancelled", "no word", "worker died"])
def test_a_suspended_agent_is_ended_by_an_order_and_where_no_word_comes(
    order: str, start: Callable[..., AgentProcess], agents: AgentProcesses
) -> None:
    agent = start(COUNTS)
    child = int(line(agent).split()[0])
    agent.extend_lease(time.monotonic() - 1.0)
    wait_for(lambda: is_stopped(agent.pid))  # its child may wait for one of its own that was stopped before it began
    if order == "cancelled":
        agent.terminate_agent(600.0)
    elif order == "worker died":
        agents.stop_guard()
    ended = {"cancelled": "terminated", "no word": "lease ended", "worker died": "guard died"}
    assert end(agent).cause == ended[order]
    wait_for(lambda: not alive(child))


def test_after_a_freeze_of_the_whole_machine_the_worker_has_as_long_as_ever_to_say_whose_turn_it_is(
    start: Callable[..., AgentProcess], agents: AgentProcesses
) -> None:
    agent = start(COUNTS)
    guard, child = guard_of(agents), int(line(agent).split()[0])
    agent.extend_lease(time.monotonic() + 1.0)
    for _ in range(2):
        for pid in (guard, agent.pid, child):
            os.kill(pid, signal.SIGSTOP)
        over = time.monotonic() + DOUBT_SECONDS + 2.0
        wait_for(lambda over=over: time.monotonic() > over)  # type: ignore[misc]
        for pid in (child, agent.pid, guard):
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: is_stopped(agent.pid))
    agent.extend_lease(math.inf)
    heard(agent, b"agent", b"child")
    agent.terminate_agent(0)
    assert end(agent).cause == "terminated"


def test_orphans_of_an_agent_become_the_guards(agents: AgentProcesses, start: Callable[..., AgentProcess]) -> None:
    agent = start(LEAVES_A_CHILD.format(environ="os.environ") + HOLDS)
    child = int(line(agent))
    wait_for(lambda: parent_of(child) == guard_of(agents))
    agent.terminate_agent(0)
    end(agent)


def test_who_ends_a_run_returns_when_its_agent_is_gone_and_not_before(
    agents: AgentProcesses, start: Callable[..., AgentProcess]
) -> None:
    agent = start("import time; print('at work', flush=True); time.sleep(600)")
    assert line(agent) == "at work"
    guard = guard_of(agents)
    os.kill(guard, signal.SIGSTOP)
    try:
        ending = threading.Thread(target=agents.end_agent, args=(agent.mark,))
        ending.start()
        ending.join(0.5)
        assert ending.is_alive(), "its agent is still there"
    finally:
        os.kill(guard, signal.SIGCONT)
    ending.join(WAIT_SECONDS)
    assert not ending.is_alive()
    assert end(agent).cause == "terminated"
    agents.end_agent(agent.mark)


def test_an_agent_that_had_ended_when_its_guard_was_asked_to_end_it_ended_by_itself(
    start: Callable[..., AgentProcess], agents: AgentProcesses, tmp_path: Path
) -> None:
    guard, go = guard_of(agents), tmp_path / "go"
    agent = start(
        f"import os, time\nprint(os.getpid(), flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    )
    pid = int(line(agent))
    os.kill(guard, signal.SIGSTOP)
    go.touch()
    wait_for(lambda: not alive(pid))
    agent.terminate_agent(0)
    os.kill(guard, signal.SIGCONT)
    assert end(agent) == AgentExit(code=0, pid=pid)
