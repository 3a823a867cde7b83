"""The retry policy of a turn, for its transitions and validators."""

from __future__ import annotations

from api_client.contract.answer_format import FORMAT_ORDER, RESPONSE_FORMAT, AnswerFormat
from api_client.contract.policy import AppliedPolicy
from api_client.contract.turn import Turn
from api_client.contract.work import find_work
from worker.enforcement.policy import Policy


def find_turn_policy(turn: Turn) -> Policy:
    request = turn.request
    applied = AppliedPolicy.from_request(request)
    formed = {RESPONSE_FORMAT: tuple(map(str, FORMAT_ORDER))} if AnswerFormat.from_request(request) else {}
    return Policy(
        max_attempts=turn.max_attempts,
        locale=request.locale,
        order=request.policy | formed,
        go_on=find_work(request).answers_in_text,
        caps=applied.caps if applied else {},
        lenient=frozenset(applied.lenient) if applied else frozenset(),
    )
