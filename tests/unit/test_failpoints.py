"""Failpoints: unarmed they do nothing; armed they fire once, in the process and at the pass that was named."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from api_client.contract import failpoints
from api_client.contract.failpoints import FailpointError, pass_failpoint
from tests.fault.points import CAPABILITY_POINTS, POINTS
from tests.support import wait_for

ROOT = Path(__file__).parents[2]


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch):
    def arm(spec: str) -> None:
        monkeypatch.setattr(failpoints, "_points", failpoints._read_failpoint(spec))

    return arm


def start(spec: str, passes: int = 1) -> subprocess.Popen[bytes]:
    """A separate process that passes output.received."""
    code = (
        "from api_client.contract.failpoints import pass_failpoint\n"
        f"for _ in range({passes}): pass_failpoint('output.received')\n"
        "print('went on')"
    )
    environ = {**os.environ, "HELIX_FAILPOINT": spec}
    return subprocess.Popen([sys.executable, "-c", code], env=environ, cwd=ROOT, stdout=subprocess.PIPE)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_nothing_happens_unless_a_point_is_armed(armed) -> None:
    armed("")
    for name in POINTS:
        pass_failpoint(name)


def test_only_the_named_point_fires_and_only_at_the_named_pass(armed) -> None:
    armed("output.received=raise@2")
    pass_failpoint("agent.started")
    pass_failpoint("output.received")
    with pytest.raises(FailpointError, match=r"output\.received"):
        pass_failpoint("output.received")
    pass_failpoint("output.received")


def test_an_order_that_is_no_action_is_told(armed) -> None:
    armed("output.received=explode")
    with pytest.raises(ValueError, match="no such action of a failpoint: explode"):
        pass_failpoint("output.received")


def test_kill_ends_the_process_at_the_point() -> None:
    process = start("output.received=kill@2", passes=3)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (-signal.SIGKILL, b"")


def test_stop_freezes_the_process_until_it_is_continued() -> None:
    process = start("output.received=stop")
    wait_for(lambda: state_of(process.pid) == "T")
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, b"went on\n")


def test_stop_holds_the_very_thread_that_passes_while_others_could_take_the_signal() -> None:
    code = (
        "import os, threading\n"
        "from api_client.contract.failpoints import pass_failpoint\n"
        "idle = threading.Thread(target=threading.Event().wait, daemon=True).start\n"
        "worker = threading.Thread(target=lambda: (pass_failpoint('output.received'), os.write(1, b'went on')))\n"
        "idle(); worker.start(); worker.join()"
    )
    for _ in range(5):
        environ = {**os.environ, "HELIX_FAILPOINT": "output.received=stop"}
        process = subprocess.Popen([sys.executable, "-c", code], env=environ, cwd=ROOT, stdout=subprocess.PIPE)
        wait_for(lambda process=process: state_of(process.pid) == "T")
        assert process.stdout
        os.set_blocking(process.stdout.fileno(), False)
        assert not process.stdout.read()
        process.kill()
        process.communicate()


def test_a_folder_arms_points_while_processes_run_and_one_pass_over_all_of_them_fires(armed, tmp_path: Path) -> None:
    armed(str(tmp_path))
    pass_failpoint("output.received")
    assert list(tmp_path.iterdir()) == [], "nothing is armed yet"
    (tmp_path / "output.received").write_text("raise@2")
    first = start(str(tmp_path))
    assert first.communicate(timeout=60)[0] == b"went on\n"
    with pytest.raises(FailpointError):
        pass_failpoint("output.received")
    third = start(str(tmp_path))
    assert third.communicate(timeout=60)[0] == b"went on\n"
    passed = [int((tmp_path / f"output.received.{number}").read_text()) for number in (1, 2, 3)]
    assert passed == [first.pid, os.getpid(), third.pid]


def test_a_point_whose_file_is_still_empty_is_not_armed_and_counts_no_pass(armed, tmp_path: Path) -> None:
    armed(str(tmp_path))
    (tmp_path / "run.claimed").touch()  # as another process sees it between the file's opening and its writing
    failpoints.pass_failpoint("run.claimed")
    (tmp_path / "run.claimed").write_text("raise@1")
    with pytest.raises(failpoints.FailpointError):
        failpoints.pass_failpoint("run.claimed")


def test_a_meeting_lasts_until_the_file_is_there(armed, tmp_path: Path) -> None:
    armed(str(tmp_path))
    (tmp_path / "output.received").write_text(f"meet:{tmp_path}/go")
    passing = threading.Thread(target=pass_failpoint, args=("output.received",))
    passing.start()
    wait_for(lambda: (tmp_path / "output.received.1").exists())
    assert passing.is_alive()
    (tmp_path / "go").touch()
    passing.join(60)
    assert not passing.is_alive()


def test_every_point_of_the_matrix_is_passed_somewhere_in_the_code() -> None:
    code = "".join(path.read_text() for part in ("api_client", "worker") for path in (ROOT / part).rglob("*.py"))
    assert set(re.findall(r'(?:pass_failpoint|await pass_failpoint_async)\("([a-z.]+)"\)', code)) == {
        *POINTS,
        *CAPABILITY_POINTS,
    }
