"""Runs thousands of random schedules on a real server, many side by side."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import hiredis

from tests.fault import scripts
from tests.fault.schedule import Schedule
from tests.fault.scripts import Mutant
from tests.fault.wire import Group, Steps, Wire, run_all

#: Schedules side by side on each of two connections.
_SIDE_BY_SIDE = 24


class Interleaver:
    """Runs schedules on the server behind a unix socket, which it needs for itself alone.

    ``counts`` adds up what happened, ``ran`` how many schedules came to their judged end.
    """

    def __init__(self, socket_path: str, mutant: Mutant | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.ran = 0
        self._heard: dict[bytes, list[bytes]] = {}
        self._wires = [Wire(socket_path, self._hear) for _ in range(2)]
        texts = scripts.command_texts(mutant)
        self._shas = {name: scripts.sha(text) for name, text in texts.items()}
        loads = [("SCRIPT", "LOAD", text) for text in (scripts.LOOK, scripts.FORGET, scripts.TAKE_ALL, *texts.values())]
        # What is written to the disk is not the matter here.
        for reply in self._wires[0].ask(("FLUSHALL",), ("CONFIG", "SET", "appendonly", "no"), *loads):
            assert not isinstance(reply, hiredis.ReplyError), reply

    def run(self, seeds: Iterator[int]) -> None:
        """Run the schedules of these seeds. Raises ``Violation`` with the seed and the whole schedule.

        Raises:
            Violation: a rule did not hold; the text has the seed and its whole schedule.
        """
        groups = []
        for number, wire in enumerate(self._wires):
            wire.ask(("PSUBSCRIBE", f"i{number}-*"))
            groups.append(Group(wire, partial(self._next, number, seeds), _SIDE_BY_SIDE))
        run_all(groups)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()

    def _hear(self, bell: bytes, wire: bytes) -> None:
        self._heard.setdefault(bell, []).extend(wire.split(b"\n"))

    def _next(self, place: int, seeds: Iterator[int]) -> Steps | None:
        seed = next(seeds, None)
        if seed is None:
            return None
        # Each connection hears its own schedules only: what is published comes before the reply to what follows.
        return self._counted(Schedule(seed, f"i{place}-{seed}", self._shas, self._heard))

    def _counted(self, schedule: Schedule) -> Steps:
        yield from schedule.steps()
        self.counts.update(schedule.counts)
        self.ran += 1
