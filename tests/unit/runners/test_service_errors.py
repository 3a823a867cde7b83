"""The meaning of a service's HTTP errors: in the services' own words, as they were seen."""

import pytest

from worker.runners.service_errors import fault_of, passes


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
        (400, "unknown parameter", "", False),
        (404, "no such model", "", False),
    ],
)
def test_an_error_is_known_by_its_status_and_the_services_words(
    status: int, said: str, fault: str, passing: bool
) -> None:
    assert (fault_of(status, said), passes(status)) == (fault, passing)
