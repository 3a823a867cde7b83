"""One lean Celery task a turn: no result, no events, threads."""

from celery import Celery

from tests.lab.bench.peers.ledger import URL, Ledger
from tests.lab.bench.peers.turn import play

app = Celery("task", broker=URL, set_as_current=False)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
_ledger = Ledger()


@app.task(name="task.turn")
def turn(name: str, kind: str) -> None:
    play(_ledger, name, kind)
