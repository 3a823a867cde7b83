"""One dramatiq actor a turn."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from tests.lab.bench.peers.ledger import URL, Ledger
from tests.lab.bench.peers.turn import play

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)
_ledger = Ledger()


@dramatiq.actor(max_retries=3)
def turn(name: str, kind: str) -> None:
    play(_ledger, name, kind)
