"""The meaning of a service's errors: in the services' own words, as they were seen."""

import json
import time
from email.utils import formatdate
from typing import Any

import pytest

from worker.runners.service_errors import classify_fault, find_status, find_wait, is_spent, is_temporary, plain_words


@pytest.mark.parametrize(
    ("status", "said", "fault", "passing"),
    [
        (0, "", "overloaded", True),
        (401, "invalid x-api-key", "auth", False),
        (403, "permission_error", "auth", False),
        (429, "Request too large: context window", "limit", True),
        (500, "api_error", "overloaded", True),
        (529, "overloaded_error", "overloaded", True),
        (413, "request_too_large", "context_length", False),
        (400, "This model's maximum context length is 8192 tokens", "context_length", False),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", "context_length", False),
        (400, "The input token count (1200000) exceeds the maximum", "context_length", False),
        (400, "the request exceeds the available context size", "context_length", False),
        (500, "litellm.ContextWindowExceededError: too many tokens", "context_length", False),
        (400, "unknown parameter", "", False),
        (422, "unprocessable", "", False),
        (404, "no such model", "", False),
        (402, "anything", "limit", False),
        (429, '"code": "insufficient_quota"', "limit", False),
        (400, "Your credit balance is too low to access the Anthropic API.", "limit", False),
        (403, "AccountOverdueError: the account has an overdue balance", "limit", False),
        (400, "Budget has been exceeded! Current cost: 5.0, Max budget: 5.0", "limit", False),
        (429, "exceeded_current_quota_error", "limit", False),
        (429, "You exceeded your current quota, please check your plan", "limit", True),  # Gemini's limit for a minute
    ],
)
def test_an_error_is_known_by_its_status_and_the_services_words(
    status: int, said: str, fault: str, passing: bool
) -> None:
    assert (classify_fault(status, said), is_temporary(status, said)) == (fault, passing)
    assert is_spent(status, said) is (fault == "limit" and not passing)


def _error(**facts: Any) -> dict[str, Any]:
    return {"error": {"message": "no", **facts}}


@pytest.mark.parametrize(
    ("error", "http", "status"),
    [
        (_error(code="400", type="None", param="None"), 0, 400),  # LiteLLM
        (_error(code="429"), 200, 429),
        (_error(code=429.0), 0, 429),
        (_error(code="429.0"), 0, 429),
        (_error(code="HTTP 413"), 0, 413),
        (_error(code="429 Too Many Requests"), 0, 429),
        (_error(status=422), 0, 422),
        (_error(status="INVALID_ARGUMENT", code=400), 0, 400),
        (_error(status="RESOURCE_EXHAUSTED"), 0, 429),
        (_error(type="invalid_request_error", code=None), 0, 400),
        (_error(type="overloaded_error"), 0, 529),
        (_error(code="rate_limit_exceeded", type="tokens"), 0, 429),
        (_error(code="rate_limit_exceeded", type="invalid_request_error"), 0, 429),
        (_error(type="503"), 0, 503),
        (_error(error={"code": "400"}), 0, 400),
        ({"error": {"message": "x", "error": {"error": {"status_code": 404}}}}, 0, 404),
        (_error(metadata={"code": 429}), 0, 429),
        (_error(code=502, metadata={"raw": '{"error": {"code": 400, "message": "bad"}}'}), 0, 400),  # OpenRouter
        ([_error(code=403)], 0, 403),
        ('{"error": {"code": "401"}}', 0, 401),
        (_error(message="litellm.BadRequestError: OpenAIException - no such parameter"), 0, 400),
        (_error(message="litellm.RateLimitError: slow down"), 0, 429),
        (_error(code=True), 0, 0),
        (_error(code=1302), 0, 0),
        (_error(code="x" * 9999), 0, 0),
        (_error(code=float("nan")), 0, 0),
        (_error(code="400"), 500, 400),
        (_error(code=500), 429, 429),
        (_error(code="400"), 429, 429),
        ("<html>", 502, 502),
        (None, 0, 0),
        ([[[[]]]], 0, 0),
    ],
)
def test_a_status_is_read_as_a_number_or_a_text_wherever_it_stands(error: object, http: int, status: int) -> None:
    assert find_status(error, http) == status


@pytest.mark.parametrize(
    ("headers", "error", "least", "most"),
    [
        ({"retry-after": "36000"}, None, 36000, 36000),
        ({"retry-after": "1.5"}, None, 1.5, 1.5),
        ({"retry-after": formatdate(time.time() + 7200, usegmt=True)}, None, 3000, 7200),
        ({"retry-after": formatdate(time.time() - 90, usegmt=True)}, None, 0, 0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, None, 2, 2),
        ({"retry-after-ms": "1500"}, None, 1.5, 1.5),
        ({"x-ratelimit-reset-requests": "6m0s"}, None, 360, 360),
        ({"x-ratelimit-reset-tokens": "20ms", "x-ratelimit-reset-requests": "1h2m3.5s"}, None, 0.02, 0.02),
        (
            {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "9s", "x-ratelimit-reset-requests": "1s"},
            None,
            9,
            9,
        ),
        ({"x-ratelimit-reset": str(time.time() + 7200)}, None, 3000, 7200),
        ({"x-ratelimit-reset": str(int((time.time() + 7200) * 1000))}, None, 3000, 7200),
        ({"anthropic-ratelimit-tokens-reset": "2040-01-01T00:00:00Z"}, None, 1e8, 1e9),
        ({}, _error(details=[{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"}]), 36, 36),
        ({}, _error(retry_delay="37.5s"), 37.5, 37.5),
        ({}, _error(retry_after=12), 12, 12),
        ({}, _error(metadata={"headers": {"X-RateLimit-Reset": str((time.time() + 7200) * 1000)}}), 3000, 7200),
        ({}, _error(message="Rate limit reached. Please try again in 1m30s."), 90, 90),
        ({}, _error(message="Please retry in 36.5 seconds."), 36.5, 36.5),
        ({}, _error(message="try again in 350ms"), 0.35, 0.36),
        ({"retry-after": "soon"}, _error(retry_after="9" * 40), 0, 0),
        ({"retry-after": "-5"}, "<html>", 0, 0),
        ({"retry-after": "nan"}, None, 0, 0),
        ({}, None, 0, 0),
    ],
)
def test_a_wait_is_read_from_headers_and_bodies(
    headers: dict[str, str], error: object, least: float, most: float
) -> None:
    assert least <= find_wait(headers, error) <= most


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('HTTP 400: {"error": {"message": "no such model", "code": "400"}}', "HTTP 400: no such model"),
        (
            'API Error: 400 {"type":"error","error":{"type":"x","message":"too \\"long\\""}}',
            'API Error: 400 too "long"',
        ),
        ('{"detail": "Not found"}', "Not found"),
        ('{"error": "down"}', "down"),
        ('{"error": {"message": "{\\"error\\": {\\"message\\": \\"inner\\"}}"}}', "inner"),
        ('HTTP 500: {"code": 17, "trace": ["a"]}', "HTTP 500:"),
        ('HTTP 500: {"error": {"message": "cut in the mid', "HTTP 500: cut in the mid"),
        (
            "HTTP 502: <html><head><title>502</title><style>a{}</style></head><body><h1>Bad &amp; Gateway</h1></body>",
            "HTTP 502: Bad & Gateway",
        ),
        ("HTTP 503: <!DOCTYPE html><!-- x --><p>down\n\nfor  now", "HTTP 503: down for now"),
        ("the agent used up its turns", "the agent used up its turns"),
        ("a < b and c > d, {x}", "a < b and c > d, {x}"),
        ("", ""),
    ],
)
def test_people_read_neither_json_nor_html(said: str, words: str) -> None:
    assert plain_words(said) == words


def test_words_are_short_and_hostile_ones_take_no_time() -> None:
    for said in (
        "x" * 10**6,
        "{" * 10**5,
        '{"message":"' * 10**4,
        "<" * 10**5,
        "<a" * 10**5,
        json.dumps({"a": "{" * 999}),
    ):
        assert len(plain_words(said)) <= 300
        assert find_status(said) == find_wait({}, said) == 0
