"""Run one link of one turn in a separate process: ``python -m worker.isolated TASK ATTEMPT TURN SESSION``.

A turn that has taken down workers gets its last delivery here (poison cap): what dies now dies alone,
and no other turn is struck with it.
"""

from __future__ import annotations

import signal
import sys
import threading

from api_client.contract.tasks import Link
from worker.app import app, settings_of_process
from worker.processes.isolation import IsolatedLinks
from worker.turns.engine import Engine


def main() -> None:
    """Carry out the link the command line names. SIGTERM hands the turn over without a strike."""
    task, attempt, turn_id, session_id = sys.argv[1:]
    settings = settings_of_process()
    engine = Engine(settings, app, IsolatedLinks(settings), alone=True)
    signal.signal(signal.SIGTERM, lambda *_: engine.shut_down())
    engine.start()

    # Not in this thread: it is where signals are handled.
    link = Link.parse(f"{task}/{attempt}")
    work = threading.Thread(target=engine.carry_out_alone, args=(link, turn_id, session_id))
    work.start()
    work.join()
    engine.close()


if __name__ == "__main__":
    main()
