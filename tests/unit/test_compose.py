"""compose.yaml and the Dockerfile: what can be checked without a container engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from api_client.contract.settings import load
from worker.cli import COMMANDS, cli

COMPOSE = Path(__file__).parents[2] / "compose"
FILE: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: SERVICES[name] for name in ("worker", "web", "flower", "traces")}


def filled(text: str) -> str:
    """A value as Compose would fill it in from .env."""
    return re.sub(r"\$\{\w+:([-?])([^}]*)\}", lambda m: m[2] if m[1] == "-" else "filled", text)


def test_the_services_are_those_of_an_installation_and_monitoring_on_demand() -> None:
    assert set(SERVICES) == {*OURS, "broker", "open-webui", "prometheus", "grafana"}
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"prometheus": ["monitoring"], "grafana": ["monitoring"], "traces": ["tracing"]}
    assert "version" not in FILE


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_checked_restarted_limited_and_unnamed(name: str) -> None:
    service = SERVICES[name]
    assert {"test", "interval", "timeout", "retries", "start_period"} <= set(service["healthcheck"])
    assert (service["restart"], service["init"]) == ("unless-stopped", True)
    assert "no-new-privileges:true" in service["security_opt"]
    assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"])
    assert "container_name" not in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    for volume in service["volumes"]:
        source = volume.partition(":")[0]
        assert source in FILE["volumes"] or (COMPOSE / source).is_dir(), volume
    if name not in {*OURS, "open-webui"}:  # ours: the image says so; Open WebUI's image needs root
        assert service.get("user", "472:472") != "0"


def test_every_secret_is_a_file_that_the_script_makes_and_no_service_has_one_it_does_not_use(tmp_path: Path) -> None:
    subprocess.run([COMPOSE / "secrets.sh", tmp_path / "s"], check=True, capture_output=True)
    made = {file.name: file.read_text() for file in (tmp_path / "s").iterdir()}
    assert set(made) == set(FILE["secrets"])
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    for name, service in SERVICES.items():
        for secret in service.get("secrets", []):
            source = secret["source"] if isinstance(secret, dict) else secret
            known = yaml.safe_dump(service) + (COMPOSE / "broker" / "start.sh").read_text() * (name == "broker")
            known += (COMPOSE / "prometheus" / "prometheus.yml").read_text() * (name == "prometheus")
            target = secret["target"] if isinstance(secret, dict) else secret
            used = f"/run/secrets/{target}" in known or target.removesuffix("_url") in known
            assert source in FILE["secrets"], source
            assert used, (name, target)
    subprocess.run([COMPOSE / "secrets.sh", tmp_path / "s"], check=True, capture_output=True)
    assert {file.name: file.read_text() for file in (tmp_path / "s").iterdir()} == made, "a second run changes nothing"


def test_open_webui_gets_the_environment_that_turns_openwebui_prints() -> None:
    printed = CliRunner().invoke(cli, ["openwebui", "--print", "compose", "--url", "http://web:8765/v1", "--key", "K"])
    told = yaml.safe_load(printed.output)["services"]["open-webui"]
    ours = SERVICES["open-webui"]
    assert ours["image"] == told["image"]
    for name, value in told["environment"].items():
        if name in {"OPENAI_API_KEY", "WEBUI_SECRET_KEY"}:
            assert f'{name}="$${{{name}:-$$(cat /run/secrets/' in ours["command"][-1]
        else:
            assert filled(ours["environment"][name]) == value, name


@pytest.mark.parametrize("name", OURS)
def test_our_services_wait_for_the_broker_and_may_do_nothing_special(name: str) -> None:
    service = OURS[name]
    assert service["depends_on"] == {"broker": {"condition": "service_healthy"}}
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


@pytest.mark.parametrize("name", OURS)
def test_the_settings_of_our_services_are_settings_of_the_program(name: str, tmp_path: Path) -> None:
    subprocess.run([COMPOSE / "secrets.sh", tmp_path], check=True, capture_output=True)
    environ = {key: filled(str(value)) for key, value in OURS[name]["environment"].items()}
    environ = {key: value.replace("/run/secrets", str(tmp_path)) for key, value in environ.items()}
    settings = load(environ | {"HELIX_ROOT": str(tmp_path)})
    role = "relay" if name in {"web", "traces"} else name
    assert settings.store_url.startswith(f"redis://{role}:")
    assert settings.store_url.endswith("@broker:6379/0")
    assert settings.log_format == "json"


@pytest.mark.parametrize("name", ["worker", "web", "traces"])
def test_each_command_is_one_the_program_knows(name: str) -> None:
    program, command, *options = OURS[name]["command"]
    assert program == "turns"
    assert command in COMMANDS
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    found.make_context(command, list(options))  # raises on an unknown option


def test_the_broker_keeps_everything_and_is_reached_by_its_users_only() -> None:
    broker = SERVICES["broker"]
    start = (COMPOSE / "broker" / "start.sh").read_text()
    for option in ("--appendonly yes", "--maxmemory-policy noeviction", "--aclfile"):
        assert option in start
    assert broker["environment"]["APPENDFSYNC"] == "always"
    assert "ports" not in broker
    assert broker["image"] == "valkey/valkey:9.1"


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_read_only_and_has_no_capability(name: str) -> None:
    assert (SERVICES[name]["read_only"], SERVICES[name]["cap_drop"]) == (True, ["ALL"])
    assert "/tmp" in SERVICES[name].get("tmpfs", []) or name == "prometheus"


def test_the_relays_keys_are_on_a_volume_that_no_agent_can_reach() -> None:
    folder, _, file = SERVICES["web"]["environment"]["HELIX_KEYS_FILE"].rpartition("/")
    [volume] = [volume for volume in SERVICES["web"]["volumes"] if volume.endswith(f":{folder}")]
    assert file == "keys.json"
    others = [v for name, service in SERVICES.items() if name != "web" for v in service["volumes"]]
    assert volume.partition(":")[0] not in {other.partition(":")[0] for other in others}
    assert folder in re.findall(r"install -d .* -m 0700 (.*)", (COMPOSE / "Dockerfile").read_text())[0].split()


def test_each_of_open_webuis_users_is_an_owner(tmp_path: Path) -> None:
    """CVE class "foreign object": its key was the API key, so all its users were one owner."""
    web = SERVICES["web"]["environment"]
    assert web["HELIX_FORWARDING_KEYS_FILE"] == "/run/secrets/webui_key"
    assert "X-Owui-User-Id" in SERVICES["open-webui"]["environment"]["OPENAI_API_CONFIGS"]
    folder = tmp_path / "s"
    folder.mkdir()
    for secret in ("api_keys", "webui_key"):  # as an older script left them
        (folder / secret).write_text("the-same\n")
    told = subprocess.run([COMPOSE / "secrets.sh", folder], check=True, capture_output=True, text=True).stdout
    assert (folder / "api_keys").read_text() == "the-same\n"
    assert len((folder / "webui_key").read_text().strip()) == 48
    assert "each of Open WebUI's users is an owner" in told


def test_a_workers_health_is_a_sign_of_life_that_is_renewed() -> None:
    assert SERVICES["worker"]["healthcheck"]["test"] == [
        "CMD-SHELL",
        "find /tmp/worker.ready -mmin -1 | grep -q .",
    ]


def test_the_image_says_what_it_is_by_the_open_container_initiatives_names() -> None:
    text = (COMPOSE / "Dockerfile").read_text()
    names = ("title", "description", "licenses", "version", "revision", "base.name")
    assert set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", text)) == set(names)
    assert set(SERVICES["worker"]["build"]["args"]) == {"PYTHON", "VERSION", "REVISION"}


def test_no_secret_stands_in_the_file() -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    for service in SERVICES.values():
        for name in service.get("environment", {}):
            assert not re.search(r"(PASSWORD|SECRET|KEYS?|AUTH)$", name), name
    assert "redis://" not in text


def test_the_worker_gets_the_time_it_needs_to_hand_its_turns_over() -> None:
    settings = load({})
    grace = float(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace > settings.shutdown_seconds + settings.kill_grace_seconds


def valid(file: Path) -> subprocess.CompletedProcess[str]:
    """The JSON schema of the Compose Specification, as check-jsonschema brings it; nothing is downloaded."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_file_is_one_by_the_compose_specification(tmp_path: Path) -> None:
    done = valid(COMPOSE / "compose.yaml")
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((COMPOSE / "compose.yaml").read_text().replace("restart: unless-stopped", "restarts: always"))
    assert valid(wrong).returncode == 1


def test_docker_compose_reads_the_file() -> None:
    try:
        subprocess.run(["docker", "compose", "version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no docker compose here")
    command = ["docker", "compose", "-f", str(COMPOSE / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
