"""The design card's chain in plain Celery: run, validate; a rejected answer replaces the chain's end by another one."""

import time

from celery import Celery, Task, chain

from tests.lab.bench.load import work
from tests.lab.bench.peers.ledger import URL, Ledger, said

app = Celery("chain", broker=URL, backend=URL, set_as_current=False)
app.conf.update(worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)
_ledgers: list[Ledger] = []


def _ledger() -> Ledger:
    """One connection pool a process, made after the fork."""
    if not _ledgers:
        _ledgers.append(Ledger())
    return _ledgers[0]


def links(turn: str, kind: str, number: int) -> chain:
    """The chain of one attempt."""
    return chain(run.si(turn, kind, number), validate.s(turn, kind, number))


@app.task(name="chain.run")
def run(turn: str, kind: str, number: int) -> str:
    if number == 1:
        _ledger().publish(turn, "started")
    if kind == work.HELD:
        time.sleep(work.HELD_SECONDS)
    text = work.answer(kind, number)
    for piece in said(kind, text):
        _ledger().publish(turn, "said", text=piece)
    return text


@app.task(name="chain.validate", bind=True)
def validate(self: Task, text: str, turn: str, kind: str, number: int) -> str:
    """Judge the answer; replace this link by another attempt if it is rejected."""
    ok = work.accepted(text)
    _ledger().keep_attempt(turn, number, text, ok)
    _ledger().publish(turn, "accepted" if ok else "rejected", attempt=number)
    if not ok:
        raise self.replace(links(turn, kind, number + 1))
    _ledger().keep_answer(turn, text)
    _ledger().publish(turn, "done", attempts=number)
    return text
