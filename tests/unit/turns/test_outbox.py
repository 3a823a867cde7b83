"""What a worker sends again when a store has forgotten commands that it had answered."""

from __future__ import annotations

from typing import Any

from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, Link
from api_client.contract.turn import Turn, TurnRequest, TurnState
from worker.turns.record.changes import Changes
from worker.turns.record.claim import Behind, Claim
from worker.turns.record.command import Command, Outbox


def test_what_a_store_has_forgotten_is_sent_again_in_order() -> None:
    outbox = Outbox[str]()
    for number, command in enumerate(("one", "two", "three"), 1):
        assert outbox.number == number
        outbox.add(command)
    assert outbox.between(0, 3) == ["one", "two"]
    assert outbox.between(1, 3) == ["two"]
    assert outbox.between(2, 3) == []


class ForgetfulStore:
    """Takes a claim's commands in order only, as ``turn.lua`` does; ``known`` says how many it has.

    It answers no more than twenty: a holder that asks for ever is seen at once.
    """

    def __init__(self) -> None:
        self.known = 0
        self.commands: list[Command[Any]] = []
        self.answered = 0

    def carry_out(self, exchange: Any) -> None:
        said: Any = None
        while self.answered < 20:
            try:
                command = exchange.send(said)
            except StopIteration:
                return
            said = self._said(command)
        raise AssertionError("the holder asks again and again")

    def _said(self, command: Command[Any]) -> Behind | None:
        self.answered += 1
        if command not in self.commands:
            self.commands.append(command)
        number = self.commands.index(command)
        if number > self.known:
            return Behind(self.known)
        self.known = max(self.known, number + 1)
        return None


def test_a_holder_sends_again_what_the_store_forgot_and_then_goes_on() -> None:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(turn_id="t0-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    claim = Claim(turn, Link(RUN, 1), "token", 0.0, 60.0)
    changes, store = Changes(Settings(), "w"), ForgetfulStore()
    for text in ("one", "two", "three"):
        store.carry_out(changes.append(claim, [AttemptOutput(attempt=1, text=text)]))
    assert (store.known, store.answered) == (3, 3)
    store.known = 1
    store.carry_out(changes.append(claim, [AttemptOutput(attempt=1, text="four")]))
    assert (store.known, store.answered) == (4, 3 + 4), "four, which it is not ready for; two, three, four"
