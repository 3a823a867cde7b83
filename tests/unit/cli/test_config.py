"""``turns config`` refuses each setting that ``turns doctor`` calls wrong, or with which nothing starts."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from api_client.api_keys import ApiKey, hash_key
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, declared_fields, environment_name
from worker.cli import USAGE, main
from worker.cli.checks.config import config
from worker.cli.checks.doctor import examine_installation

_SPEAKS_FOR_USERS = ApiKey(name="k", hash=hash_key("k"), owner="k", right="operator", forwards_users=True)


class Kind(NamedTuple):
    """A kind of unusable setting: a part of the words, lines of helix.toml, variables, other files in its folder."""

    says: str
    toml: str = ""
    environ: Sequence[tuple[str, str]] = ()
    files: Sequence[tuple[str, str]] = ()


KINDS = {
    "a key of the file that nobody knows": Kind("lease_second", "lease_second = 3"),
    "a runner that nobody offers": Kind("no runner 'scriptd'", '[model.a]\nrunner = "scriptd"'),
    "a script that is not there": Kind("no.yaml", '[model.b]\nrunner = "scripted:no.yaml"'),
    "a script that cannot be played": Kind(
        "s.yaml", '[model.c]\nrunner = "scripted:.helix/s.yaml"', files=[("s.yaml", "attempts: 5")]
    ),
    "a template that is not there": Kind(
        "prompt_template: no such file", '[model.d]\nrunner = "scripted"\nprompt_template = "/no/template.md"'
    ),
    "a service without a name of its model": Kind("model 'e'", '[model.e]\nrunner = "openai_http"'),
    "a program that is not there": Kind("/no/claude", '[model.f]\nrunner = "claude_cli"\nclaude_path = "/no/claude"'),
    "a rule that nobody offers": Kind("no_such_rule", environ=[("HELIX_VALIDATORS", "no_such_rule")]),
    "a policy that cannot be read": Kind(
        "policy.toml", environ=[("HELIX_POLICY", ".helix/policy.toml")], files=[("policy.toml", "rules = 5")]
    ),
    "a file of keys that is none": Kind("keys.json", files=[("keys.json", "{")]),
    "a key that contradicts itself": Kind(
        "speak for users",
        environ=[("HELIX_KEYS_FILE", ".helix/k.json")],
        files=[("k.json", json.dumps({"version": 1, "keys": [_SPEAKS_FOR_USERS.to_dict()]}))],
    ),
    "a budget of nobody": Kind("'model:nobody' matches nobody", environ=[("HELIX_BUDGETS", "model:nobody=1")]),
    "a number out of its range": Kind("HELIX_LEASE_SECONDS='0'", environ=[("HELIX_LEASE_SECONDS", "0")]),
    "a name that nobody knows": Kind("'HELIX_LEASE_SECONDS'?", environ=[("HELIX_LEASE_SECOND", "3")]),
}
UNREADABLE = {
    "a key of the file that nobody knows",
    "a template that is not there",
    "a number out of its range",
    "a name that nobody knows",
}
NAMES = [environment_name(each.name) for each in declared_fields(Settings, "setting")]
WORDS = [
    "x",
    "0",
    "-1",
    "1e999",
    "a=b",
    "a=b:c",
    "/no/such/file",
    "redis://",
    "http://",
    "ü",
    "none",
    "required",
    "off",
]


def read_problems(kinds: Sequence[Kind]) -> tuple[list[str], list[str]]:
    """What config refuses, and what doctor calls wrong apart from the store that is not there."""
    toml = "\n".join(sorted((kind.toml for kind in kinds), key=lambda text: text.startswith("[")))
    cleared = {name: None for name in os.environ if name.startswith("HELIX_") or name == "REDIS_URL"}
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        folder = Path(root) / ".helix"
        folder.mkdir()
        for name, text in [("helix.toml", toml), *(file for kind in kinds for file in kind.files)]:
            (folder / name).write_text(text)
        patch.chdir(root)
        env = cleared | {"HELIX_ROOT": root} | dict(pair for kind in kinds for pair in kind.environ)
        result = CliRunner().invoke(config, env=env)
        refused = result.exception.problems if isinstance(result.exception, SettingsError) else []
        assert refused or result.exit_code == 0, result.exception
        with CliRunner().isolation(env=env):
            found = list(examine_installation())
    return refused, [each.message for each in found if each.state == "wrong" and each.check != "store"]


@pytest.mark.parametrize("name", KINDS)
def test_a_setting_that_doctor_calls_wrong_is_refused_in_the_same_words(name: str) -> None:
    refused, wrong = read_problems([KINDS[name]])
    assert any(KINDS[name].says in line for line in refused), refused
    assert wrong
    assert [said for said in wrong if not any(said in line for line in refused)] == []


@settings(max_examples=20)
@given(st.lists(st.sampled_from([name for name in KINDS if "file of keys" not in name]), min_size=2, unique=True))
def test_all_unusable_settings_are_told_at_once(names: list[str]) -> None:
    """As long as some cannot be read, that is all of those: what the others say may follow from a default value."""
    refused, _ = read_problems([KINDS[name] for name in names])
    expected = UNREADABLE.intersection(names) or names
    assert [name for name in names if any(KINDS[name].says in line for line in refused)] == [
        name for name in names if name in expected
    ]


@settings(max_examples=40)
@given(st.sampled_from(NAMES), st.sampled_from(WORDS))
def test_whatever_a_variable_says_doctor_calls_nothing_wrong_that_config_takes(name: str, value: str) -> None:
    refused, wrong = read_problems([Kind("", environ=[(name, value)])])
    assert [said for said in wrong if not any(said in line for line in refused)] == []


def test_models_that_cannot_be_read_are_no_reason_for_other_words() -> None:
    refused, _ = read_problems([Kind("", "models = [", environ=[("HELIX_BUDGETS", "model:fast=1")])])
    assert len(refused) == 1


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("HELIX_CLAUDE_API_KEY_FILE", "/no/file", ("HELIX_BUDGETS", "model:consultant=5")),
        ("HELIX_CLAUDE_API_KEY_FILE", "/no/file", ("HELIX_VERIFIER_MODEL", "helix-consultant")),
        ("HELIX_MODLES", "fast=scripted", ("HELIX_BUDGETS", "model:fast=1")),
        ("HELIX_OIDC_RIGHTS", "nonsense", ("HELIX_OIDC_CLIENT_ID", "a")),
    ],
)
def test_a_default_value_in_place_of_one_that_cannot_be_read_is_no_reason_for_words(
    name: str, value: str, other: tuple[str, str]
) -> None:
    [line], _ = read_problems([Kind("", environ=[(name, value), other])])
    assert line.startswith(name)


def test_config_shows_the_settings_and_ends_with_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELIX_ROOT", str(tmp_path))
    monkeypatch.setenv("HELIX_MODELS", "chat=scriptd")
    with pytest.raises(SystemExit) as ended:
        main(["config"])
    shown = capsys.readouterr()
    assert ended.value.code == USAGE
    assert "HELIX_MODELS" in shown.out
    assert shown.err.startswith("turns: model 'chat': HELIX_MODELS: no runner 'scriptd'")
    assert shown.err.count("\n") == 1
