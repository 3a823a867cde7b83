"""What a run cost: what the model proxy counted, at the price of the model that each call named."""

from typing import Any

import pytest

from api_client.contract.settings import Settings
from worker.runners.claude.claude_models import allowed_models, model_prices
from worker.runners.pricing import Tokens, compute_usage, find_prices, matches_name

USED = Tokens(input_tokens=1_000_000, output_tokens=100_000)
PRICES = {"input": 3.0, "output": 10.0, "cheap-*": {"input": 1.0, "output": 5.0}, "cheap-x*": {"input": 2.0}}


def test_each_call_is_charged_at_the_price_of_the_model_that_it_named() -> None:
    usage = compute_usage({}, {"own": USED, "cheap-1": USED, "unknown": USED}, PRICES)
    assert usage["cost_usd"] == pytest.approx(4.0 + 1.5 + 4.0), "a model without a price costs what the block says"
    assert (usage["input_tokens"], usage["output_tokens"]) == (3_000_000, 300_000)
    assert find_prices("cheap-x2", PRICES) == {"input": 2.0}, "the longest name counts"


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"cost_usd": 0.0},
        {"cost_usd": 0, "input_tokens": 1, "output_tokens": 0},
        {"cost_usd": -5.0, "cache_read_tokens": 10**9},
        {"cost_usd": 1e9, "input_tokens": 10**9},
    ],
)
def test_an_agents_own_word_changes_nothing_where_its_calls_were_seen(said: dict[str, Any]) -> None:
    usage = compute_usage(said, {"own": USED}, PRICES)
    assert usage == {"input_tokens": 1_000_000, "output_tokens": 100_000, "cost_usd": pytest.approx(4.0)}


def test_without_a_proxy_the_agents_own_word_counts() -> None:
    assert compute_usage({"input_tokens": 1_000_000, "cost_usd": 0.5}, {}, PRICES)["cost_usd"] == 0.5
    assert compute_usage({"input_tokens": 1_000_000}, {}, PRICES)["cost_usd"] == 3.0
    assert compute_usage({"input_tokens": 3, "cost_usd": 0.5}, {"m": USED}, {})["cost_usd"] == 0.5, (
        "nobody knows a price"
    )
    assert compute_usage({}, {"m": Tokens()}, PRICES) == {}


def test_a_name_with_stars_fits_and_nothing_else_in_it_is_a_pattern() -> None:
    assert matches_name("claude-opus-5-5", "*opus*")
    assert matches_name("a.b[1m]", "a.b[1m]")
    assert not matches_name("aXb", "a.b")
    assert not matches_name("opus", "opus-*")


@pytest.mark.parametrize(
    ("option", "model", "allowed"),
    [
        ("opus", "claude-opus-5-5", True),
        ("claude-opus-4-1", "claude-opus-5-5", True),  # the CLI asks for a newer one
        ("opus", "claude-haiku-5-5", True),
        ("opus", "claude-sonnet-5-5", False),
        ("sonnet[1m]", "claude-sonnet-5-5", True),
        ("haiku", "claude-opus-5-5", False),
        ("my-gateway-model", "my-gateway-model", True),
        ("my-gateway-model", "claude-opus-5-5", False),
        ("", "claude-opus-5-5", True),
        ("opusplan", "claude-sonnet-5-5", True),
        ("sonnet", "gpt-5", False),
    ],
)
def test_the_cli_may_ask_for_its_own_family_and_for_the_small_model(option: str, model: str, allowed: bool) -> None:
    names = allowed_models(option, Settings())
    assert (not names or any(matches_name(model, name) for name in names)) is allowed


def test_a_block_names_further_models() -> None:
    names = allowed_models("sonnet", Settings(proxy_models=("claude-opus-*",)))
    assert any(matches_name("claude-opus-5-5", name) for name in names)
    assert allowed_models("", Settings(proxy_models=("x",))) == ("*haiku*", "x")


def test_claude_costs_what_anthropic_asks_unless_its_block_says_otherwise() -> None:
    def cost(model: str, **own: Any) -> float:
        return float(compute_usage({}, {model: USED}, model_prices(own))["cost_usd"])

    assert cost("claude-opus-5-5") == pytest.approx(4.0 + 2.0)
    assert cost("eu.anthropic.claude-haiku-4-5-20251001-v1:0") == pytest.approx(1.0 + 0.5)
    assert cost("claude-next-9") == pytest.approx(15.0 + 7.5), "an unknown one: the dearest"
    assert cost("claude-opus-5-5", input=5.0, output=10.0) == pytest.approx(5.0 + 1.0)
    assert cost("claude-opus-4-1", input=5.0, output=10.0) == pytest.approx(15.0 + 7.5), "a dearer one is not hidden"
    assert cost("claude-opus-4-1", input=5.0, **{"claude-opus-4-1": {"input": 2.0}}) == pytest.approx(2.0)
