"""Runs one task of one turn in a separate process: ``python -m worker.isolated TASK ATTEMPT TURN SESSION``.

A turn that has killed workers gets its last delivery here, so that a crash affects no other turn.
"""

from __future__ import annotations

import signal
import sys
import threading

from api_client.contract.tasks import ChainTask
from worker.app import app, settings_of_process
from worker.processes.isolated_tasks import IsolatedTasks
from worker.turns.engine import Engine


def main() -> None:
    """Run the task named on the command line. On SIGTERM, hand the turn over without counting a crash."""
    task, attempt, turn_id, session_id = sys.argv[1:]
    settings = settings_of_process()
    engine = Engine(settings, app, IsolatedTasks(settings), alone=True)
    signal.signal(signal.SIGTERM, lambda *_: engine.shut_down())
    engine.start()

    chain_task = ChainTask.parse(f"{task}/{attempt}")
    work = threading.Thread(target=engine.carry_out_alone, args=(chain_task, turn_id, session_id))
    work.start()
    work.join()
    engine.close()


if __name__ == "__main__":
    main()
