"""Another model takes a turn over: services over HTTP, real workers, and the errors for which models name others."""

import json

import pytest

from api_client.contract.turn import Outcome
from tests.http_service import Asked, HttpService, Reply
from tests.installation import Installation, asked, command
from tests.integration.test_limited_services import _answer as answer
from tests.integration.test_limited_services import configure

LONG = b'{"error": {"message": "This model\'s maximum context length is 10 tokens", "type": "invalid_request_error"}}'
ERRORS = {
    "limit": Reply(429, b"{}", {"retry-after": "600"}),
    "overloaded": Reply(529, b"{}", {"retry-after": "600"}),
    "context_length": Reply(400, LONG),
}
REFUSED = Reply(401, b'{"error": {"message": "no such key"}}')
OTHERS = '["second", "third"]'


def service(reply: Reply) -> HttpService:
    return HttpService(lambda _: reply)


@pytest.mark.parametrize("kind", ERRORS)
async def test_the_next_model_of_the_list_answers_and_the_attempt_names_those_that_could_not(
    installation: Installation, kind: str
) -> None:
    with service(ERRORS[kind]) as one, service(REFUSED) as two, HttpService(answer) as three:
        lists = f"{{ {', '.join(f'{each} = {OTHERS}' for each in (kind, 'auth'))} }}"
        urls = {"first": one.url, "second": two.url, "third": three.url}
        used = configure(installation, urls, first={"fallbacks": lists})
        installation.worker()
        client = installation.client
        turn_id = await client.submitter.submit(asked("Hallo", "s", model="first"))
        turn = await client.reader.await_result(turn_id, timeout=60)
        assert (turn.outcome, turn.attempt) == (Outcome.PASSED, 1)
        [attempt] = await client.reader.read_attempts(turn_id)
        fell = attempt.completion["evidence"]["fallback_from"]
        assert [(model, each["fault"], each["next"]) for model, each in fell.items()] == [
            ("first", kind, "second"),
            ("second", "auth", "third"),
        ]
        assert [len(each.asked) for each in (one, two, three)] == [1, 1, 1]
        assert f"first ({kind}), second (auth), third" in command(used, "turn", "show", turn_id).stdout
        assert "third from second: auth (HTTP 401" in command(used, "turn", "attempts", turn_id).stdout
        assert "model second takes over attempt 1" in command(used, "turn", "watch", turn_id).stdout
        assert json.loads(command(used, "turn", "show", turn_id, "--json").stdout)["fell"] == fell


async def test_a_turn_that_would_wait_behind_a_limit_is_taken_over_before_it_asks(installation: Installation) -> None:
    with service(ERRORS["limit"]) as one, HttpService(answer) as two:
        configure(installation, {"first": one.url, "second": two.url}, first={"fallbacks": '{ limit = ["second"] }'})
        installation.worker()
        client = installation.client
        ids = [await client.submitter.submit(asked("Hallo", f"s{n}", model="first")) for n in range(4)]
        ended = [await client.reader.await_result(turn_id, timeout=60) for turn_id in ids]
        assert {turn.outcome for turn in ended} == {Outcome.PASSED}
        before = len(one.asked)
        late = await client.submitter.submit(asked("Hallo", "late", model="first"))
        assert (await client.reader.await_result(late, timeout=60)).outcome is Outcome.PASSED
        [attempt] = await client.reader.read_attempts(late)
        assert attempt.completion["evidence"]["fallback_from"]["first"]["fault"] == "limit"
        assert len(one.asked) == before


def one_that_recovers() -> HttpService:
    seen: list[Asked] = []

    def say(request: Asked) -> Reply:
        seen.append(request)
        return Reply(503, b"{}") if len(seen) < 3 else answer(request)

    return HttpService(say)


async def test_an_error_that_passes_soon_is_tried_again_before_another_model_is_asked(
    installation: Installation,
) -> None:
    with one_that_recovers() as one, HttpService(answer) as two:
        configure(
            installation, {"first": one.url, "second": two.url}, first={"fallbacks": '{ overloaded = ["second"] }'}
        )
        installation.worker()
        client = installation.client
        turn_id = await client.submitter.submit(asked("Hallo", "s", model="first"))
        assert (await client.reader.await_result(turn_id, timeout=60)).outcome is Outcome.PASSED
        assert (len(one.asked), len(two.asked)) == (3, 0)


async def test_a_turn_that_waits_for_its_last_model_does_not_go_back_to_one_that_refused_it(
    installation: Installation,
) -> None:
    third: list[Asked] = []

    def limited(request: Asked) -> Reply:
        third.append(request)
        return Reply(429, b"{}", {"retry-after": "1"}) if len(third) < 3 else answer(request)

    with service(ERRORS["limit"]) as one, service(REFUSED) as two, HttpService(limited) as three:
        lists = '{ limit = ["second", "third"], auth = ["third"] }'
        configure(installation, {"first": one.url, "second": two.url, "third": three.url}, first={"fallbacks": lists})
        installation.worker()
        client = installation.client
        turn_id = await client.submitter.submit(asked("Hallo", "s", model="first"))
        turn = await client.reader.await_result(turn_id, timeout=60)
        assert [len(each.asked) for each in (one, two, three)] == [1, 1, 3]
        assert (turn.outcome, turn.models) == (Outcome.PASSED, "first (limit), second (auth), third")
