"""Settings: read once, with every problem at once; shown with their origin; documented from the same table."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import pytest
from redis.crc import key_slot

from api_client.contract.errors import SettingsError
from api_client.contract.settings import (
    CONSTANTS,
    Settings,
    declared_fields,
    environment_name,
    load_settings,
    mask_password,
    require_store,
    shared_environment,
)
from api_client.contract.settings.cluster import ClusterAddress
from api_client.contract.settings.redaction import make_redactor
from api_client.store.cluster import find_slot
from tests.lab.references import render_setting_reference
from worker.cli.setting_descriptions import describe_settings
from worker.runners.pricing import compute_usage

ROOT = Path(__file__).parents[2]


def problems_of(environ: Mapping[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ)
    return caught.value.problems


def test_the_documented_settings_are_those_of_the_program() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == render_setting_reference(), (
        "make it: python -m tests.lab.references"
    )


def test_every_problem_is_told_at_once() -> None:
    found = problems_of(
        {"HELIX_MAX_ATTEMPTS": "no", "HELIX_LOCALE": "fr", "HELIX_ROOT": "/no/such", "HELIX_LEASE": "1"}
    )
    assert len(found) == 4


def test_an_unknown_name_is_refused_with_the_likely_one() -> None:
    assert problems_of({"HELIX_LEASE_SECOND": "3"}) == [
        "HELIX_LEASE_SECOND: no such setting; did you mean 'HELIX_LEASE_SECONDS'?"
    ]


def test_what_the_examples_read_may_be_exported_beside_the_settings() -> None:
    assert load_settings({"HELIX_URL": "http://127.0.0.1:8765", "HELIX_KEY": "k"}) == load_settings({})


def test_a_key_for_the_real_agent_makes_it_the_first_model_unless_models_are_named() -> None:
    key = {"HELIX_CLAUDE_API_KEY": "sk"}
    assert load_settings(key).models == {"helix-consultant": "claude_cli", "scripted": "scripted"}
    assert load_settings(key | {"HELIX_MODELS": "m=scripted"}).models == {"m": "scripted"}
    assert load_settings({}).models == {"scripted": "scripted"}


@pytest.mark.parametrize("value", ["/etc", "../x", "adr/../..", "."])
def test_a_writable_folder_lies_in_the_project(value: str) -> None:
    assert load_settings({"HELIX_WRITABLE": "adr, docs/decisions"}).writable == ("adr", "docs/decisions")
    (problem,) = problems_of({"HELIX_WRITABLE": value})
    assert "folders below HELIX_ROOT" in problem


@pytest.mark.parametrize("name", ["HELIX_STORE_URL", "REDIS_URL"])
def test_an_agent_is_given_no_setting_of_ours(name: str) -> None:
    (problem,) = problems_of({"HELIX_CLAUDE_ENV": f"HTTPS_PROXY,{name}"})
    assert "must not name our settings" in problem


def test_the_feature_flag_of_adr_034_may_stay_set_but_not_off() -> None:
    load_settings({"HELIX_USE_LLM_FLOW": "true"})
    (problem,) = problems_of({"HELIX_USE_LLM_FLOW": "false"})
    assert "HELIX_FLOW_VERSION compares flows" in problem


def test_names_of_the_agents_own_environment_are_let_through() -> None:
    assert load_settings({"HELIX_AGENT_READY_FILE": "/tmp/x"}) == load_settings({})


@pytest.mark.parametrize("value", ["abc", "-1", "1e9", "٣", "nan", "inf", " ", "0x10"])
def test_a_number_out_of_range_is_refused_with_its_name_and_range(value: str) -> None:
    (problem,) = problems_of({"HELIX_LEASE_SECONDS": value})
    assert problem.startswith("HELIX_LEASE_SECONDS=")
    if value.strip() and value not in {"abc", "0x10"}:  # float() itself refuses these, in its own words
        assert "from 0.5 to 600" in problem


@pytest.mark.parametrize("value", ["2.5", "٣", "+1", "21", "1e2"])
def test_a_whole_number_is_plain_digits_in_range(value: str) -> None:
    assert problems_of({"HELIX_MAX_ATTEMPTS": value}) == [
        f"HELIX_MAX_ATTEMPTS={value!r}: must be a whole number from 1 to 20"
    ]


@pytest.mark.parametrize(
    "url", ["http://host:1", "redis://", "host:6379", "redis://host:99999", "unix://", "redis://:secret@:6379/0"]
)
def test_an_address_that_cannot_work_is_refused_and_never_shown(url: str) -> None:
    (problem,) = problems_of({"REDIS_URL": url})
    assert problem.startswith("REDIS_URL=***: ")
    assert "secret" not in problem


def test_an_empty_value_means_the_default() -> None:
    assert load_settings({"HELIX_LOCALE": "", "REDIS_URL": ""}).locale == "en"


def test_a_relative_path_means_the_folder_it_was_said_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {"POLICY": "a.yaml", "PROMPT_TEMPLATE": "b/c.md", "KEYS_FILE": "keys.json", "CLAUDE_PATH": "bin/claude"}
    said = load_settings({f"HELIX_{name}": path for name, path in paths.items()})
    found = [said.policy, said.prompt_template, said.keys_file, said.claude_path]
    assert found == [str(tmp_path / path) for path in paths.values()]
    assert load_settings({"HELIX_PROMPT_TEMPLATE": "none", "HELIX_CLAUDE_PATH": "claude"}).claude_path == "claude"


def test_redis_url_sets_broker_and_store_and_their_own_names_win() -> None:
    found = load_settings({"REDIS_URL": "redis://localhost:1/0", "HELIX_BROKER_URL": "redis://127.0.0.1:2/0"})
    assert (found.broker_url, found.store_url) == ("redis://127.0.0.1:2/0", "redis://localhost:1/0")


def test_a_running_installation_is_found_by_its_root(tmp_path: Path) -> None:
    (tmp_path / ".helix").mkdir()
    (tmp_path / ".helix" / "run.json").write_text(json.dumps({"redis_url": "unix:///run/v.sock"}))
    found = load_settings({"HELIX_ROOT": str(tmp_path)})
    assert (found.redis_url, found.celery_url) == ("unix:///run/v.sock", "redis+socket:///run/v.sock")
    named = load_settings({"HELIX_ROOT": str(tmp_path), "REDIS_URL": "redis://localhost:1/0"})
    assert named.store_url == "redis://localhost:1/0"


def test_who_finds_a_running_installation_by_its_root_has_its_models(tmp_path: Path) -> None:
    (tmp_path / ".helix").mkdir()
    told = {"redis_url": "unix:///run/v.sock", "models": "mine=scripted:mine.yaml"}
    (tmp_path / ".helix" / "run.json").write_text(json.dumps(told))
    here = {"HELIX_ROOT": str(tmp_path)}
    assert load_settings(here).models == {"mine": "scripted:mine.yaml"}
    assert load_settings(here | {"HELIX_CLAUDE_API_KEY": "sk"}).models == {"mine": "scripted:mine.yaml"}
    assert load_settings(here | {"HELIX_MODELS": "other=scripted"}).models == {"other": "scripted"}
    assert load_settings(here | {"REDIS_URL": "redis://localhost:1/0"}).models == {"scripted": "scripted"}


def test_who_finds_a_running_installation_has_what_its_environment_sets_but_for_secrets(tmp_path: Path) -> None:
    (tmp_path / ".helix").mkdir()
    up = {
        "HELIX_ROOT": str(tmp_path),
        "HELIX_POLICY": "p.yaml",
        "HELIX_NAMESPACE": "mine",
        "HELIX_LOCALE": "en",
        "HELIX_API_KEYS": "secret",
    }
    told = {
        "redis_url": "unix:///run/v.sock",
        "settings": shared_environment(load_settings(up), up) | {"HELIX_OF_A_LATER_RELEASE": "1"},
    }
    assert "secret" not in json.dumps(told)
    (tmp_path / ".helix" / "run.json").write_text(json.dumps(told))
    here = {"HELIX_ROOT": str(tmp_path)}
    found = load_settings(here)
    assert (found.policy, found.namespace, found.locale) == (str(Path("p.yaml").absolute()), "mine", "en")
    assert load_settings(here | {"HELIX_LOCALE": "de"}).locale == "de"
    assert load_settings(here | {"REDIS_URL": "redis://localhost:1/0"}).namespace == "helix", "another installation"
    assert {row["name"]: row["origin"] for row in describe_settings(found, here)}["HELIX_POLICY"] == ".helix/run.json"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "null", '{"redis_url": 5, "models": 5, "settings": 5}', '{"settings": {"a": 1}}']
)
def test_a_broken_run_file_is_no_broker(tmp_path: Path, content: str) -> None:
    (tmp_path / ".helix").mkdir()
    (tmp_path / ".helix" / "run.json").write_text(content)
    with pytest.raises(SettingsError, match="no broker: set REDIS_URL"):
        require_store(load_settings({"HELIX_ROOT": str(tmp_path)}))


def test_settings_survive_the_way_through_an_environment(tmp_path: Path) -> None:
    settings = replace(
        load_settings({"HELIX_ROOT": str(tmp_path)}),
        broker_url="unix:///a.sock",
        store_url="unix:///b.sock",
        models={"a": "scripted", "b": "scripted:script.yaml"},
        validators=("step_marker",),
        api_keys=("one", "two"),
        lease_seconds=1.5,
        max_body_bytes=4096,
    )
    assert load_settings(settings.to_environment()) == settings


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:6379/0", "redis://user:***@host:6379/0"),
        ("redis://:secret@host/0", "redis://:***@host/0"),
        ("redis://host:1/0", "redis://host:1/0"),
        ("unix:///path", "unix:///path"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert mask_password(url) == shown


def test_each_value_is_shown_with_its_origin_and_secrets_are_not_shown() -> None:
    environ = {"REDIS_URL": "redis://:secret@a:1/0", "HELIX_API_KEYS": "sk-one,sk-two", "HELIX_LOCALE": "en"}
    shown = {row["name"]: (row["value"], row["origin"]) for row in describe_settings(load_settings(environ), environ)}
    assert shown["HELIX_STORE_URL"] == ("redis://:***@a:1/0", "REDIS_URL")
    assert shown["HELIX_API_KEYS"] == ("***", "environment")
    assert shown["HELIX_LOCALE"] == ("en", "environment")
    assert shown["HELIX_RUN_SLOTS"] == ("16", "default")
    assert len(shown) == len(declared_fields(Settings, "setting")) <= 68


def test_a_command_that_may_hold_a_token_is_shown_and_quoted_nowhere() -> None:
    environ = {"HELIX_NOTIFICATION_COMMAND": "curl -H 'X-Token: topsecret' https://a.example"}
    settings = load_settings(environ)
    shown = {row["name"]: row["value"] for row in describe_settings(settings, environ)}
    assert shown["HELIX_NOTIFICATION_COMMAND"] == "***"
    assert "topsecret" not in make_redactor(settings)(f"ran {settings.notification_command}: failed")


@pytest.mark.parametrize("given", ["proxy.example", "10.0.0.0/33", "10.0.0.1/8", "*"])
def test_trusted_proxies_are_addresses_and_networks(given: str) -> None:
    assert load_settings({"HELIX_TRUSTED_PROXIES": "127.0.0.1, 10.0.0.0/8"}).trusted_proxies == (
        "127.0.0.1",
        "10.0.0.0/8",
    )
    with pytest.raises(SettingsError, match="HELIX_TRUSTED_PROXIES"):
        load_settings({"HELIX_TRUSTED_PROXIES": given})


def test_the_origin_of_a_running_installations_broker_is_its_run_file(tmp_path: Path) -> None:
    (tmp_path / ".helix").mkdir()
    (tmp_path / ".helix" / "run.json").write_text('{"redis_url": "unix:///run/v.sock"}')
    environ = {"HELIX_ROOT": str(tmp_path)}
    shown = {row["name"]: row["origin"] for row in describe_settings(load_settings(environ), environ)}
    assert shown["HELIX_BROKER_URL"] == ".helix/run.json"
    assert shown["HELIX_MODELS"] == ".helix/run.json"


def test_every_setting_says_what_it_means() -> None:
    for field in [*declared_fields(Settings, "setting"), *declared_fields(Settings, "constant")]:
        assert field.metadata["help"].endswith("."), environment_name(field.name)


def test_the_verifiers_model_must_be_one_of_the_models(tmp_path: Path) -> None:
    given = {"HELIX_ROOT": str(tmp_path), "HELIX_MODELS": "big=scripted,small=scripted"}
    assert load_settings({**given, "HELIX_VERIFIER_MODEL": "small"}).verifier_model == "small"
    with pytest.raises(
        SettingsError, match=r"HELIX_VERIFIER_MODEL='haiku': not a model of HELIX_MODELS \(big, small\)"
    ):
        load_settings({**given, "HELIX_VERIFIER_MODEL": "haiku", "HELIX_LEASE_SECONDS": "30"})
    with pytest.raises(SettingsError, match="HELIX_ESCALATION_MODEL='haiku': not a model of HELIX_MODELS"):
        load_settings({**given, "HELIX_ESCALATION_MODEL": "haiku"})
    assert len(problems_of({"HELIX_VERIFIER_MODEL": "haiku"})) == 1
    assert len(problems_of({"HELIX_VERIFIER_MODEL": "haiku", "HELIX_MODELS": "haiku"})) == 1, "one mistake, told once"


@pytest.mark.parametrize("url", ["redis://db:6379/0", "rediss://10.0.0.1/0", "sentinel://a:1,localhost:2/m/0"])
def test_a_broker_on_another_machine_without_a_password_is_refused_and_the_way_out_is_told(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"REDIS_URL": url})
    assert len(caught.value.problems) == 2
    assert "HELIX_OPEN_BROKER=allowed" in caught.value.problems[0]
    assert load_settings({"REDIS_URL": url, "HELIX_OPEN_BROKER": "allowed"}).store_url == url


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:password@db:6379/0",
        "redis://localhost/0",
        "redis://[::1]:1/0",
        "unix:///run/x.sock",
        "sentinel://:pw@a:1/m/0",
        "sentinel://localhost:1/m/0",
    ],
)
def test_a_broker_with_a_password_or_on_this_machine_is_taken(url: str) -> None:
    assert load_settings({"REDIS_URL": url}).store_url == url


CLUSTER = {"HELIX_STORE_URL": "redis+cluster://user:pass%40word@a:7000,[::1]:7001,c?ssl_cert_reqs=none"}


def test_a_cluster_is_a_store_beside_a_plain_broker() -> None:
    found = load_settings({**CLUSTER, "HELIX_BROKER_URL": "redis://localhost:1/0"})
    assert (found.store_is_cluster, found.has_queues) == (True, False)
    named = ClusterAddress.parse(found.store_url)
    assert named
    assert named.nodes == (("a", 7000), ("::1", 7001), ("c", 6379))
    assert named.url == "redis://user:pass%40word@a:7000?ssl_cert_reqs=none"
    assert mask_password(found.store_url) == "redis+cluster://user:***@a:7000,[::1]:7001,c?ssl_cert_reqs=none"
    assert "pass@word" not in make_redactor(found)("the password is pass@word")
    assert load_settings({"HELIX_STORE_URL": "rediss+cluster://localhost", "HELIX_BROKER_URL": "redis://localhost"})


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"REDIS_URL": "redis+cluster://localhost:1"}, "HELIX_BROKER_URL: a cluster cannot be Celery's broker"),
        (CLUSTER, "HELIX_BROKER_URL: a cluster cannot be Celery's broker"),
        ({"HELIX_STORE_URL": "redis+cluster://localhost/1"}, "must look like redis"),
        ({"HELIX_STORE_URL": "redis+cluster://a,"}, "must look like redis"),
        ({"HELIX_STORE_URL": "redis+cluster://a:1", "HELIX_BROKER_URL": "redis://localhost"}, "needs a password"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused(environ: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load_settings(environ)


def test_a_namespace_names_its_slot_in_a_cluster() -> None:
    assert find_slot("team-a") == int(key_slot(b"team-a"))
    for wrong in ("{team", "team}", "{a}b", "{}", "{team-a}", "a b", "a*"):
        with pytest.raises(SettingsError, match="HELIX_NAMESPACE"):
            load_settings({"HELIX_NAMESPACE": wrong})


def test_no_settings_name_is_also_the_file_of_a_secret() -> None:
    names = {environment_name(f.name) for f in fields(Settings)}
    assert not names & {f"{environment_name(f.name)}_FILE" for f in fields(Settings) if f.metadata["secret"]}


@pytest.mark.parametrize("value", ["sk-one\nsk-two", '{"version": 1, "keys": []}', "sk one"])
def test_what_is_no_list_of_keys_opens_the_relay_to_nobody(value: str) -> None:
    with pytest.raises(SettingsError, match="HELIX_KEYS_FILE") as caught:
        load_settings({"HELIX_API_KEYS": value})
    assert value not in str(caught.value)


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-one,sk-two\n")
    environ = {"HELIX_API_KEYS_FILE": str(file)}
    assert load_settings(environ).api_keys == ("sk-one", "sk-two")
    assert {row["name"]: row["origin"] for row in describe_settings(load_settings(environ), environ)}[
        "HELIX_API_KEYS"
    ] == "file"
    for wrong, says in [
        ({"HELIX_API_KEYS_FILE": str(tmp_path / "none")}, "cannot be read"),
        ({"HELIX_API_KEYS_FILE": str(file), "HELIX_API_KEYS": "x"}, "set one of them"),
        ({"HELIX_LOCALE_FILE": str(file)}, "no such setting"),
    ]:
        with pytest.raises(SettingsError, match=says):
            load_settings(wrong)


# The settings file: read beside the environment, a block per model, problems with file, line and key.

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


def test_each_model_has_its_runner_key_address_and_limits(root: Path) -> None:
    settings = load_settings(here(root))
    assert settings.models == {"consultant": "claude_cli:opus", "fast": "openai_http:qwen3"}
    consultant, fast = settings.for_model("consultant"), settings.for_model("fast")
    assert (consultant.claude_api_key, consultant.max_attempts, consultant.prices) == ("sk-ant-secret", 2, {})
    assert consultant.claude_allowed_tools == ("WebSearch", "Bash(git log:*)")
    assert (fast.openai_url, fast.openai_api_key) == ("http://gpu.example:8000/v1", "gpu-secret-key")
    assert (fast.validators, fast.policy_orders) == (("step_marker",), {"step_marker": ("repair", "fail")})
    assert (fast.max_attempts, fast.deadline_seconds, fast.limit_memory_mb) == (5, 600.0, 1024)
    assert [(each.vision, each.stream) for each in (consultant, fast)] == [(True, "draft"), (False, "")]
    assert settings.for_model("unheard of") == settings


def test_the_environment_wins_over_the_file_and_a_models_block_over_both(root: Path) -> None:
    settings = load_settings(here(root, HELIX_LOCALE="de", HELIX_MAX_ATTEMPTS="7"))
    assert (settings.locale, settings.max_attempts) == ("de", 7)
    assert settings.for_model("fast").max_attempts == 5
    assert settings.api_keys == ("sk-relay-one",)


def test_the_settings_of_a_model_are_made_once_and_anew_for_changed_settings(root: Path) -> None:
    settings = load_settings(here(root))
    assert settings.for_model("fast") is settings.for_model("fast")
    changed = replace(settings, idle_seconds=settings.idle_seconds + 1)
    assert changed.for_model("fast").idle_seconds == settings.for_model("fast").idle_seconds + 1


def test_helix_models_says_which_models_there_are_and_their_blocks_still_hold(root: Path) -> None:
    settings = load_settings(here(root, HELIX_MODELS="fast=openai_http:qwen4"))
    assert settings.models == {"fast": "openai_http:qwen4"}
    assert settings.for_model("fast").openai_api_key == "gpu-secret-key"


def test_a_process_we_start_reads_the_same_settings(root: Path) -> None:
    for given in (here(root), here(root, HELIX_CONFIG=str(root / ".helix" / "helix.toml"))):
        settings = load_settings(given)
        assert load_settings(settings.to_environment()) == settings


def test_a_file_that_is_named_must_be_there_and_one_that_is_not_need_not(tmp_path: Path) -> None:
    assert load_settings(here(tmp_path)).model_settings == {}
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
    found = problems_of(here(root, HELIX_MAX_ATTEMPTS="no"))
    for expected in (
        "HELIX_MAX_ATTEMPTS='no': must be a whole number",
        ".helix/helix.toml:1:10: locale: must be one of de, en",
        ".helix/helix.toml:2:1: lease_second: no such setting; did you mean 'lease_seconds'?",
        ".helix/helix.toml:3:12: api_keys: a secret is in a separate file: api_keys_file = ...",
        ".helix/helix.toml:4:1: root: no such setting",
        ".helix/helix.toml:5:1: reap_seconds: no such setting",
        ".helix/helix.toml:7:1: model.a.runner: a block names its runner",
        ".helix/helix.toml:12:7: model.b.url: must look like https://host",
        ".helix/helix.toml:13:12: model.b.key_file: cannot be read (FileNotFoundError)",
        ".helix/helix.toml:14:1: model.b.validator: no such setting; did you mean 'validators'?",
        ".helix/helix.toml:15:10: model.b.policy: must name a policy file, or map validators to lists of",
        ".helix/helix.toml:16:10: model.b.prices: must look like",
        ".helix/helix.toml:17:10: model.b.vision: must be true or false",
        ".helix/helix.toml:18:1: model.b.namespace: no such setting",
        ".helix/helix.toml:22:7: model.c.url: scripted takes none",
    ):
        assert any(problem.startswith(expected) for problem in found), (expected, found)
    assert len(found) == 15
    assert "sk-in-the-open" not in str(found)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("namespace = 5", "namespace: must be a text"),
        ("notification_command = [1]", "notification_command: must be a text"),
        ("claude_path = true", "claude_path: must be a text"),
        ("validators = 1.5", 'validators: must be a list of texts: ["a", "b"]'),
        ("writable = true", "writable: must be a list of texts"),
        ("claude_tools = { Read = 1 }", "claude_tools: must be a list of texts"),
        ("sandbox_hosts = [1]", "sandbox_hosts: must be a list of texts"),
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
        ('[model.m]\nrunner = "openai_http"\nurl = 5', "model.m.url: must be a text"),
        ('config = "other.toml"', "config: no such setting"),
        ('[flow.v2]\nmax_failure_rate = "0.2"', "flow.v2.max_failure_rate: must be a share of all turns"),
        ('[model.m]\nrunner = "scripted"\nstream = "loud"', "model.m.stream: must be one of"),
        ('[model.m]\nrunner = "scripted"\nprices = 5', "model.m.prices: must look like"),
        ('[model.m]\nrunner = "openai_http"\napi = "messages"', "model.m.api: must be one of"),
        ('[model.m]\nrunner = "openai_http"\nparameters = 5', "model.m.parameters: must look like"),
        ('[model.m]\nrunner = "openai_http"\nparameters = { stream = 1 }', "model.m.parameters: stream: set by the"),
        ('[model.m]\nrunner = "openai_http"\nparameters = { x = 1979-05-27 }', "model.m.parameters: must hold texts"),
        ('[model.m]\nrunner = "openai_http"\ntimeouts = { last = 1 }', "model.m.timeouts: must look like"),
        ('[model.m]\nrunner = "openai_http"\ntimeouts = { next = 0 }', "model.m.timeouts: must be a number from 1 to"),
        ('[model.m]\nrunner = "codex"\ntimeouts = { next = 5 }', "model.m.timeouts: no such setting"),
        ('[model.m]\nrunner = "codex"\nparameters = { x = 1 }', "model.m.parameters: no such setting"),
        ('[model.m]\nrunner = "codex"\nfallbacks = 1', "model.m.fallbacks: must look like"),
        ('[model.m]\nrunner = "codex"\nfallbacks = { limits = ["m"] }', "names no error; did you mean 'limit'?"),
        ('[model.m]\nrunner = "codex"\nfallbacks = { auth = "m" }', "auth must name models in their order"),
        ('[model.mine]\nrunner = "codex"\nfallbacks = { auth = ["mein"] }', "fallbacks.auth='mein': not a model"),
        ('[model.mine]\nrunner = "codex"\nfallbacks = { auth = ["mein"] }', "did you mean 'mine'?"),
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
    found = load_settings(here(root))
    assert (found.validators, found.flow_version) == (("step_marker",), {"v2": 9, "v3": 1})
    assert (found.escalation_human, found.lease_seconds) == ("no", 3.0)


@pytest.mark.parametrize("text", ["locale = ", "[model", "model = 3", 'model = "a"', "model.a = 1", "a.b = 1", "\x00"])
def test_a_file_that_is_no_settings_file_is_a_line_not_a_crash(root: Path, text: str) -> None:
    write(root, text)
    (problem,) = problems_of(here(root))
    assert problem.startswith(".helix/helix.toml")


def test_files_of_windows_editors_are_read_without_their_byte_order_mark(root: Path, tmp_path: Path) -> None:
    keys = root / ".helix" / "keys"
    for file in (keys / "gpu", keys / "relay"):
        file.write_text(file.read_text(), encoding="utf-8-sig")
    settings = root / ".helix" / "helix.toml"
    settings.write_bytes(settings.read_text().replace("\n", "\r\n").encode("utf-8-sig"))
    found = load_settings(here(root))
    assert (found.locale, found.for_model("fast").openai_api_key) == ("en", "gpu-secret-key")
    assert load_settings({"HELIX_API_KEYS_FILE": str(keys / "relay")}).api_keys == ("sk-relay-one",)


def test_a_folder_in_the_place_of_the_settings_file_is_named_in_words(tmp_path: Path) -> None:
    assert problems_of(here(tmp_path, HELIX_CONFIG=str(tmp_path))) == [f"{tmp_path}: Is a directory"]


def test_where_a_value_comes_from_is_shown_with_its_line_and_no_secret_is(root: Path) -> None:
    environ = here(root, HELIX_NAMESPACE="mine")
    rows = {row["name"]: (row["value"], row["origin"]) for row in describe_settings(load_settings(environ), environ)}
    assert rows["HELIX_NAMESPACE"] == ("mine", "environment")
    assert rows["HELIX_LOCALE"] == ("en", ".helix/helix.toml:2")
    assert rows["HELIX_API_KEYS"] == ("***", ".helix/helix.toml:4")
    assert rows["HELIX_MODELS"][1] == ".helix/helix.toml:6"
    assert rows["fast: openai_api_key"] == ("***", ".helix/helix.toml:18")
    assert rows["fast: max_attempts"] == ("5", ".helix/helix.toml:22")
    assert "secret" not in json.dumps(rows)


def test_the_keys_of_models_are_masked_wherever_they_turn_up(root: Path) -> None:
    redact = make_redactor(load_settings(here(root)))
    assert redact("it said sk-ant-secret and gpu-secret-key") == "it said *** and ***"


@pytest.mark.parametrize(
    "name", [each.name for each in declared_fields(Settings, "constant") if each.name != "failpoint"]
)
def test_a_constant_is_no_setting_and_the_message_says_so(name: str) -> None:
    (problem,) = problems_of({environment_name(name): "1"})
    assert "a constant" in problem
    assert "no setting; leave it out" in problem


def test_constants_of_a_test_reach_the_processes_it_starts(tmp_path: Path) -> None:
    settings = load_settings({"HELIX_ROOT": str(tmp_path), CONSTANTS: '{"reap_seconds": "0.2"}'})
    assert settings.reap_seconds == 0.2
    assert load_settings(settings.to_environment()) == settings
    assert len(problems_of({CONSTANTS: '{"reap_second": "1"}'})) == 1
    assert len(problems_of({CONSTANTS: "[]"})) == 1


def test_prices_make_a_cost_where_the_service_names_none() -> None:
    prices = {"input": 0.5, "output": 1.5}
    assert compute_usage({"input_tokens": 2_000_000, "output_tokens": 1_000_000}, {}, prices)["cost_usd"] == 2.5
    assert compute_usage({"input_tokens": 1, "cost_usd": 9.0}, {}, prices)["cost_usd"] == 9.0
    assert compute_usage({}, {}, prices) == {}
    assert compute_usage({"input_tokens": 1}, {}, {}) == {"input_tokens": 1}
