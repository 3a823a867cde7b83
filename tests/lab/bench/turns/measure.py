"""The rounds: every row once in each, in another order each time."""

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.bench.load import work
from tests.lab.bench.sweeper import swept
from tests.lab.bench.turns.costs import new_file_us
from tests.lab.bench.turns.peers_home import NoPeers
from tests.lab.bench.turns.plan import Plan
from tests.lab.bench.turns.rows import CHAIN, ROWS, WAITING, Row
from tests.lab.bench.turns.running import Running
from tests.ports import free_port
from worker.processes.embedded_broker import EmbeddedBroker

Say = Callable[[str], None]
#: Turns before the first that count: pools are filled, code is loaded.
_WARM_UP = 40
#: The figures of a load that are kept, and the name each is shown with in a variant of so many in flight.
_TOGETHER = (
    *("turns_per_s", "p99_ms", "worker_cpu_ms", "client_cpu_ms", "store_cpu_ms", "commands", "in_bytes", "out_bytes"),
    *("aof_bytes", "memory_bytes", "others"),
)


def measure(plan: Plan, say: Say) -> dict[str, Any]:
    """Measure; returns ``{"rows": {row: {figure: [a value a round]}}, "commands": {row: {kind: counts}}}``.

    Raises:
        RowFailed: a row did not do its work. NoPeers: other queues could not be installed; engines are left out, unless
            the plan names some rows.
    """
    rows = [ROWS[name] for name in plan.rows if is_there(ROWS[name], plan, say)]
    found: dict[str, Any] = {"rows": {row.name: {} for row in rows}, "commands": {}}
    with tempfile.TemporaryDirectory(prefix="turns-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with swept(folder), EmbeddedBroker(folder / "store", durability=plan.durability, port=free_port()) as store:
            found["store"] = f"valkey {store.server.version}"
            for number in range(plan.rounds):
                say(f"round {number + 1}/{plan.rounds}: a new file takes {new_file_us(folder):.0f} µs")
                for row in random.sample(rows, len(rows)):
                    started = time.monotonic()
                    with Running(row, store, folder, waiting=False) as running:
                        idle = _idle(running, plan) if number == 0 else {}
                        figures = idle | _row(running, plan)
                        if number == 0:
                            found["commands"][row.name] = {
                                kind: running.commands(kind, plan.watched) for kind in plan.kinds
                            }
                    for figure, value in figures.items():
                        found["rows"][row.name].setdefault(figure, []).append(value)
                    say(_line(number, row, figures, plan, time.monotonic() - started))
            if plan.wait:
                for row in rows:
                    found["rows"][row.name] |= _waiting(row, store, folder, plan, say)
    return found


def is_there(row: Row, plan: Plan, say: Say) -> bool:
    """Whether the row can be measured. Raises ``NoPeers`` for rows that are no engine or that the plan names."""
    try:
        row.find_python()
    except NoPeers as error:
        if not row.durable or plan.rows != tuple(ROWS):
            raise
        say(f"left out: {row.label}: {error}")
        return False
    return True


def _row(running: Running, plan: Plan) -> dict[str, float]:
    """One row of one round, every variant; figures by name: ``rejected.p50_ms`` and the like."""
    figures = {"ready_s": running.ready_seconds}
    running.turns(plan.kinds[-1], in_flight=10, seconds=5.0, most=_WARM_UP)
    for kind in plan.kinds:
        alone = running.turns(kind, in_flight=1, seconds=plan.alone)
        figures |= {f"{kind}.{name}": alone[name] for name in ("p50_ms", "first_event_ms")}
        together = running.turns(kind, in_flight=plan.in_flight, seconds=plan.together)
        figures |= {f"{kind}.{name}": together[name] for name in _TOGETHER}
    if plan.stream:
        streamed = running.turns(work.STREAM, in_flight=10, seconds=plan.stream)
        figures |= {"stream.pieces_per_s": streamed["pieces_per_s"], "stream.others": streamed["others"]}
    return figures


def _idle(running: Running, plan: Plan) -> dict[str, float]:
    """What the row's worker costs while nothing is to be done."""
    running.turns(plan.kinds[-1], in_flight=10, seconds=5.0, most=_WARM_UP)
    time.sleep(plan.rest)
    return running.idle(plan.idle)


def _waiting(row: Row, store: EmbeddedBroker, folder: Path, plan: Plan, say: Say) -> dict[str, list[float]]:
    """A thousand turns whose agents sleep, once: how many were begun, and the memory and commands they cost."""
    if row.name == CHAIN or row.follows or row.durable:
        # Two processes of a chain hold two turns; who follows makes no difference to workers; engines hold 50.
        return {}
    with Running(row, store, folder, waiting=True) as running:
        before = running.memory_mb()
        held = running.order("hold", count=WAITING, seconds=plan.wait)
        idle = running.idle(plan.idle)
    say(f"waiting: {row.label}: {held['held']} of {WAITING} begun after {held['seconds']:.0f} s")
    return {
        "waiting.held": [held["held"]],
        "waiting.pss_mb": [idle["idle_pss_mb"]],
        "waiting.kb_each": [(idle["idle_pss_mb"] - before) * 1024 / max(1, held["held"])],
        "waiting.commands_per_s": [idle["idle_commands_per_s"]],
        "waiting.round_trips_per_s": [idle["idle_round_trips_per_s"]],
        "waiting.cpu_ms_per_s": [idle["idle_cpu_ms_per_s"]],
    }


def _line(number: int, row: Row, figures: dict[str, float], plan: Plan, seconds: float) -> str:
    kind = plan.kinds[-1]
    return (
        f"round {number + 1}/{plan.rounds} {row.label:27} {figures[f'{kind}.turns_per_s']:7.1f} turns/s, "
        f"{figures[f'{kind}.p50_ms']:6.2f} ms alone, {figures[f'{kind}.worker_cpu_ms']:6.2f} ms worker CPU, "
        f"others {figures[f'{kind}.others']:.0%} ({seconds:.0f} s)"
    )
