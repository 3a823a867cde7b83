"""A model that cannot work is found by `turns doctor`, refused by `turns up`, and explained by `turns turn show`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.settings import Settings
from tests.http_service import Asked, HttpService, Reply
from tests.installation import run
from tests.integration.engine import Bench
from worker.cli.checks.models import check_models
from worker.plugins.traces.trace_batches import find_providers
from worker.runners.base import Emit, Order, RunResult, Stop, config_error

KEY = "right"


@contextmanager
def service(*listed: str, status: int = 200) -> Iterator[str]:
    """An OpenAI-compatible service that lists these models to those who know the key; yields its address."""

    def answer(asked: Asked) -> Reply:
        known = asked.headers.get("authorization") == f"Bearer {KEY}"
        body = json.dumps({"object": "list", "data": [{"id": name} for name in listed]}).encode()
        return Reply(status if known else 401, body)

    with HttpService(answer) as made:
        yield f"{made.url}/v1"


def said(**more: Any) -> tuple[str, str, str]:
    """State, message and fix of the one model of these settings."""
    [finding] = check_models(Settings(**{"models": {"m": "openai_http:qwen3"}, "openai_api_key": KEY, **more}))
    assert finding.check == "model m"
    return finding.state, finding.message, finding.fix


def test_a_service_that_lists_the_model_is_fine() -> None:
    with service("qwen3", "other") as url:
        assert said(openai_url=url)[0] == "ok"


@pytest.mark.parametrize(
    ("more", "message", "fix"),
    [
        ({"openai_url": "http://127.0.0.1:1/v1"}, "does not answer", "HELIX_OPENAI_URL"),
        ({"openai_url": ""}, "HELIX_OPENAI_URL is not set", "HELIX_OPENAI_URL"),
        (
            {"models": {"m": "openai_http"}, "openai_url": "http://127.0.0.1:1"},
            "model is not named",
            "HELIX_OPENAI_URL",
        ),
        ({"models": {"m": "bar"}}, "no runner 'bar'", "claude_cli"),
        ({"models": {"m": "scripted:nosuch.yaml"}}, "nosuch.yaml: No such file", "correct the path"),
    ],
)
def test_a_model_that_cannot_work_is_wrong_with_what_to_do(more: dict[str, Any], message: str, fix: str) -> None:
    found = said(**more)
    assert found[0] == "wrong"
    assert message in found[1]
    assert fix in found[2]


def test_a_service_that_does_not_list_the_model_says_which_it_lists() -> None:
    with service("llama", "mistral") as url:
        state, message, _ = said(openai_url=url)
    assert (state, "llama, mistral" in message) == ("wrong", True)


def test_of_an_agents_program_and_service_both_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("#!/bin/sh\necho 0.169.0 and 1.18.33\n")
    (tmp_path / "agent").chmod(0o755)
    with service("qwen3") as url:
        here = {"openai_url": url, "agent_path": str(tmp_path / "agent")}
        assert said(models={"m": "codex:qwen3"}, **here)[0] == "ok"
        assert "does not list 'other'" in said(models={"m": "acp:opencode:other"}, **here)[1]
        state, message, fix = said(models={"m": "codex:qwen3"}, openai_url=url, agent_path="no-such-agent")
        assert (state, "no-such-agent" in message, "agent_path" in fix) == ("warning", True, True)


def test_a_trace_names_whose_model_a_runner_asked() -> None:
    models = {"a": "claude_cli", "b": "codex:m", "c": "acp:opencode:m", "d": "acp:gemini:m", "e": "command:x.yaml"}
    asks = {"e": {"openai_url": "http://llm.example"}, "c": {"openai_url": "http://llm.example"}}
    found = find_providers(Settings(models={**models, "f": "scripted"}, model_settings=asks))
    assert found == {
        "a": "anthropic", "b": "openai", "c": "openai", "d": "gcp.gemini", "e": "openai", "f": "scripted",
    }  # fmt: skip


def test_a_key_that_is_refused_is_not_said_to_be_a_service_that_is_away() -> None:
    with service("qwen3") as url:
        state, message, fix = said(openai_url=url, openai_api_key="wrong")
        assert (state, "refuses the key (401)" in message, "HELIX_OPENAI_API_KEY" in fix) == ("wrong", True, True)
        assert "refuses a request without a key" in said(openai_url=url, openai_api_key="")[1]


def test_a_service_that_lists_nothing_at_all_is_fine_as_far_as_anybody_knows() -> None:
    with service(status=404) as url:
        assert said(openai_url=url)[0] == "ok"


def test_services_are_asked_once_and_each_model_has_its_finding() -> None:
    with service("a") as url:
        found = [
            *check_models(
                Settings(models={"x": "openai_http:a", "y": "openai_http:b"}, openai_url=url, openai_api_key=KEY)
            )
        ]
    assert [(each.check, each.state) for each in found] == [("model x", "ok"), ("model y", "wrong")]


def test_turns_up_refuses_models_that_can_never_work_and_names_all_of_them(tmp_path: Path) -> None:
    broken = {"foo": "bar", "gone": "scripted:nosuch.yaml", "local": "openai_http:qwen3", "fine": "scripted"}
    settings = Settings(root=tmp_path, models=broken)
    done = run(settings, "up", "--port", "0")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [name for name in broken if any(f"model '{name}'" in line for line in lines)] == ["foo", "gone", "local"]
    assert len(lines) == 3


def not_set_up(order: Order, emit: Emit, stop: Stop) -> RunResult:
    return config_error("HELIX_OPENAI_URL is not set")


async def test_turns_show_says_the_reason_not_only_that_something_is_wrong(bench: Bench) -> None:
    turn = await bench.outcome(not_set_up)
    done = run(bench.settings, "turn", "show", turn.turn_id)
    assert "HELIX_OPENAI_URL is not set" in done.stdout


def test_doctor_finds_what_turns_up_would_refuse(settings: Settings) -> None:
    broken = replace(settings, models={"foo": "bar"})
    done = run(broken, "doctor", "--json")
    findings = json.loads(done.stdout)["findings"]
    assert (done.returncode, [each["state"] for each in findings if each["check"] == "model foo"]) == (1, ["wrong"])
