"""``turns stats top`` and the live line of ``turns turn watch``, over a real store and in a real terminal."""

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from api_client.contract.settings import Settings
from api_client.overview import read_overview
from tests.installation import environ_of, turns
from tests.integration.engine import FIRST, GOOD, NO_MARKER, Bench, says
from tests.support import wait_for
from worker.cli.figures.top import render_frame


class Terminal:
    """A program in a terminal, and what it wrote there."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self._master, self._written = process, master, b""

    def shows(self, text: str) -> bool:
        """True once the text was written; text is a regular expression."""
        with suppress(OSError):  # nothing new, or the program has ended
            self._written += os.read(self._master, 65_536)
        return bool(re.search(text.encode(), self._written))


def heed_ctrl_c() -> None:
    """A shell's background job ignores it, and so does what such a job starts; CI may be one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def terminal(settings: Settings, *arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    environ = environ_of(settings, TERM="xterm", COLUMNS="120", LINES="40")
    process = subprocess.Popen(
        turns(*arguments), env=environ, stdin=slave, stdout=slave, stderr=slave, preexec_fn=heed_ctrl_c
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(60)
        os.close(master)


async def test_top_shows_what_runs_and_goes_on_looking_until_ctrl_c(bench: Bench, settings: Settings) -> None:
    running = await bench.submit()
    bench.ledger.claim_turn(running, "s", FIRST)
    with terminal(settings, "stats", "top", "--every", "0.2") as shown:
        wait_for(lambda: shown.shows(running))
        waiting = await bench.submit(session_id="other")
        wait_for(lambda: shown.shows("1 waiting"))
        assert not shown.shows(waiting)
        shown.process.send_signal(signal.SIGINT)
        wait_for(lambda: shown.shows(re.escape("\x1b[?1049l")))  # the terminal is as it was
        assert shown.process.wait(60) == 130


async def test_top_writes_once_into_a_pipe_and_json_for_programs(bench: Bench, settings: Settings) -> None:
    turn = await bench.outcome(says(NO_MARKER), says(GOOD))
    plain = subprocess.run(
        turns("stats", "top"), env=environ_of(settings), capture_output=True, text=True, check=True
    ).stdout
    assert "1 finished  100.0% asked again  1 passed_after_retry" in plain
    assert "\x1b" not in plain
    command = turns("stats", "top", "--once", "--json")
    [line] = subprocess.run(command, env=environ_of(settings), capture_output=True, check=True).stdout.splitlines()
    told = json.loads(line)
    assert [each["turn_id"] for each in told["latest"]] == [turn.turn_id]
    assert (told["retry_rate"], told["states"]["queued"]) == (1.0, 0)


async def test_top_shows_what_each_owner_has_at_work_and_waiting_and_its_share(bench: Bench) -> None:
    first, _ = [await bench.submit(session_id=each, owner="a" * 32, weight=3) for each in ("s1", "s2")]
    bench.ledger.claim_turn(first, "s1", FIRST)
    await bench.submit(session_id="s3", owner="b" * 32, at_once=2)
    lines = [" ".join(line.text.split()) for line in render_frame(await read_overview(bench.client, "1h"), 120, 40)]
    assert lines[lines.index("OWNERS") + 1 :][:2] == [
        f"{'a' * 32} 1 at work 1 waiting weight 3",
        f"{'b' * 32} 0 at work 1 waiting weight 1, 2 at once",
    ]


async def test_a_frame_fits_its_terminal(bench: Bench) -> None:
    await bench.outcome(says(NO_MARKER), says(GOOD))
    for number in range(9):
        turn_id = await bench.submit(session_id=f"s{number}")
        bench.ledger.claim_turn(turn_id, f"s{number}", FIRST)
    seen = await read_overview(bench.client, "1h", rows=60)
    for width, height in [(120, 40), (60, 16), (20, 5)]:
        lines = render_frame(seen, width, height)
        assert len(lines) <= height
        assert max(len(line.text) for line in lines) <= width


async def test_watch_says_how_long_the_turn_has_been_waiting(bench: Bench, settings: Settings) -> None:
    turn_id = await bench.submit()
    with terminal(settings, "turn", "watch", turn_id) as shown:
        wait_for(lambda: shown.shows(r"waiting for a worker for \d+ s"))
        bench.ledger.claim_turn(turn_id, "s", FIRST)
        wait_for(lambda: shown.shows(r"attempt 1/3 running for \d+ s"))
