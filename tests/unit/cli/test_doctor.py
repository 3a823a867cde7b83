"""What ``turns doctor`` says of an installation."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from api_client.contract.settings import Settings
from api_client.contract.worker_reports import WorkerReport
from api_client.workers.fleet import check_disk, find_alerts, make_fleet
from api_client.workers.installation_state import InstallationState
from api_client.workers.reason import InstallationFacts, Reason, Wait, WaitingGroup
from tests.installation import turns
from worker.cli.checks import broker, server_version, workers
from worker.cli.checks.claude import (
    MEASURED,
    check_claude,
    check_hooks,
    check_key,
    check_other_service,
    check_version,
    report_hooks,
)
from worker.cli.checks.doctor import doctor
from worker.cli.checks.finding import Finding, print_findings
from worker.cli.checks.machine import check_sandbox, check_sessions, is_in_container


def program(tmp_path: Path, says: str) -> str:
    path = tmp_path / "claude"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def test_only_what_is_not_in_order_is_shown_with_a_fix(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([Finding("a", "ok", "fine", "do x"), Finding("b", "warning", "odd", "do y")], as_json=False)
    assert capsys.readouterr().out == "ok  a: fine\n!   b: odd\n      fix: do y\n"


def test_an_empty_folder_is_told_first_how_to_start_an_installation_in_it(tmp_path: Path) -> None:
    [finding] = broker.check_brokers(Settings(root=tmp_path))
    assert finding.fix.startswith("start one here with `turns up`")


def test_the_measured_version_is_fine_and_another_one_is_told(tmp_path: Path) -> None:
    assert check_version(program(tmp_path, f"{MEASURED} (Claude Code)")).state == "ok"
    assert check_version(program(tmp_path, "9.9.9 (Claude Code)")).state == "warning"
    assert check_version(program(tmp_path, "")).state == "warning"


def test_a_program_that_does_not_run_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "claude"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    assert check_version(str(path)).state == "wrong"


def test_a_missing_program_ends_the_look_at_it(tmp_path: Path) -> None:
    (finding,) = check_claude(Settings(root=tmp_path, claude_path="no-such-claude"))
    assert (finding.check, finding.state) == ("claude", "wrong")


def test_in_a_container_the_container_is_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_in_container(tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert is_in_container(tmp_path)
    monkeypatch.setattr("worker.cli.checks.machine.is_in_container", lambda: True)
    monkeypatch.setattr(
        "worker.runners.sandbox.bubblewrap.find_obstacle", lambda: "bubblewrap cannot make a sandbox here"
    )
    real = check_sandbox(Settings(root=tmp_path, models={"m": "claude_cli"}))
    assert (real.state, "the container is the sandbox" in real.message) == ("warning", True)
    assert check_sandbox(Settings(root=tmp_path, sandbox="required")).state == "wrong"


@pytest.mark.parametrize(
    ("mode", "model", "state"),
    [("auto", "claude_cli", "warning"), ("auto", "scripted", "ok"), ("required", "scripted", "wrong")],
)
def test_agents_without_a_box_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, model: str, state: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = check_sandbox(Settings(root=tmp_path, sandbox=mode, models={"m": model}))
    assert (finding.state, "bubblewrap is not installed" in finding.message) == (state, True)
    assert "apt-get install bubblewrap" in finding.fix


@pytest.mark.parametrize(
    ("refused", "said"),
    [("--die-with-parent", "none, HELIX_SANDBOX=auto"), ("--unshare-net", "a sandbox on the machine's network")],
    ids=["sandbox", "network"],
)
@pytest.mark.parametrize(("mode", "state"), [("auto", "warning"), ("required", "wrong")])
def test_a_box_that_the_kernel_refuses_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, said: str, mode: str, state: str
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *{refused}*) echo "bwrap: Operation not permitted" >&2; exit 1;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    finding = check_sandbox(Settings(root=tmp_path, sandbox=mode, models={"m": "claude_cli"}))
    assert (finding.state, said.replace("auto", mode) in finding.message) == (state, True)
    assert "Operation not permitted" in finding.message
    assert "make namespaces" in finding.fix
    heading = finding.fix.split("'")[2]
    assert f"## {heading}" in (Path(__file__).parents[3] / "docs" / "security.md").read_text()


def test_a_service_that_a_box_does_not_lead_to_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CODE_USE_BEDROCK", "1")
    given = Settings(root=tmp_path, claude_env=("CLAUDE_CODE_USE_BEDROCK",))
    call_log, finding = check_other_service(given)
    assert (call_log.check, call_log.state) == ("claude call log", "warning")
    assert "bypass the model proxy" in call_log.message
    assert (finding.state, "HELIX_SANDBOX_HOSTS" in finding.fix) == ("warning", True)
    hosts = ("bedrock-runtime.eu-central-1.amazonaws.com:443",)
    assert list(check_other_service(replace(given, sandbox_hosts=hosts))) == [call_log]


@pytest.fixture
def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which bubblewrap is installed and may not make a sandbox."""
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_hooks_are_not_blamed_for_a_box_that_is_missing(blocked: Path) -> None:
    finding = check_hooks(Settings(root=blocked, sandbox="required"))
    assert (finding.state, finding.fix) == ("wrong", "see the finding about the sandbox")
    assert "No permissions" in finding.message


def test_a_key_from_the_workers_own_environment_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(root=tmp_path, claude_env=("ANTHROPIC_AUTH_TOKEN",))
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    assert check_key(given).state == "warning"
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "secret")
    assert check_key(given).state == "ok"
    assert "secret" not in check_key(given).message


def test_hooks_that_left_no_mark_are_wrong() -> None:
    assert report_hooks(["SessionStart", "SessionEnd"], "").state == "ok"
    finding = report_hooks(["SessionEnd"], "the reason")
    assert finding.state == "wrong"
    assert "no mark of SessionStart: the reason" in finding.message


def test_a_sessions_folder_that_is_a_file_is_wrong(tmp_path: Path) -> None:
    assert check_sessions(Settings(root=tmp_path)).state == "ok"
    assert not (tmp_path / "projects").exists()
    (tmp_path / "projects").touch()
    assert check_sessions(Settings(root=tmp_path)).state == "wrong"


def test_a_store_that_does_not_answer_is_wrong_and_its_password_is_not_shown(tmp_path: Path) -> None:
    url = f"unix://:hidden@{tmp_path}/none.sock"
    (finding,) = broker.check_brokers(Settings(root=tmp_path, store_url=url, broker_url=url))
    assert finding.state == "wrong"
    assert "hidden" not in finding.message
    (missing,) = broker.check_brokers(Settings(root=tmp_path))
    assert (missing.state, str(tmp_path) in missing.message) == ("wrong", True)


INFO = {
    "valkey_version": "9.1.2",
    "aof_enabled": 1,
    "maxmemory_policy": "noeviction",
    "used_memory": 80,
    "maxmemory": 0,
}


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "ok"),
        ({"aof_enabled": 0}, "wrong"),
        ({"aof_last_write_status": "err"}, "wrong"),
        ({"maxmemory_policy": "allkeys-lru"}, "wrong"),
        ({"maxmemory": 81}, "warning"),
        ({"maxmemory": 800}, "ok"),
        ({"valkey_version": "8.1.3"}, "warning"),
        ({"valkey_version": "6.2.1"}, "wrong"),
    ],
)
def test_what_a_server_says_of_itself_is_judged(change: dict[str, Any], state: str) -> None:
    info = INFO | change
    found = [
        server_version.check_version("b", info),
        broker.check_persistence("b", info),
        broker.check_memory("b", info),
    ]
    worst = [one for one in found if one.state != "ok"]
    assert [one.state for one in worst] == ([state] if state != "ok" else [])
    assert all(one.fix for one in worst)


def test_an_unpatched_redis_is_told() -> None:
    assert server_version.check_version("b", {"redis_version": "7.0.15"}).state == "warning"
    assert server_version.check_version("b", {"redis_version": "7.2.10"}).state == "warning"
    assert server_version.check_version("b", {"redis_version": "8.2.2"}).state == "ok"


@pytest.mark.parametrize(
    ("name", "url", "state"),
    [("store", "redis+cluster://a:1", "ok"), ("store", "redis://a:1", "wrong"), ("broker", "redis://a:1", "wrong")],
)
def test_a_cluster_is_to_be_named_as_one_and_no_broker(name: str, url: str, state: str) -> None:
    (finding,) = broker.check_mode(name, {"redis_mode": "cluster"}, Settings(store_url=url))
    assert finding.state == state
    assert not [*broker.check_mode(name, {"redis_mode": "standalone", "cluster_enabled": 0}, Settings(store_url=url))]


@pytest.mark.parametrize(
    ("replicas", "durability", "least", "state"),
    [
        (0, "everysec", "0", None),
        (0, "replicated", "1", "wrong"),
        (2, "everysec", "0", "warning"),
        (2, "replicated", "0", "warning"),
        (2, "replicated", None, "warning"),
        (2, "power", "1", "warning"),
        (2, "replicated", "1", "ok"),
    ],
)
def test_what_a_fail_over_can_lose_is_said(
    replicas: int, durability: str, least: str | None, state: str | None
) -> None:
    found = [*broker.check_replication("store", replicated_by(replicas), durability, least)]
    assert [finding.state for finding in found] == ([state] if state else [])


def replicated_by(replicas: int, syncing: int = 0) -> dict[str, Any]:
    """What a master says that has so many replicas in step, and so many that wait for their first copy."""
    states = ["online"] * replicas + ["wait_bgsave"] * syncing
    return {"connected_slaves": len(states), "slave_read_only": 1} | {
        f"slave{number}": {"ip": "h", "port": number, "state": state} for number, state in enumerate(states)
    }


def test_a_replica_that_waits_for_its_first_copy_is_no_copy() -> None:
    (found,) = broker.check_replication("store", replicated_by(0, syncing=2), "replicated", "1")
    assert (found.state, "one copy only: do not fail over now" in found.message) == ("wrong", True)


def test_fewer_replicas_than_asked_for_and_a_master_that_may_be_promoted_again_are_said() -> None:
    (few,) = broker.check_replication("store", replicated_by(1, syncing=1), "replicated", "2", copies=2)
    assert (few.state, "1 replica in step, not 2" in few.message) == ("wrong", True)
    (least,) = broker.check_replication("store", replicated_by(2), "replicated", "1", copies=2)
    assert (least.state, "min-replicas-to-write 2" in least.fix) == ("warning", True)
    for priority in ("100", None):
        (again,) = broker.check_replication("store", replicated_by(2), "replicated", "1", priority=priority)
        assert (again.state, "replica-priority" in again.message) == ("warning", True)


def report_of(queue: str, **more: Any) -> WorkerReport:
    return replace(WorkerReport(name="w", host="h", queues=(queue,), slots=4, free=3, at=100.0), **more)


def standing_of(reports: list[WorkerReport], **more: Any) -> InstallationState:
    """A standing of these workers at 105.0 s."""
    fleet, now = make_fleet(reports, 105.0), 105.0
    folders = more.pop("folders", ())
    facts: dict[str, Any] = {"overdue": 0, "waits": (), **more}
    said = tuple(find_alerts(fleet, InstallationFacts(at=now, reports=reports), folders=folders, **facts))
    facts |= {"refusal": None, "lost": frozenset()}
    empty: dict[str, Any] = {"states": {}, "unfinished": 3, "waiting": (), "suspended_since": 0.0, "dead": 0}
    return InstallationState(at=now, workers=(), reports=tuple(reports), fleet=fleet, alerts=said, **(empty | facts))


def waits(reason: Reason, **more: Any) -> WaitingGroup:
    """A turn that has waited since -400.0 s."""
    wait = Wait(reason=reason, at=105.0, **more)
    return WaitingGroup(wait=wait, turn_id="turn-1", queue="helix.run", since=-400.0)


def test_a_kind_of_work_without_a_living_worker_is_wrong() -> None:
    reports = [report_of("helix.run"), report_of("helix.check", at=10.0)]
    check, run, waiting = workers.report_alerts(standing_of(reports))
    assert (run.state, run.message) == ("ok", "1 to run agents, 3 of 4 slots free")
    assert (check.check, check.state) == ("workers helix.check", "wrong")
    assert waiting.state == "ok"
    stalled = [found.message for found in workers.report_alerts(standing_of([report_of("helix.run", stalled=True)]))]
    assert "takes no messages: w" in stalled


def test_slots_of_agents_and_of_judges_are_told_apart() -> None:
    both = report_of("helix.run", queues=["helix.run", "helix.check"], check_slots=2, check_free=1)
    run, check, _ = workers.report_alerts(standing_of([both]))
    assert (run.message, check.message) == (
        "1 to run agents, 3 of 4 slots free",
        "1 to validate answers, 1 of 2 slots free",
    )


def test_a_machine_that_cannot_work_is_named_with_why() -> None:
    reports = [
        report_of("helix.run"),
        report_of("helix.check"),
        report_of("helix.run", name="v", host="b", sick="/data cannot be written", free=0),
    ]
    finding, *_ = workers.report_alerts(standing_of(reports))
    assert (finding.state, finding.message) == ("wrong", "b carries out no turns: /data cannot be written")


def test_turns_that_wait_though_a_slot_is_free_are_wrong_and_those_that_wait_for_a_person_are_not() -> None:
    reports = [report_of("helix.run"), report_of("helix.check")]
    finding, *_ = workers.report_alerts(standing_of(reports, waits=(waits(Reason.STUCK),)))
    assert (finding.check, finding.state, "turn-1" in finding.fix) == ("waiting", "wrong", True)
    found = [*workers.report_alerts(standing_of(reports, waits=(waits(Reason.PERSON),)))]
    assert {each.state for each in found} == {"ok"}
    assert found[-1].message == "1 turn, the longest for 505 s: a person has to decide"


def test_turns_that_no_worker_can_carry_out_are_wrong_and_those_of_a_pause_a_warning() -> None:
    reports = [report_of("helix.run"), report_of("helix.check")]
    finding, *_ = workers.report_alerts(
        standing_of(reports, waits=(waits(Reason.UNFIT, subject="model m", said="w: no"),))
    )
    assert (finding.check, finding.state) == ("unfit", "wrong")
    assert finding.message == "1 turn waits, the longest for 505 s: no worker can carry out model m: w: no"
    finding, *_ = workers.report_alerts(
        standing_of(reports, waits=(waits(Reason("pause"), subject="model m", said="why"),))
    )
    assert (finding.check, finding.state) == ("pause", "warning")


def test_workers_that_are_there_no_more_are_missed_unless_they_were_replaced() -> None:
    old = report_of("helix.run", name="old", at=50.0, started_at=1.0)
    other = report_of("helix.run", name="other", host="i", at=60.0, started_at=1.0)
    heir = report_of("helix.run", name="heir", started_at=52.0)
    (well,) = workers.check_presence([old, heir], 105.0)
    assert (well.state, well.message) == ("ok", "1 worker there, and none is missing")
    (lost,) = workers.check_presence([old, heir, other], 105.0)
    assert lost.state == "warning"
    assert lost.message == "1 of 2 worker processes; missing: other (silent for 45 s)"
    (both,) = workers.check_presence([old, replace(old, name="older"), heir], 105.0)
    assert both.message.startswith("1 of 2 worker processes; missing: old")


def test_a_worker_that_renews_its_leases_slowly_is_named_before_it_loses_a_run() -> None:
    reports = [
        report_of("helix.run", lease_round=1.2),
        report_of("helix.check", name="c"),
        report_of("helix.run", at=0.0),
    ]
    [finding] = workers.check_leases(reports, now=101.0, lease_seconds=6.0)
    assert (finding.state, finding.message) == ("warning", "renewed too slowly: w took 1.2 s")
    [finding] = workers.check_leases([report_of("helix.run", lease_round=0.01)], now=101.0, lease_seconds=6.0)
    assert finding.state == "ok"
    assert not [*workers.check_leases([], now=101.0, lease_seconds=6.0)]


def test_workers_that_see_different_session_folders_are_told() -> None:
    reports = [report_of("helix.run", sessions="a"), report_of("helix.run", sessions="b", host="i")]
    apart = standing_of(reports, folders={"h", "i"})
    assert [
        ("h, i" in found.message) for found in workers.report_alerts(apart) if found.check == "sessions shared"
    ] == [True]
    assert [*workers.check_shared_sessions(apart)] == []
    assert [found.state for found in workers.check_shared_sessions(standing_of(reports[:1]))] == ["ok"]


def test_turns_that_nobody_looks_at_and_dead_letters_are_told() -> None:
    reports = [report_of("helix.run"), report_of("helix.check")]
    assert workers.report_alerts(standing_of(reports, overdue=2)).__next__().check == "reaper"
    assert [each.state for each in workers.check_backlog(replace(standing_of(reports), dead=1), {})] == [
        "ok",
        "warning",
    ]
    assert [each.state for each in workers.check_backlog(standing_of(reports), {"helix.run": 1})] == ["ok", "ok"]


def test_many_turns_without_the_index_of_texts_are_a_warning() -> None:
    assert list(workers.check_text_index(10_000)) == []
    [found] = workers.check_text_index(10_001)
    assert (found.check, found.state) == ("search", "warning")
    assert "10001 finished turns" in found.message


def test_turns_that_are_not_sent_as_traces_are_told_only_where_traces_are_sent() -> None:
    assert list(workers.check_traces(None)) == []
    assert [found.state for found in workers.check_traces(0)] == ["ok"]
    assert [found.state for found in workers.check_traces(3)] == ["warning"]


@pytest.mark.parametrize(
    ("free", "total", "state"),
    [
        (2**40, 2**41, "ok"),
        (2**40 // 21, 2**40, "warning"),
        (2**40 // 19, 2**40, "ok"),
        (2**30, 2**31, "warning"),
        (2**20, 2**40, "wrong"),
    ],
)
def test_a_disk_without_room_is_told(free: int, total: int, state: str) -> None:
    assert check_disk(free, total, "/data").severity == state


@pytest.mark.parametrize(("environ", "code"), [({}, 1), ({"HELIX_LOCALE": "fr"}, 1)])
def test_the_exit_code_says_whether_something_is_wrong(tmp_path: Path, environ: dict[str, str], code: int) -> None:
    cleared = {name: None for name in os.environ if name.startswith("HELIX_") or name == "REDIS_URL"}
    result = CliRunner().invoke(
        doctor, ["--json"], env={**cleared, "HELIX_ROOT": str(tmp_path), "HELIX_MODELS": "a=scripted", **environ}
    )
    assert result.exit_code == code
    told = json.loads(result.stdout)
    assert [finding["state"] == "wrong" for finding in told["findings"]].count(True) == code == told["wrong"]
    assert all(finding["fix"] for finding in told["findings"] if finding["state"] != "ok")


def test_a_store_that_is_away_is_a_finding_and_the_json_stays_json(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
    environ = kept | {"HELIX_ROOT": str(tmp_path), "REDIS_URL": "redis://127.0.0.1:1/0"}
    done = subprocess.run(turns("doctor", "--json"), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    wrong = {finding["check"] for finding in json.loads(done.stdout)["findings"] if finding["state"] == "wrong"}
    assert wrong == {"store"}  # that the workers cannot be looked at follows from it
    assert done.stderr == ""


def test_a_hole_in_the_append_only_file_is_wrong_and_one_that_may_be_elsewhere_a_warning(tmp_path: Path) -> None:
    refused = {"errorstat_MISCONF": {"count": 3}}
    file = tmp_path / "appendonlydir" / "a.2.incr.aof"
    file.parent.mkdir()
    for content, info, directory, state in (
        (b"*1\r\n$4\r\nPING\r\n", refused, str(tmp_path), ""),  # ours looks after its file itself
        (b"*1\r\n$4\r\nPING\r\n\0\0*1\r\n$4\r\nPING\r\n", {}, str(tmp_path), "wrong"),
        (b"", refused, None, "warning"),
        (b"", {}, None, ""),
    ):
        file.write_bytes(content)
        found = list(broker.check_append_only_files("store", directory, info))
        assert [each.state for each in found] == ([state] if state else [])
        assert all(each.fix for each in found)


@pytest.mark.parametrize(
    ("options", "refused", "said"),
    [
        ("--unshare-user", "nothing", "from further user namespaces: bubblewrap is before 0.8"),
        ("--unshare-user --disable-userns", "--disable-userns", "user namespaces: bubblewrap cannot make better ones"),
        ("--unshare-user --disable-userns", "--unshare-user", "the keyring of the worker's user"),
        ("--unshare-user --disable-userns", "nothing", ""),
    ],
)
def test_a_box_that_is_weaker_than_others_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, refused: str, said: str
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *--help*) echo "{options}";; *{refused}*) echo bwrap: no >&2; exit 1;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    finding = check_sandbox(Settings(root=tmp_path, models={"m": "claude_cli"}))
    assert (finding.state, said in finding.message) == ("warning" if said else "ok", True)


def test_a_machine_whose_system_calls_are_unknown_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.runners.sandbox.bubblewrap.filter_path", lambda: "")
    monkeypatch.setattr("worker.runners.sandbox.bubblewrap.find_obstacle", lambda: "")
    monkeypatch.setattr("worker.runners.sandbox.bubblewrap.find_network_obstacle", lambda: "")
    finding = check_sandbox(Settings(root=tmp_path))
    assert (finding.state, "no filter of system calls is known" in finding.message) == ("warning", True)
