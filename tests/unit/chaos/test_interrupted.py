"""A chaos run that is asked to end by a signal ends, wherever the signal finds it."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.chaos.run import Interrupted, workplace
from tests.support import wait_until


class _Finalized:
    """Gets the signal while Python finalizes it: what is raised there is lost."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_comes_in_a_finalizer_interrupts_the_loop_and_all_is_as_before() -> None:
    before, folders = signal.getsignal(signal.SIGTERM), []

    async def be_busy() -> None:
        _Finalized()
        await wait_until(lambda: None)

    def run() -> None:
        with workplace() as directory:
            folders.append(directory)
            asyncio.run(be_busy())

    with pytest.raises(Interrupted) as interrupted:
        run()
    assert interrupted.value.code == 128 + signal.SIGTERM
    assert not folders[0].exists()
    assert signal.getsignal(signal.SIGTERM) == before
