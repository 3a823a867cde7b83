"""Settings for Open WebUI: complete, of this installation, and readable by what reads them."""

import json
import shlex
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from api_client.contract.settings import Settings
from api_client.relay_state.openwebui_seen import SeenRequest
from api_client.web.bodies.chat_request import CHAT_ID_HEADERS
from api_client.web.identity.access import SIGNED_USER_HEADER, USER_HEADERS
from api_client.web.openwebui.background_tasks import TASK_HEADER
from worker.cli import cli
from worker.cli.installation.openwebui import TEMPLATES, build_environment, build_model_entry, draw_icon, print_settings
from worker.cli.installation.openwebui_check import report_request

GOOD = SeenRequest(task=True, chat=True, message=True, user=True, tools=0)


def run(tmp_path: Path, *arguments: str, **environ: str) -> Result:
    nothing = {"REDIS_URL": "", "HELIX_ROOT": str(tmp_path)}
    return CliRunner(env=nothing | environ).invoke(print_settings, list(arguments))


def test_the_environment_is_what_a_shell_reads(tmp_path: Path) -> None:
    text = run(tmp_path, "env", "--url", "http://127.0.0.1:9000", HELIX_API_KEYS="one,two").output
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    values = dict(shlex.split(line)[0].split("=", 1) for line in lines)
    assert values["OPENAI_API_BASE_URL"] == "http://127.0.0.1:9000/v1"
    assert values["OPENAI_API_KEY"] == "one"
    assert json.loads(values["OPENAI_API_CONFIGS"])["0"]["headers"] == TEMPLATES
    assert values["DEFAULT_MODELS"] == "scripted"


def test_the_address_is_that_of_the_installation_that_runs_here(tmp_path: Path) -> None:
    (tmp_path / ".helix").mkdir()
    told = {"redis_url": "unix:///run/v.sock", "web_url": "http://127.0.0.1:4711"}
    (tmp_path / ".helix" / "run.json").write_text(json.dumps(told))
    assert "OPENAI_API_BASE_URL=http://127.0.0.1:4711/v1" in run(tmp_path, "env").output
    elsewhere = run(tmp_path, "env", REDIS_URL="redis://localhost:1/0").output
    assert "OPENAI_API_BASE_URL=http://127.0.0.1:8765/v1" in elsewhere


def test_the_compose_file_goes_beside_ours() -> None:
    text = CliRunner(env={"REDIS_URL": ""}).invoke(print_settings, ["compose", "--key", "a$b"]).output
    override, base = yaml.safe_load(text), yaml.safe_load(Path("compose/compose.yaml").read_text())
    [(name, service)] = override["services"].items()
    assert base["services"][name]["image"] == service["image"]  # laid over it, it changes address and key only
    assert set(service["networks"]) <= set(base["networks"])
    assert set(service["depends_on"]) <= set(base["services"])
    assert service["environment"]["OPENAI_API_BASE_URL"] == "http://web:8765/v1"
    assert service["environment"]["OPENAI_API_KEY"] == "a$$b"
    assert service["ports"] == ["127.0.0.1:3000:8080"]


def test_the_compose_file_is_one_by_the_compose_specification(tmp_path: Path) -> None:
    """By its JSON schema, as check-jsonschema brings it; alone, and laid over ours as Compose does."""
    text = run(tmp_path, "compose", "--key", "a$b").output
    override, base = yaml.safe_load(text), yaml.safe_load(Path("compose/compose.yaml").read_text())
    both = base | {part: {**(base.get(part) or {}), **override[part]} for part in override}
    wrong = {**override, "services": {"open-webui": {**override["services"]["open-webui"], "network": "turns"}}}
    codes = {}
    for name, written in {"override": override, "both": both, "wrong": wrong}.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(text if name == "override" else yaml.safe_dump(written))
        check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
        codes[name] = subprocess.run(check, capture_output=True, check=False).returncode
    assert codes == {"override": 0, "both": 0, "wrong": 1}


def test_every_header_the_relay_reads_is_among_the_templates() -> None:
    sent = {name.lower() for name in TEMPLATES}
    assert {TASK_HEADER, CHAT_ID_HEADERS[0], USER_HEADERS[0], "x-owui-message-id", "x-owui-user-message-id"} <= sent
    assert SIGNED_USER_HEADER not in sent


def test_a_model_is_readable_by_all_and_wants_no_tools() -> None:
    entry = build_model_entry("helix-consultant", Settings())
    assert (entry["id"], entry["base_model_id"], entry["name"]) == ("helix-consultant", None, "Helix Consultant")
    assert entry["meta"]["capabilities"]["builtin_tools"] is False
    assert entry["access_grants"] == [{"principal_type": "user", "principal_id": "*", "permission": "read"}]
    assert (
        entry["meta"]["description"]
        != build_model_entry("helix-consultant", Settings(locale="de"))["meta"]["description"]
    )


def test_the_icon_is_a_png_of_the_models_own() -> None:
    made = draw_icon("a", 8)
    assert made[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", made[16:24]) == (8, 8)
    assert made != draw_icon("b", 8)


def test_a_signing_secret_goes_along(tmp_path: Path) -> None:
    settings = Settings(root=tmp_path)
    assert "FORWARD_USER_INFO_HEADER_JWT_SECRET" not in build_environment(settings, "u", "k")
    signing = build_environment(replace(settings, user_jwt_secret="s"), "u", "k")
    assert signing["FORWARD_USER_INFO_HEADER_JWT_SECRET"] == "s"


def test_print_goes_without_a_command(tmp_path: Path) -> None:
    assert run(tmp_path, "models", "check").exit_code == 2
    assert "Usage" in run(tmp_path).output


@pytest.mark.parametrize(
    ("change", "states"),
    [
        ({}, {"Open WebUI": "ok"}),
        ({"task": False}, {"Open WebUI": "wrong"}),
        ({"chat": False}, {"Open WebUI": "wrong"}),
        ({"user": False}, {"Open WebUI": "ok", "users": "warning"}),
        ({"tools": 36}, {"Open WebUI": "ok", "tools": "warning"}),
    ],
)
def test_what_open_webui_was_seen_to_send_is_judged(change: dict[str, Any], states: dict[str, str]) -> None:
    found = list(report_request(replace(GOOD, **change), 60))
    assert {finding.check: finding.state for finding in found} == states
    assert all(finding.fix for finding in found if finding.state != "ok")


def test_nobody_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    words = ["openwebui", "check", "--url", "http://127.0.0.1:9/v1", "--json"]
    answer = CliRunner(env={"REDIS_URL": "", "HELIX_ROOT": str(tmp_path)}).invoke(cli, words)
    [finding] = json.loads(answer.output)["findings"]
    assert (answer.exit_code, finding["state"]) == (1, "wrong")
    assert "turns run relay" in finding["fix"]


def test_the_file_for_docker_holds_values_as_they_are(tmp_path: Path) -> None:
    """`docker run --env-file` keeps quotes: with them the headers are no JSON, and Open WebUI runs without any."""
    text = run(tmp_path, "docker", HELIX_API_KEYS="one").output
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    values = dict(line.split("=", 1) for line in lines)
    assert json.loads(values["OPENAI_API_CONFIGS"])["0"]["headers"] == TEMPLATES
    assert values["OPENAI_API_BASE_URL"] == "http://host.docker.internal:8765/v1"
    assert "--env-file open-webui.env" in text


@pytest.mark.parametrize("url", ["http://relay:1", "http://relay:1/", "http://relay:1/v1"])
def test_an_address_without_its_version_is_completed(tmp_path: Path, url: str) -> None:
    assert "OPENAI_API_BASE_URL=http://relay:1/v1\n" in run(tmp_path, "env", "--url", url).output


@pytest.mark.parametrize("what", ["env", "docker"])
def test_what_overrides_what_is_said_in_the_file(tmp_path: Path, what: str) -> None:
    text = run(tmp_path, what).output
    for name in ("OPENAI_API_BASE_URLS", "ENABLE_PERSISTENT_CONFIG", "WEBUI_SECRET_KEY", "AIOHTTP_CLIENT_TIMEOUT"):
        assert f"# {name}" in text or f"{name} unset" in text


def test_headers_that_lost_their_json_are_found() -> None:
    [finding] = report_request(replace(GOOD, task=False, message=False), 60.0)
    assert finding.state == "wrong"
    assert "openwebui print docker" in finding.fix
