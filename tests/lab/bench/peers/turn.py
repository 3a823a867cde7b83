"""A whole turn as one task: attempt after attempt until one is accepted."""

import asyncio
import time

from tests.lab.bench.load import work
from tests.lab.bench.peers.ledger import AsyncLedger, Ledger, said


def play(ledger: Ledger, turn: str, kind: str) -> None:
    """For workers of threads and processes."""
    ledger.publish(turn, "started")
    if kind == work.HELD:
        time.sleep(work.HELD_SECONDS)
    for number in range(1, 4):
        text = work.answer(kind, number)
        for piece in said(kind, text):
            ledger.publish(turn, "said", text=piece)
        ok = work.accepted(text)
        ledger.keep_attempt(turn, number, text, ok)
        ledger.publish(turn, "accepted" if ok else "rejected", attempt=number)
        if ok:
            ledger.keep_answer(turn, text)
            ledger.publish(turn, "done", attempts=number)
            return


async def play_async(ledger: AsyncLedger, name: str, kind: str) -> None:
    """For workers of one event loop."""
    await announce_start(ledger, name)
    if kind == work.HELD:
        await asyncio.sleep(work.HELD_SECONDS)
    for number in range(1, 4):
        if await play_attempt(ledger, name, kind, number):
            await end_turn(ledger, name, kind, number)
            return


async def announce_start(ledger: AsyncLedger, turn: str) -> None:
    await ledger.publish(turn, "started")


async def play_attempt(ledger: AsyncLedger, turn: str, kind: str, number: int) -> bool:
    """Play an attempt and store it. Return whether its answer is accepted."""
    text = work.answer(kind, number)
    for piece in said(kind, text):
        await ledger.publish(turn, "said", text=piece)
    ok = work.accepted(text)
    await ledger.keep_attempt(turn, number, text, ok)
    await ledger.publish(turn, "accepted" if ok else "rejected", attempt=number)
    return ok


async def end_turn(ledger: AsyncLedger, turn: str, kind: str, number: int) -> None:
    """Store the answer, which attempt ``number`` gave, and publish the turn's end."""
    await ledger.keep_answer(turn, work.answer(kind, number))
    await ledger.publish(turn, "done", attempts=number)
