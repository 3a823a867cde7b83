"""compose.yaml and the Dockerfile: what can be checked without a container engine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from api_client.contract.settings import load
from worker.cli import COMMANDS, cli

COMPOSE = Path(__file__).parents[2] / "compose"
FILE: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: service for name, service in SERVICES.items() if name != "broker"}


def filled(text: str) -> str:
    """A value as Compose would fill it in from .env."""
    return re.sub(r"\$\{\w+:([-?])([^}]*)\}", lambda m: m[2] if m[1] == "-" else "filled", text)


def test_the_services_are_broker_worker_web_and_flower_on_demand() -> None:
    assert set(SERVICES) == {"broker", "worker", "web", "flower"}
    assert {name for name, service in SERVICES.items() if "profiles" in service} == {"flower"}
    assert "version" not in FILE


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_checked_restarted_and_unnamed(name: str) -> None:
    service = SERVICES[name]
    assert {"test", "interval", "timeout", "retries", "start_period"} <= set(service["healthcheck"])
    assert service["restart"] == "unless-stopped"
    assert "container_name" not in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    used = [volume.partition(":")[0] for volume in service["volumes"]]
    assert set(used) <= set(FILE["volumes"])


@pytest.mark.parametrize("name", OURS)
def test_our_services_wait_for_the_broker_and_may_do_nothing_special(name: str) -> None:
    service = OURS[name]
    assert service["depends_on"] == {"broker": {"condition": "service_healthy"}}
    assert (service["init"], service["read_only"], service["cap_drop"]) == (True, True, ["ALL"])
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", OURS)
def test_the_settings_of_our_services_are_settings_of_the_program(name: str, tmp_path: Path) -> None:
    environ = {key: filled(str(value)) for key, value in OURS[name]["environment"].items()}
    settings = load(environ | {"HELIX_ROOT": str(tmp_path)})
    assert settings.store_url == "redis://:filled@broker:6379/0"
    assert settings.log_format == "json"


@pytest.mark.parametrize("name", ["worker", "web"])
def test_each_command_is_one_the_program_knows(name: str) -> None:
    program, command, *options = OURS[name]["command"]
    assert program == "turns"
    assert command in COMMANDS
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    found.make_context(command, list(options))  # raises on an unknown option


def test_the_broker_keeps_everything_and_asks_for_a_password() -> None:
    command = SERVICES["broker"]["command"][-1]
    for option in ("--appendonly yes", "--maxmemory-policy noeviction", "--requirepass", "--dir /data"):
        assert option in command
    assert "ports" not in SERVICES["broker"]
    assert SERVICES["broker"]["image"] == "valkey/valkey:9.1"


def test_no_secret_has_a_default() -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    for name in ("HELIX_BROKER_PASSWORD", "HELIX_API_KEYS", "FLOWER_PASSWORD"):
        assert set(re.findall(rf"\${{{name}([^}}]*)}}", text)) == {":?set it in compose/.env"}


def test_the_worker_gets_the_time_it_needs_to_hand_its_turns_over() -> None:
    settings = load({})
    grace = float(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace > settings.shutdown_seconds + settings.kill_grace_seconds


def test_the_image_checks_hashes_and_does_not_run_as_root() -> None:
    lines = (COMPOSE / "Dockerfile").read_text().splitlines()
    text = "\n".join(lines)
    assert "--require-hashes" in text
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    assert sum(line.startswith("FROM ") for line in lines) == 2
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (COMPOSE.parent / source).exists(), source


def test_docker_compose_reads_the_file(tmp_path: Path) -> None:
    try:
        subprocess.run(["docker", "compose", "version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no docker compose here")
    env = tmp_path / "env"
    env.write_text("HELIX_BROKER_PASSWORD=a\nHELIX_API_KEYS=b\nFLOWER_PASSWORD=c\n")
    command = ["docker", "compose", "--env-file", str(env), "-f", str(COMPOSE / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
