from collections.abc import Iterator

import pytest

from worker.runners.guard.processes import Processes


@pytest.fixture(scope="session")
def agents() -> Iterator[Processes]:
    agents = Processes()
    agents.start()
    yield agents
    agents.stop()
