"""Random schedules of the real Lua commands on a real server, judged after every step; mutants prove the judge.

CI runs 2,500 schedules and finds one mutant in five; ``make faults`` runs 10,000 and finds each.
INTERLEAVER_SCHEDULES=200000 runs more schedules, INTERLEAVER_FIRST=20000 begins with another seed, and
INTERLEAVER_SEED=4711 repeats one schedule. A schedule that breaks a rule is printed whole, with its seed; the same seed
gives the same schedule.
"""

import os
import time
from collections.abc import Iterator

import pytest

from tests.fault import scripts
from tests.fault.interleaver import Interleaver
from tests.fault.matrix import WHOLE
from tests.fault.mutants import MUTANTS
from tests.fault.rules import Violation
from tests.fault.scripts import Mutant
from worker.processes.embedded_broker import EmbeddedBroker

SCHEDULES = int(os.environ.get("INTERLEAVER_SCHEDULES", "10000" if WHOLE else "2500"))
FIRST = int(os.environ.get("INTERLEAVER_FIRST", "0"))
SEED = os.environ.get("INTERLEAVER_SEED", "")
#: Within so many schedules every mutant must be found.
_ENOUGH = 6000
#: The mutants of this run.
FOUND = MUTANTS if WHOLE else MUTANTS[::5]

#: A run that never saw one of these proves nothing about it.
RARE = (
    *("forget", "append behind", "commit behind", "commit claimed"),
    *("append fenced", "beat fenced", "commit fenced", "claim refused"),
    *("seal sealed", "seal stopped", "seal fenced", "cancel accepted"),
    *("submit known", "submit repeated", "submit conflict", "submit busy"),
    *("reap gone", "reap early", "reap held", "reap later", "reap interrupt", "reap announce", "reap finished"),
    *("cancel stopping", "cancel finished", "drop dropped", "outcome dead", "outcome expired", "outcome cancelled"),
    *("outcome passed", "outcome passed_after_retry", "outcome passed_by_fallback", "outcome failed"),
    "outcome passed_by_human",
    *("decide decided", "decide known", "decide not_suspended", "decide missing"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Provide a server for these schedules alone."""
    with EmbeddedBroker(tmp_path_factory.mktemp("interleaver")) as server:
        yield server


def run(server: EmbeddedBroker, seeds: Iterator[int], mutant: Mutant | None = None) -> Interleaver:
    interleaver = Interleaver(str(server.socket), mutant)
    try:
        interleaver.run(seeds)
    finally:
        interleaver.close()
    return interleaver


@pytest.mark.timeout(max(600, SCHEDULES // 20))
def test_no_schedule_breaks_a_rule(server: EmbeddedBroker) -> None:
    seeds = iter([int(SEED)]) if SEED else iter(range(FIRST, FIRST + SCHEDULES))
    began = time.monotonic()
    ran = run(server, seeds)
    seconds = time.monotonic() - began
    print(f"{ran.ran} schedules, {sum(ran.counts.values())} commands in {seconds:.1f} s")
    if ran.ran >= 2000:
        assert [event for event in RARE if not ran.counts[event]] == []


def test_each_mutant_still_breaks_a_command() -> None:
    for mutant in MUTANTS:
        assert scripts.command_texts(mutant) != scripts.command_texts(), mutant.name


@pytest.mark.parametrize("mutant", FOUND, ids=[mutant.name for mutant in FOUND])
def test_the_interleaver_finds_this_mutant(server: EmbeddedBroker, mutant: Mutant) -> None:
    with pytest.raises(Violation) as found:
        run(server, iter(range(mutant.seed, mutant.seed + _ENOUGH)), mutant)
    assert "seed" in str(found.value)
    print(str(found.value).splitlines()[0])


def test_a_seed_alone_replays_the_schedule_it_had_among_others(server: EmbeddedBroker) -> None:
    with pytest.raises(Violation) as found:
        run(server, iter(range(_ENOUGH)), MUTANTS[0])
    seed = int(str(found.value).split()[1].rstrip(":"))
    with pytest.raises(Violation) as again:
        run(server, iter([seed]), MUTANTS[0])
    assert str(again.value) == str(found.value)
