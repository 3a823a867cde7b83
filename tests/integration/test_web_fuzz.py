"""The relay's own OpenAPI document, turned against it: whatever is sent, the answer is never a fault of ours.

A real relay, store and worker. ``FUZZ_EXAMPLES=500`` sends that many requests to each route instead of a few.
"""

import os
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from tests.constants import Constants
from tests.installation import RelayProcess, installed, settings_on
from tests.unit.web.fake import FakeTurns, app_with
from worker.processes.embedded_broker import EmbeddedBroker

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "8"))
DOCUMENT = schemathesis.openapi.from_dict(app_with(FakeTurns()).openapi())
GOOD = '- attempts: [[say: "Gut.\\n\\n<!-- STEP: done -->"]]\n'
KEY = {"authorization": "Bearer key"}
#: How turns may end on a server that is well: these are told as 502 and 504.
ENDINGS = {"incomplete", "error", "expired"}
ASKED = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}], "validators": []}


@pytest.fixture(scope="module")
def relay(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """One relay and one worker for all requests, and an agent that answers at once."""
    used = settings_on(broker, tmp_path_factory.mktemp("fuzzed") / "root", api_keys=("key",), log_level="error")
    with pytest.MonkeyPatch.context() as patch, installed(used) as site:
        Constants(patch)("api_client.web.identity.access", TURNS_PER_MINUTE=0)
        site.play(GOOD, runner="inline")
        site.worker()
        yield site.relay()


@pytest.fixture(scope="module")
def turn_id(relay: RelayProcess) -> str:
    answer = httpx2.post(f"{relay.url}/v1/chat/completions", json=ASKED, headers=KEY, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-turn-id"]


@DOCUMENT.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,  # the same requests in every run
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_is_answered_with_a_fault_of_ours(
    case: schemathesis.Case, relay: RelayProcess, turn_id: str
) -> None:
    check(case, relay)
    if case.path_parameters:  # once more, about something that exists: a generated name never does
        real = {"model": "scripted", "turn_id": turn_id, "response_id": f"resp_{turn_id}"}
        case.path_parameters = {name: real.get(name, given) for name, given in case.path_parameters.items()}
        check(case, relay)


def check(case: schemathesis.Case, relay: RelayProcess) -> None:
    answer = case.call(base_url=relay.url, headers=KEY, timeout=120)
    if answer.status_code >= 400 and case.path != "/readyz":
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert answer.status_code < 500 or error["code"] in ENDINGS, answer.text


def test_every_route_for_programs_is_in_the_document() -> None:
    paths: Any = DOCUMENT.raw_schema["paths"]
    assert {"/v1/chat/completions", "/v1/responses", "/v1/responses/{response_id}", "/v1/turns/{turn_id}"} <= set(paths)
    for name in ("chat/completions", "responses", "turns"):
        body = paths[f"/v1/{name}"]["post"]["requestBody"]
        assert body["content"]["application/json"]["schema"]["required"][0] == "model"
