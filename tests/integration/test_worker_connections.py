"""A worker process has few connections: with thousands of them, a server's count is what ends first."""

from tests.lab.bench.connections import watched

#: Celery's pop of its queues, its orders, all it says and asks; the leases, all watchers; at work, the turns.
_IDLE, _AT_WORK = 5, 6


async def test_a_worker_process_opens_few_connections_idle_and_at_work() -> None:
    with watched(apart=False) as found:
        assert len(found.last_commands()) <= _IDLE
        assert len(await found.most(60)) <= _AT_WORK
        assert len(found.last_commands()) <= _AT_WORK


async def test_a_broker_of_its_own_takes_one_more_to_look_at_its_queues() -> None:
    with watched(apart=True) as found:
        assert len(found.last_commands()) <= _IDLE + 1
        await found.most(60)
        assert len(found.last_commands()) <= _AT_WORK + 1
