"""The manifests of Kubernetes and the units of systemd: valid, and as safe and patient as docs/deploying.md says."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from jsonschema import Draft202012Validator

from api_client.contract.settings import load_settings
from tests.unit.cli.test_commands import resolve

COMPOSE = Path(__file__).parents[2] / "compose"
KUBERNETES = COMPOSE / "kubernetes"
SCHEMA: dict[str, Any] = json.loads(Path(__file__).with_name("kubernetes.schema.json").read_text())
UNITS = sorted((COMPOSE / "systemd").glob("*.service"))


def objects_of(*files: Path) -> list[dict[str, Any]]:
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def named(folder: Path, what: str = "resources") -> list[Path]:
    """The files that a kustomization names."""
    return [folder / each for each in yaml.safe_load((folder / "kustomization.yaml").read_text())[what]]


OBJECTS = objects_of(*(file for file in named(KUBERNETES) if file.is_file()), *named(COMPOSE / "broker"))
MORE = objects_of(*named(KUBERNETES / "operators"))
FILES = objects_of(*named(KUBERNETES / "files"))
PODS = {
    each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in OBJECTS if "template" in each.get("spec", {})
}


def faults(each: dict[str, Any]) -> list[str]:
    """What Kubernetes' own schema has against an object; a field that it does not know is one of them."""
    [name] = [
        name
        for name, kind in SCHEMA["$defs"].items()
        if each["kind"] in kind.get("properties", {}).get("kind", {}).get("enum", [])
        and each["apiVersion"] in kind["properties"]["apiVersion"]["enum"]
    ]
    validator = Draft202012Validator({"$ref": f"#/$defs/{name}", **SCHEMA})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(each)]


@pytest.mark.parametrize("each", OBJECTS + FILES, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_each_object_is_one_by_kubernetes_own_schema(each: dict[str, Any]) -> None:
    assert faults(each) == []
    assert faults(each | {"specs": {}}), "an unknown field is seen"


def test_the_files_are_all_there_is_and_the_objects_are_those_of_an_installation() -> None:
    listed = {file.resolve() for file in named(KUBERNETES) if file.is_file()}
    assert listed == {file for file in KUBERNETES.glob("*.yaml") if file.name != "kustomization.yaml"}
    assert set(PODS) == {"broker", "turns-worker", "turns-web", "flower"}
    assert {each["kind"] for each in MORE} == {"ScaledObject", "ServiceMonitor"}


@pytest.mark.parametrize("name", PODS)
def test_each_pod_is_restricted_read_only_and_says_how_it_is(name: str) -> None:
    pod = PODS[name]
    [container] = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    safe = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == safe
    assert {"readinessProbe", "livenessProbe", "resources"} <= set(container)
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", PODS)
def test_each_pod_has_the_secrets_that_its_environment_names_and_no_other(name: str) -> None:
    pod = PODS[name]
    [container] = pod["containers"]
    [mounted] = [volume["secret"]["items"] for volume in pod["volumes"] if "secret" in volume]
    named_there = {each["value"].rpartition("/")[2] for each in container["env"] if each["name"].endswith("_FILE")}
    secrets = {each["key"] for each in mounted}
    if name == "broker":
        named_there = set(re.findall(r"relay|worker|flower|operator", (COMPOSE / "broker" / "start.sh").read_text()))
        secrets = {secret.removesuffix("_url") for secret in secrets}
    assert secrets == {each for each in named_there if not each.endswith((".ready", ".json"))}
    [generated] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["secretGenerator"]
    assert {each["key"] for each in mounted} <= {Path(file).name for file in generated["files"]}


def test_kubernetes_runs_what_compose_runs_with_the_same_settings(tmp_path: Path) -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    subprocess.run([COMPOSE / "secrets.sh", tmp_path], check=True, capture_output=True)
    for pod, service in {"turns-worker": "worker", "turns-web": "web", "flower": "flower"}.items():
        [container] = PODS[pod]["containers"]
        assert container["command"] == services[service]["command"]
        environ = {each["name"]: each["value"] for each in container["env"]}
        same = services[service]["environment"].keys() - {"HELIX_ROOT", "HELIX_MODELS", "HELIX_LOG_FORMAT"}
        assert {name: environ[name] for name in same} == {name: services[service]["environment"][name] for name in same}
        environ = {name: value.replace("/run/secrets", str(tmp_path)) for name, value in environ.items()}
        load_settings(environ | {"HELIX_ROOT": str(tmp_path)})  # raises on a setting that there is not


def test_a_pod_that_goes_has_the_time_that_its_worker_takes() -> None:
    pod = PODS["turns-worker"]
    [seconds] = [each["value"] for each in pod["containers"][0]["env"] if each["name"] == "HELIX_SHUTDOWN_SECONDS"]
    needed = float(seconds) + load_settings({}).kill_grace_seconds + 5.0  # the supervisor's own
    assert pod["terminationGracePeriodSeconds"] > needed
    unit = (COMPOSE / "systemd" / "turns-worker.service").read_text()
    assert f"HELIX_SHUTDOWN_SECONDS={seconds}" in unit
    assert float(re.findall(r"^TimeoutStopSec=(\d+)", unit, re.MULTILINE)[0]) > needed
    assert "KillMode=mixed" in unit


def test_nobody_reaches_anybody_but_by_a_rule_and_agents_reach_nothing_inside() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in OBJECTS if each["kind"] == "NetworkPolicy"}
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    [outside] = policies["worker"]["egress"]
    assert {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= set(
        outside["to"][0]["ipBlock"]["except"]
    )
    budgets = {each["metadata"]["name"] for each in OBJECTS if each["kind"] == "PodDisruptionBudget"}
    assert budgets == {"turns-worker", "turns-web"}


def test_workers_and_relay_reach_an_object_store_and_nobody_else_does() -> None:
    [policy] = [each["spec"] for each in FILES]
    [reach] = policy["podSelector"]["matchExpressions"]
    made_of = [each["spec"]["template"]["metadata"] for each in OBJECTS if "template" in each.get("spec", {})]
    assert set(reach["values"]) == {"worker", "web"} < {each["labels"][reach["key"]] for each in made_of}
    inside, outside = policy["egress"]
    [made] = yaml.safe_load((KUBERNETES / "files" / "kustomization.yaml").read_text())["configMapGenerator"]
    endpoint = urlsplit(dict(each.split("=", 1) for each in made["literals"])["HELIX_FILES_ENDPOINT"])
    assert inside["ports"] == [{"port": endpoint.port}]
    assert inside["to"][0]["podSelector"]["matchLabels"] == {reach["key"]: str(endpoint.hostname).split(".")[0]}
    policies = {each["metadata"]["name"]: each["spec"] for each in OBJECTS if each["kind"] == "NetworkPolicy"}
    assert policies["worker"]["egress"] == [outside], "the metadata of a cloud stay out of reach"


def test_workers_are_scaled_by_the_gauge_and_the_relay_is_scraped() -> None:
    scaled, scraped = (
        {each["kind"]: each["spec"] for each in MORE}[kind] for kind in ("ScaledObject", "ServiceMonitor")
    )
    assert scaled["scaleTargetRef"]["name"] in PODS
    [trigger] = scaled["triggers"]
    assert (trigger["metadata"]["query"], trigger["metricType"]) == ("max(helix_slots_needed_ratio)", "Value")
    [service] = [each for each in OBJECTS if each["kind"] == "Service" and each["metadata"]["name"] == "turns-web"]
    assert scraped["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert scraped["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_kustomize_puts_it_together(tmp_path: Path) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl here")
    shutil.copytree(COMPOSE, tmp_path / "compose")
    folder = tmp_path / "compose" / "kubernetes"
    subprocess.run([tmp_path / "compose" / "secrets.sh", "kubernetes/secrets"], check=True, capture_output=True)
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text().replace("# components:", "components:"))
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    made = list(yaml.safe_load_all(done.stdout))
    [said] = [each["data"] for each in made if "HELIX_MODELS" in each.get("data", {})]
    assert load_settings({**said, "HELIX_ROOT": str(tmp_path)}).files == "s3://turns/sessions"
    for each in made:
        assert each["apiVersion"].startswith(("keda.sh/", "monitoring.coreos.com/")) or faults(each) == []
    [secret] = [each["metadata"]["name"] for each in made if each["kind"] == "Secret"]
    assert done.stdout.count(secret) == 6, "its own name, four pods, and the monitor"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_each_unit_is_one_by_systemd_and_its_settings_are_the_programs(unit: Path, tmp_path: Path) -> None:
    lines = [line.partition("=") for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    environ = dict(word.split("=", 1) for name, _, said in lines if name == "Environment" for word in said.split())
    credentials = {said.partition(":")[0] for name, _, said in lines if name == "LoadCredential"}
    assert {value[3:] for value in environ.values() if value.startswith("%d/")} == credentials
    subprocess.run([COMPOSE / "secrets.sh", tmp_path], check=True, capture_output=True)
    filled = {name: value.replace("%d", str(tmp_path)).replace("%S", "/var/lib") for name, value in environ.items()}
    load_settings(filled | {"HELIX_ROOT": str(tmp_path)})
    [started] = [said.split() for name, _, said in lines if name == "ExecStart"]
    if started[0].endswith("/turns"):
        command, options = resolve(started[1:])
        command.make_context(command.name, options)  # raises on an unknown option
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/opt/helix-turns/bin", str(Path(sys.executable).parent)))
    done = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    here.write_text(
        here.read_text().replace("KillMode=", "KilMode=").replace("NoNewPrivileges=yes", "NoNewPrivilege=yes")
    )
    assert (
        "Unknown key"
        in subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, check=False).stderr
    )
