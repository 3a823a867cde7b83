"""Whose CPU time it was, in an installation whose agents are killed together with their sandboxes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.installation import children_of
from tests.lab.bench.cpu_meter import CpuMeter
from tests.support import alive, wait_for
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.bubblewrap import LISTENER_MOUNTS

#: Works for 500 ms, has a child that works for 300 and ends, says so, and stays.
_AGENT = """
import os, time
def work(seconds):
    ends = time.process_time() + seconds
    while time.process_time() < ends: pass
work(0.5)
child = os.fork()
if not child:
    work(0.3)
    os._exit(0)
os.waitpid(child, 0)
print("worked", flush=True)
time.sleep(600)
"""


#: Starts an agent at a line of input, and kills it at the next.
_PARENT = 'while read -r x; do "$@" & read -r x; kill -9 $!; wait; echo killed; done'


@pytest.mark.parametrize("sandboxed", [False, True])
def test_an_agents_time_counts_while_it_lives_and_when_it_was_killed(sandboxed: bool) -> None:
    if sandboxed and (problem := bubblewrap.find_network_obstacle()):
        pytest.skip(problem)
    program = Path(sys.executable).resolve()
    command = [str(program), "-I", "-S", "-c", _AGENT]
    if sandboxed:
        command = bubblewrap.sandbox_command(command, Path("/usr"), LISTENER_MOUNTS)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        ["sh", "-c", _PARENT, "sh", *command], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdin
        assert parent.stdout
        with CpuMeter([parent.pid], program) as meter:
            for number in (1, 2):
                print(file=parent.stdin, flush=True)
                assert "worked" in parent.stdout.readline()
                agents, others = meter.measure()
                assert number * 750 <= agents < number * 1200
                assert others < 400
                living = children_of(parent.pid)
                print(file=parent.stdin, flush=True)
                assert "killed" in parent.stdout.readline()
                wait_for(lambda living=living: not any(map(alive, living)))
                assert meter.measure()[0] == pytest.approx(agents, abs=50)
        parent.stdin.close()
