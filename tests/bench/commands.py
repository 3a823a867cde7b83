"""Which commands a turn costs the store, each with its key: ``python -m tests.bench.commands``.

A real worker and a real client, as in ``make bench``: turns whose first answer is rejected, one at a time, watched by
MONITOR. What reapers and workers ask in any case, turns or not, is listed apart.
"""

import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import redis

from tests.bench.load import work
from tests.bench.turns.rows import ROWS
from tests.bench.turns.running import Running
from tests.ports import free_port
from worker.processes.broker import EmbeddedBroker

_TURNS = 50
_END = "bench-commands-end"
#: Parts of a key's name that differ from turn to turn.
_ANY = re.compile(r"t\d+-[0-9a-f]{32}|[0-9a-f]{32}|\d{6,}")
#: What is asked every second, whether there are turns or not; folding counters costs the same for one turn and many.
_ROUNDS = re.compile(
    r"metrics:(folds|total|minute|hour|day)|:reapers|workers|fleet|ZRANGEBYSCORE|LTRIM|ZREMRANGE|LRANGE .*pending"
)


def watched(running: Running, port: int, turns: int) -> list[tuple[bool, str]]:
    """Every command while so many turns were carried out: whether it was inside Lua, and its text."""
    seen: list[tuple[bool, str]] = []
    ready = threading.Event()

    def watch() -> None:
        with redis.Redis(host="127.0.0.1", port=port) as store, store.monitor() as monitor:  # type: ignore[no-untyped-call]
            ready.set()
            for command in monitor.listen():
                if _END in command["command"]:
                    return
                seen.append((command["client_type"] == "lua", command["command"]))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    ready.wait()
    running.order("turns", kind=work.REJECTED, in_flight=1, seconds=300.0, most=turns, read_back=0)
    running.store.echo(_END)
    watching.join()
    return seen


def name_of(command: str) -> str:
    """A command without what differs from turn to turn: its name and its key's."""
    words = command.split(" ")
    script = words[0].upper() == "EVALSHA"
    key = words[3] if script else words[1] if len(words) > 1 else ""
    key = _ANY.sub("*", key.removeprefix("bench:").removeprefix("{0}:"))
    return f"{words[0].upper()} {key}"


def table(seen: Iterable[tuple[bool, str]], turns: int) -> list[str]:
    """Lines of Markdown: command, a turn's sent, a turn's inside Lua."""
    turn: Counter[tuple[str, bool]] = Counter()
    rounds = 0
    for lua, command in seen:
        name = name_of(command)
        if _ROUNDS.search(name) or _ROUNDS.search(command[:120]):
            rounds += 1
        else:
            turn[name, lua] += 1
    lines = ["| command | sent | inside Lua |", "|---|---|---|"]
    totals = {lua: sum(count for (_, where), count in turn.items() if where is lua) / turns for lua in (False, True)}
    lines.append(f"| all: {sum(totals.values()):.1f} | {totals[False]:.1f} | {totals[True]:.1f} |")
    for name in sorted({name for name, _ in turn}, key=lambda name: -(turn[name, False] * 1000 + turn[name, True])):
        sent, inside = turn[name, False] / turns, turn[name, True] / turns
        lines.append(f"| `{name}` | {sent:.1f} | {inside:.1f} |")
    lines.append(f"\nBesides {rounds / turns:.1f}: rounds that are made every second or so, for one turn as for many.")
    return lines


def main() -> None:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="turns-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        store = EmbeddedBroker(folder / "store", port=port)
        with store, Running(ROWS["ours"], store, None, folder, waiting=False) as running:
            running.turns(work.REJECTED, in_flight=10, seconds=5.0, most=40)
            seen = watched(running, port, _TURNS)
    sys.stdout.write("\n".join(table(seen, _TURNS)) + "\n")


if __name__ == "__main__":
    main()
