"""The settings file: read beside the environment, a block per model, problems with file, line and key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.contract.errors import SettingsError
from api_client.contract.settings import CONSTANTS, Settings, declared, load, name_of
from api_client.contract.values.redaction import redactor
from worker.cli.config import describe
from worker.runners.http.runner import priced

TWO_MODELS = """
locale = "en"
max_attempts = 2
api_keys_file = "keys/relay"

[model.consultant]
runner = "claude_cli"
model = "opus"
key_file = "keys/anthropic"
vision = true
stream = "draft"
claude_allowed_tools = ["WebSearch", "Bash(git log:*)"]

[model.fast]
runner = "openai_http"
model = "qwen3"
url = "http://gpu.example:8000/v1"
key_file = "keys/gpu"
validators = ["step_marker"]
policy = { step_marker = ["repair", "fail"] }
prices = { input = 0.5, output = 1.5 }
max_attempts = 5
deadline_seconds = 600
limit_memory_mb = 1024
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    keys = tmp_path / ".helix" / "keys"
    keys.mkdir(parents=True)
    for name, text in (("relay", "sk-relay-one"), ("anthropic", "sk-ant-secret"), ("gpu", "gpu-secret-key\n")):
        (keys / name).write_text(text)
    write(tmp_path, TWO_MODELS)
    return tmp_path


def write(root: Path, text: str) -> None:
    (root / ".helix" / "helix.toml").write_text(text)


def here(root: Path, **more: str) -> dict[str, str]:
    return {"HELIX_ROOT": str(root), **more}


def problems_of(environ: dict[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(environ)
    return caught.value.problems


def test_each_model_has_its_runner_key_address_and_limits(root: Path) -> None:
    settings = load(here(root))
    assert settings.models == {"consultant": "claude_cli:opus", "fast": "openai_http:qwen3"}
    consultant, fast = settings.of_model("consultant"), settings.of_model("fast")
    assert (consultant.claude_api_key, consultant.max_attempts, consultant.prices) == ("sk-ant-secret", 2, {})
    assert consultant.claude_allowed_tools == ("WebSearch", "Bash(git log:*)")
    assert (fast.openai_url, fast.openai_api_key) == ("http://gpu.example:8000/v1", "gpu-secret-key")
    assert (fast.validators, fast.policy_orders) == (("step_marker",), {"step_marker": ("repair", "fail")})
    assert (fast.max_attempts, fast.deadline_seconds, fast.limit_memory_mb) == (5, 600.0, 1024)
    assert (settings.vision_models, settings.stream_modes) == (("consultant",), {"consultant": "draft"})
    assert settings.of_model("unheard of") == settings


def test_the_environment_wins_over_the_file_and_a_models_block_over_both(root: Path) -> None:
    settings = load(here(root, HELIX_LOCALE="de", HELIX_MAX_ATTEMPTS="7"))
    assert (settings.locale, settings.max_attempts) == ("de", 7)
    assert settings.of_model("fast").max_attempts == 5
    assert settings.api_keys == ("sk-relay-one",)


def test_the_settings_of_a_model_are_made_once_and_anew_for_changed_settings(root: Path) -> None:
    settings = load(here(root))
    assert settings.of_model("fast") is settings.of_model("fast")
    changed = replace(settings, idle_seconds=settings.idle_seconds + 1)
    assert changed.of_model("fast").idle_seconds == settings.of_model("fast").idle_seconds + 1


def test_helix_models_says_which_models_there_are_and_their_blocks_still_hold(root: Path) -> None:
    settings = load(here(root, HELIX_MODELS="fast=openai_http:qwen4"))
    assert settings.models == {"fast": "openai_http:qwen4"}
    assert settings.of_model("fast").openai_api_key == "gpu-secret-key"
    assert settings.vision_models == ()


def test_a_process_we_start_reads_the_same_settings(root: Path) -> None:
    for given in (here(root), here(root, HELIX_CONFIG=str(root / ".helix" / "helix.toml"))):
        settings = load(given)
        assert load(settings.environ()) == settings


def test_a_file_that_is_named_must_be_there_and_one_that_is_not_need_not(tmp_path: Path) -> None:
    assert load(here(tmp_path)).model_settings == {}
    missing = str(tmp_path / "none.toml")
    assert problems_of(here(tmp_path, HELIX_CONFIG=missing)) == [f"HELIX_CONFIG={missing}: no such file"]


def test_every_problem_is_told_at_once_with_file_line_and_key(root: Path) -> None:
    write(
        root,
        """locale = "fr"
lease_second = 3
api_keys = ["sk-in-the-open"]
root = "/tmp"
reap_seconds = 2

[model.a]
url = "http://x"

[model.b]
runner = "openai_http"
url = "x"
key_file = "none"
validator = ["step_marker"]
policy = { step_marker = ["pray"] }
prices = { inputs = 1 }
vision = "yes"
namespace = "x"

[model.c]
runner = "scripted"
url = "http://x"
""",
    )
    found = problems_of(here(root, HELIX_SHARDS="no"))
    for expected in (
        "HELIX_SHARDS='no': must be a whole number",
        ".helix/helix.toml:1: locale: must be one of de, en",
        ".helix/helix.toml:2: lease_second: no such setting; did you mean 'lease_seconds'?",
        ".helix/helix.toml:3: api_keys: a secret is in a separate file: api_keys_file = ...",
        ".helix/helix.toml:4: root: no such setting",
        ".helix/helix.toml:5: reap_seconds: no such setting",
        ".helix/helix.toml:7: model.a.runner: a block names its runner",
        ".helix/helix.toml:12: model.b.url: must look like https://host",
        ".helix/helix.toml:13: model.b.key_file: cannot be read (FileNotFoundError)",
        ".helix/helix.toml:14: model.b.validator: no such setting; did you mean 'validators'?",
        ".helix/helix.toml:15: model.b.policy: must name a policy file, or map validators to lists of",
        ".helix/helix.toml:16: model.b.prices: must look like",
        ".helix/helix.toml:17: model.b.vision: must be true or false",
        ".helix/helix.toml:18: model.b.namespace: no such setting",
        ".helix/helix.toml:22: model.c.url: scripted takes none",
    ):
        assert any(problem.startswith(expected) for problem in found), (expected, found)
    assert len(found) == 15
    assert "sk-in-the-open" not in str(found)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("namespace = 5", "namespace: must be a text"),
        ("web_host = [1]", "web_host: must be a text"),
        ("claude_path = true", "claude_path: must be a text"),
        ("validators = 1.5", 'validators: must be a list of texts: ["a", "b"]'),
        ("writable = true", "writable: must be a list of texts"),
        ("claude_tools = { Read = 1 }", "claude_tools: must be a list of texts"),
        ("box_hosts = [1]", "box_hosts: must be a list of texts"),
        ("max_attempts = [1]", "max_attempts: must be a whole number"),
        ("lease_seconds = [1]", "lease_seconds: must be a number"),
        ("budgets = 5", "budgets: must be a table"),
        (f'prompt_template = "{"y" * 3000}"', "prompt_template: [Errno 36] File name too long"),
        ('namespace = ["a"]', "namespace: must be a text"),
        ("max_attempts = true", "max_attempts: must be a whole number"),
        ('[owner.anna]\npolicy = { step_marker = ["fail"] }', "owner.anna.policy: must be a text"),
        ('[owner.anna]\npolicies = "a.yaml"', "owner.anna.policies: no such setting; did you mean 'policy'?"),
        ('[model.m]\nrunner = ""', "model.m.runner: a block names its runner"),
        ('[model.m]\nrunner = "scripted"\nmodel = 5', "model.m.runner: a block names its runner"),
        ('[model.m]\nrunner = "openai_http"\nurl = 5', "model.m.url: a text, for claude_cli and openai_http"),
        ('config = "other.toml"', "config: no such setting"),
        ('[flow.v2]\nmax_failure_rate = "0.2"', "flow.v2.max_failure_rate: must be a share of all turns"),
        ('[model.m]\nrunner = "scripted"\nstream = "loud"', "model.m.stream: must be one of"),
        ('[model.m]\nrunner = "scripted"\nprices = 5', "model.m.prices: must look like"),
        ('[model.m]\nrunner = "scripted"\npolicy = 5', "model.m.policy: must name a policy file"),
        ('[model.m]\nrunner = "scripted"\npolicy = { step_marker = [] }', "model.m.policy: must name a policy file"),
        ('[model.m]\nrunner = "scripted"\npolicy.step_marker.fail = 1', "model.m.policy: must name a policy file"),
        ('[model.m]\nrunner = "scripted"\nvalidators = true', "model.m.validators: must be a list of texts"),
        ('[model.m]\nrunner = "scripted"\nescalation_model = "n"', "[model.m] escalation_model='n': not a model"),
    ],
)
def test_a_value_of_another_type_is_refused_not_spelled(root: Path, line: str, said: str) -> None:
    write(root, line)
    (problem,) = problems_of(here(root))
    assert said in problem


def test_a_text_a_list_and_a_table_may_stand_where_several_do(root: Path) -> None:
    write(
        root,
        'validators = "step_marker"\nflow_version = { v2 = 9, v3 = 1 }\nescalation_human = false\nlease_seconds = 3\n',
    )
    found = load(here(root))
    assert (found.validators, found.flow_version) == (("step_marker",), {"v2": 9, "v3": 1})
    assert (found.escalation_human, found.lease_seconds) == ("no", 3.0)


@pytest.mark.parametrize("text", ["locale = ", "[model", "model = 3", 'model = "a"', "model.a = 1", "a.b = 1", "\x00"])
def test_a_file_that_is_no_settings_file_is_a_line_not_a_crash(root: Path, text: str) -> None:
    write(root, text)
    (problem,) = problems_of(here(root))
    assert problem.startswith(".helix/helix.toml")


def test_where_a_value_comes_from_is_shown_with_its_line_and_no_secret_is(root: Path) -> None:
    environ = here(root, HELIX_NAMESPACE="mine")
    rows = {row["name"]: (row["value"], row["origin"]) for row in describe(load(environ), environ)}
    assert rows["HELIX_NAMESPACE"] == ("mine", "environment")
    assert rows["HELIX_LOCALE"] == ("en", ".helix/helix.toml:2")
    assert rows["HELIX_API_KEYS"] == ("***", ".helix/helix.toml:4")
    assert rows["HELIX_MODELS"][1] == ".helix/helix.toml:6"
    assert rows["fast: openai_api_key"] == ("***", ".helix/helix.toml:18")
    assert rows["fast: max_attempts"] == ("5", ".helix/helix.toml:22")
    assert "secret" not in json.dumps(rows)


def test_the_keys_of_models_are_masked_wherever_they_turn_up(root: Path) -> None:
    redact = redactor(load(here(root)))
    assert redact("it said sk-ant-secret and gpu-secret-key") == "it said *** and ***"


@pytest.mark.parametrize("name", [each.name for each in declared(Settings, "constant") if each.name != "failpoint"])
def test_a_constant_is_no_setting_and_the_message_says_so(name: str) -> None:
    (problem,) = problems_of({name_of(name): "1"})
    assert "a constant" in problem
    assert "no setting; leave it out" in problem


def test_constants_of_a_test_reach_the_processes_it_starts(tmp_path: Path) -> None:
    settings = load({"HELIX_ROOT": str(tmp_path), CONSTANTS: '{"reap_seconds": "0.2"}'})
    assert settings.reap_seconds == 0.2
    assert load(settings.environ()) == settings
    assert len(problems_of({CONSTANTS: '{"reap_second": "1"}'})) == 1
    assert len(problems_of({CONSTANTS: "[]"})) == 1


def test_prices_make_a_cost_where_the_service_names_none() -> None:
    prices = {"input": 0.5, "output": 1.5}
    assert priced({"input_tokens": 2_000_000, "output_tokens": 1_000_000}, prices)["cost_usd"] == 2.5
    assert priced({"input_tokens": 1, "cost_usd": 9.0}, prices)["cost_usd"] == 9.0
    assert priced({}, prices) == {}
    assert priced({"input_tokens": 1}, {}) == {"input_tokens": 1}


def test_the_example_of_the_documentation_is_a_settings_file(root: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    example = text.partition("```toml\n")[2].partition("```")[0].replace("/run/secrets/api_keys", "keys/relay")
    for template in ("consultant.md.j2", "v3.md.j2"):
        (root / ".helix" / template).write_text("# {{ session_id }}")
    write(root, example)
    settings = load(here(root) | {"HELIX_FLOW_VERSION": "v2,v3"})
    assert list(settings.models) == ["consultant", "fast"]
    assert settings.policy_of("fast", flow="v3") == str(root / ".helix" / "v3.yaml")
    assert settings.policy_of("fast", "anna", "v3") == str(root / ".helix" / "anna.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('namespace = ""', "namespace: must not be empty; without this line it is helix"),
        ('[model.a]\nrunner = "scripted"\nclaude_path = ""', "model.a.claude_path: must not be empty"),
        ('namespace = "a b"', "namespace: must be a word without spaces"),
        ('namespace = "a{1}"', "namespace: must be a word without spaces and without any of {}"),
        ('namespace = "a\\u0000b"', "namespace: must hold no NUL character"),
        ('policy = "a\\u0000b"', "policy: must hold no NUL character"),
        ('validators = ["a\\u0000b"]', "validators: must hold no NUL character"),
        ('[model."a\\u0000b"]\nrunner = "scripted"', "model: must hold no NUL character"),
        ('"a\\u0000b" = 1', "a key: must hold no NUL character"),
    ],
)
def test_texts_that_no_key_path_or_address_can_be_are_refused(root: Path, text: str, problem: str) -> None:
    write(root, text)
    [found] = problems_of(here(root))
    assert problem in found


def test_a_text_that_is_empty_by_default_may_be_empty(root: Path) -> None:
    write(root, 'verifier_model = ""')
    assert load(here(root)).verifier_model == ""
