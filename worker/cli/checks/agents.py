"""Checks of ``turns doctor`` on agents: models, the Claude CLI, the workers that run them."""

from __future__ import annotations

import http
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from api_client.client import TurnsClient
from api_client.contract.issues import HelixError, SettingsError
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.worker_reports import HEARD_SECONDS, WorkerReport, missing
from api_client.figures.metrics import Account
from api_client.workers.fleet import START, QueueProbe
from api_client.workers.reason import Reason
from api_client.workers.reports import Standing
from worker.cli.checks.finding import Finding, State
from worker.cli.terminal import asked, number_of, write_json
from worker.turns.loops import SLOW_SHARE

if TYPE_CHECKING:
    from worker.certification.trial import Trial


# Every model of HELIX_MODELS: is there a runner for it, and can that runner work.

_ANSWER_SECONDS = 5.0
_MOST_BYTES = 4 * 2**20
_REFUSED = {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}
_PROGRAM_FIX = "install it for the user of the workers, or name it: agent_path in the model's block"
_URL_FIX = "correct HELIX_OPENAI_URL, or url in the model's block of the settings file; is the service running?"
_KEY_FIX = "correct HELIX_OPENAI_API_KEY, or the key of the model's block in the settings file"


def models(settings: Settings) -> Iterator[Finding]:
    """A finding for each model. Asks services that models name for their list of models, once each."""
    from worker.agents import broken, lacking, listed_name, never_works, runner_names

    asked: dict[tuple[str, str], Finding | frozenset[str] | None] = {}
    for model, spec in settings.models.items():
        runner = spec.partition(":")[0]
        if problem := never_works(settings, model):
            yield Finding(f"model {model}", "wrong", problem, _fix(runner, runner_names()))
            continue
        own = settings.of_model(model)
        if why := lacking(settings, model):
            yield Finding(f"model {model}", "warning", f"not on this machine: {why}", _PROGRAM_FIX)
            continue
        yield from tested(settings, model)
        if why := broken(settings, model):
            yield Finding(f"model {model}", "wrong", why, _fix(runner, runner_names()))
            continue
        if not (option := listed_name(settings, model)):
            yield Finding(f"model {model}", "ok", f"runs with {spec}")
            continue
        service = (own.openai_url, own.openai_api_key)
        if service not in asked:
            asked[service] = listed(*service)
        yield judge(model, option, own.openai_url, asked[service], spec)


def problems(settings: Settings) -> list[str]:
    """Return why models of these settings can never work, a line each."""
    from worker.agents import never_works

    found = ((model, never_works(settings, model)) for model in settings.models)
    return [f"model {model!r}: {problem}" for model, problem in found if problem]


def tested(settings: Settings, model: str) -> Iterator[Finding]:
    """Yield whether the version of an agent's program is the one that was certified."""
    from worker.agents import certified_program

    program, wanted = certified_program(settings, model)
    try:
        said = _version_of(program) if wanted else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        said = f"nothing: {error}"
    if wanted and not re.search(rf"(?<![\d.]){re.escape(wanted)}(?![\d.])", said):
        fix = f"install {wanted}, or certify this one: turns certify-runner {settings.models[model]}"
        yield Finding(f"version {model}", "warning", f"{program} says {said}; certified was {wanted}", fix)


def _version_of(program: str) -> str:
    """Return a program's own words about its version. Raises ``OSError`` and ``TimeoutExpired``: it does not run."""
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": os.environ.get("PATH", os.defpath), "DISABLE_AUTOUPDATER": "1"}
        done = subprocess.run([program, "--version"], env=env, capture_output=True, timeout=30, check=False)
    return done.stdout.decode("utf-8", "replace").strip()[:200] or "nothing"


def _fix(runner: str, known: tuple[str, ...]) -> str:
    match runner:
        case "scripted":
            return "correct the path or the script (docs/scripted-agent.md); a relative path counts from HELIX_ROOT"
        case "openai_http":
            return "set HELIX_OPENAI_URL and name the service's model (docs/settings.md)"
    if runner in known or "." in runner:
        return "correct the text behind the runner's name, and the model's block (docs/agents.md)"
    return f"name one of {', '.join(known)} in HELIX_MODELS, or install the package that offers it"


def listed(url: str, key: str) -> Finding | frozenset[str] | None:
    """The models that a service lists; None when it lists none; a finding (without a model's name) when it fails."""
    request = urllib.request.Request(f"{url.rstrip('/')}/models")  # noqa: S310 - the operator's own address
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
            body = json.loads(answer.read(_MOST_BYTES))
        return frozenset(str(each["id"]) for each in body["data"])
    except urllib.error.HTTPError as error:
        if error.code in _REFUSED:
            given = "the key" if key else "a request without a key"
            return Finding("", "wrong", f"{url} refuses {given} ({error.code})", _KEY_FIX)
        if error.code == http.HTTPStatus.NOT_FOUND:
            return None
        return Finding("", "wrong", f"{url}/models answers {error.code}", _URL_FIX)
    except (OSError, ValueError) as error:  # not there, not HTTP, not JSON
        reason = getattr(error, "reason", None) or error
        return Finding("", "wrong", f"{url} does not answer: {reason}", _URL_FIX)
    except (KeyError, TypeError):
        return None


def judge(
    model: str, option: str, url: str, found: Finding | frozenset[str] | None, spec: str = "openai_http"
) -> Finding:
    """Return what a service's list says about one model. Pure."""
    check = f"model {model}"
    match found:
        case Finding():
            return Finding(check, found.state, found.message, found.fix)
        case None:
            return Finding(check, "ok", f"{url} answers; it lists no models, so {option!r} was not looked for")
    if option in found:
        return Finding(check, "ok", f"{url} lists {option!r}")
    some = ", ".join(sorted(found)[:8]) or "none"
    return Finding(
        check,
        "wrong",
        f"{url} does not list {option!r}; it lists {some}",
        f"correct HELIX_MODELS: {model}={spec.removesuffix(f':{option}')}:MODEL",
    )


# The Claude CLI: there, of a known version, allowed to run, and its hooks at work.

#: The version whose endings were measured (docs/claude-cli.md).
MEASURED = "2.1.329"
#: Nothing listens there: the CLI starts, runs its hooks, and fails without asking anybody.
_NOWHERE = "http://127.0.0.1:9"
_SECONDS = 60.0


def claude(settings: Settings) -> Iterator[Finding]:
    """The Claude CLI: there, of a known version, allowed to run, and its hooks at work."""
    from worker.runners.claude.cli_program import find_program

    try:
        program = find_program(settings)
    except SettingsError as error:
        yield Finding("claude", "wrong", error.problems[0], "install it, or set HELIX_CLAUDE_PATH to where it is")
        return
    yield version(program)
    yield key(settings)
    yield from other_service(settings)
    yield hooks(settings)


def version(program: str) -> Finding:
    """Return whether the CLI's version is the one whose endings were measured."""
    try:
        found = _version_of(program)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("claude version", "wrong", f"{program} does not run: {error}", "install it again")
    if found.split()[0] == MEASURED:
        return Finding("claude version", "ok", f"{program}: {found}")
    fix = f"install {MEASURED}, or measure this one: CLAUDE_CLI={program} python -m tests.claude"
    return Finding("claude version", "warning", f"{program} says {found}; measured was {MEASURED}", fix)


def key(settings: Settings) -> Finding:
    """Return whether the CLI is given something to log in with."""
    if settings.claude_api_key:
        return Finding("claude key", "ok", "HELIX_CLAUDE_API_KEY, or the key of the model's block, is set")
    if given := [name for name in settings.claude_env if os.environ.get(name)]:
        return Finding("claude key", "ok", f"by HELIX_CLAUDE_ENV the agent is given {', '.join(given)}")
    fix = "set HELIX_CLAUDE_API_KEY; a login in the user's home directory is not used"
    return Finding("claude key", "warning", "no key in this environment; the workers need one", fix)


def other_service(settings: Settings) -> Iterator[Finding]:
    """Bedrock and its like are other hosts than the door leads to: its witness sees no call to them."""
    used = [name for name in settings.claude_env if name.startswith("CLAUDE_CODE_USE_") and os.environ.get(name)]
    if used:
        said = f"{used[0]} is set: its model calls do not pass the door, so no end of them is certified"
        fix = "nothing, if the CLI's own evidence is enough for you (docs/certification.md)"
        yield Finding("claude witness", "warning", said, fix)
    if used and not settings.box_hosts and settings.box != "off":
        fix = "name its host in HELIX_BOX_HOSTS, such as bedrock-runtime.eu-central-1.amazonaws.com"
        yield Finding("claude service", "warning", f"{used[0]} is set, and a box leads to the Messages API alone", fix)


def hooks(settings: Settings) -> Finding:
    """Return whether the hooks of a run are executed: without them no run is ever complete."""
    from worker.runners.base import Order
    from worker.runners.claude.runner import ClaudeCliRunner
    from worker.runners.guard.box import obstacle
    from worker.runners.guard.processes import Processes

    if settings.box == "required" and (problem := obstacle()):
        said = f"not tried, because HELIX_BOX=required lets no agent start: {problem}"
        return Finding("claude hooks", "wrong", said, "see the finding about the box")

    class Never:
        reason = ""
        lease_ends = time.monotonic() + _SECONDS

    agents = Processes()
    try:
        with tempfile.TemporaryDirectory() as folder:
            workdir = Path(folder)
            (workdir / "run" / "output").mkdir(parents=True)
            order = Order(
                turn_id="doctor",
                session_id="doctor",
                attempt=1,
                delivery=os.getpid(),
                prompt="doctor",
                messages=(),
                workdir=workdir,
                directory=workdir / "run",
                deadline=time.monotonic() + _SECONDS,
            )
            nowhere = replace(settings, claude_api_url=_NOWHERE, claude_api_key="none")
            completion = ClaudeCliRunner(agents, nowhere).run(order, lambda _: None, Never()).completion
    finally:
        agents.stop()
    return judge_hooks(completion.evidence.get("hooks", []), completion.reason)


def judge_hooks(ran: list[str], reason: str) -> Finding:
    """Return what the hooks of a run that reached no service tell. Pure."""
    missing = [event for event in ("SessionStart", "SessionEnd") if event not in ran]
    if not missing:
        return Finding("claude hooks", "ok", "SessionStart and SessionEnd in our run left their marks")
    fix = "look for disableAllHooks or allowManagedHooksOnly in the machine's managed settings (/etc/claude-code)"
    return Finding("claude hooks", "wrong", f"no mark of {' and '.join(missing)}: {reason}", fix)


# The workers: are they there, do they take messages, does a reaper look at what is due.

_PROBE_SECONDS = 5.0
#: Turns that ended so long ago should have been sent as traces, where they are sent, in seconds.
_UNTRACED_SECONDS = 120.0
#: How many slots a worker has for each kind of work, and how many are free.
_SLOTS: dict[str, Callable[[WorkerReport], tuple[int, int]]] = {
    RUN_QUEUE: lambda each: (each.slots, each.free),
    CHECK_QUEUE: lambda each: (each.check_slots, each.check_free),
}


def workers(settings: Settings) -> Iterator[Finding]:
    """Every finding about the workers. Sends a probe through the broker."""
    if not settings.store_url:
        return
    try:
        standing, probes, messages, untraced, account = asked(settings, _ask)
    except HelixError as error:
        yield Finding("workers", "wrong", str(error), "see the findings about the store")
        return
    reports, now = standing.reports, time.time()
    yield from stuck(standing)
    yield from everybody(reports, now)
    yield from leases(reports, now, settings.lease_seconds)
    yield from shared(standing)
    yield from same_validators(reports)
    blamed = {alert.check for alert in standing.alerts}
    for probe in probes:
        if not blamed & {f"workers {probe.queue}", "stalled", "sick", "quiet"}:  # else it follows from these
            yield claimed(probe)
    yield kept(account)
    yield from backlog(standing, messages)
    yield from traces(untraced)


async def _ask(client: TurnsClient) -> tuple[Standing, tuple[QueueProbe, ...], dict[str, int], int | None, Account]:
    standing = await client.workers.standing()  # first: a probe that is taken says nothing about turns
    probes = await client.prober.probe(_PROBE_SECONDS)
    untraced = await client.untraced.waiting(_UNTRACED_SECONDS)
    messages = await client.workers.messages()
    return standing, probes, messages, untraced, await client.figures.account()


def stuck(standing: Standing) -> Iterator[Finding]:
    """Yield what keeps turns from going on, causes first, as every page says it; then workers and waiting turns."""
    for alert in standing.alerts:
        if alert.check != "disk":  # its own check has said so
            yield Finding(alert.check, "warning" if alert.severity == "warning" else "wrong", alert.message, alert.fix)
    blamed, fleet = {alert.check for alert in standing.alerts}, standing.fleet
    workers = {RUN_QUEUE: f"{fleet.agents} to run agents", CHECK_QUEUE: f"{fleet.judges} to judge answers"}
    for queue, who in workers.items():
        there = [each for each in standing.heard if queue in each.queues]
        slots, free = (sum(counted) for counted in zip((0, 0), *map(_SLOTS[queue], there), strict=True))
        if f"workers {queue}" not in blamed:
            yield Finding(f"workers {queue}", "ok", f"{who}, {free} of {slots} slots free")
    if fleet.quiet and "quiet" not in blamed:
        said = f"ordered to take nothing new: {', '.join(fleet.quiet)}"
        yield Finding("quiet", "warning", said, f"`turns workers resume {fleet.quiet[0]}`")
    if not blamed & {"reaper", "waiting"}:
        longest = f", the longest for {standing.at - standing.waiting_since:.0f} s" if standing.waiting else ""
        yield Finding(
            "waiting", "ok", f"{number_of(len(standing.waiting), 'turn')} could run now{longest}; none is stuck"
        )
    for each in standing.waits:
        reason = each.wait.reason.value
        words = each.wait.words()
        if each.wait.reason is not Reason.STUCK and not any(words in alert.message for alert in standing.alerts):
            longest = f"the longest for {max(0.0, standing.at - each.since):.0f} s"
            words = f"{number_of(each.count, 'turn')}, {longest}: {words}"
            state: State = "ok" if each.wait.severity == "ok" else "warning"
            yield Finding(f"waits {reason}", state, words, "" if state == "ok" else each.wait.fix)


def everybody(reports: Sequence[WorkerReport], now: float) -> Iterator[Finding]:
    """Yield whether the workers that were there are still there. Pure; they are remembered for a day."""
    if not reports:
        return
    lost, there = missing(reports, now), sum(now - each.at < HEARD_SECONDS for each in reports)
    if not lost:
        yield Finding("workers there", "ok", f"{number_of(there, 'worker')} there, and none is missing")
        return
    names = ", ".join(f"{each.name} (silent for {now - each.at:.0f} s)" for each in lost)
    fix = "start them again; who was taken away for good is forgotten after a day"
    said = f"{there} of {there + len(lost)} worker processes; missing: {names}"
    yield Finding("workers there", "warning", said, fix)


def leases(reports: Sequence[WorkerReport], now: float, lease_seconds: float) -> Iterator[Finding]:
    """Yield whether every worker renews its leases in time, long before a healthy run is taken for a lost one. Pure."""
    rounds = {each.name: each.lease_round for each in reports if now - each.at < HEARD_SECONDS}
    slow = sorted(f"{name} took {took:.1f} s" for name, took in rounds.items() if took > lease_seconds * SLOW_SHARE)
    if slow:
        fix = "fewer HELIX_RUN_SLOTS, a nearer store, or a less busy machine; from half a lease on runs are lost"
        yield Finding("leases", "warning", f"renewed too slowly: {', '.join(slow)}", fix)
    elif rounds:
        yield Finding("leases", "ok", f"renewed within {max(rounds.values()):.2f} s")


def shared(standing: Standing) -> Iterator[Finding]:
    """That all workers see the same folder of sessions, where no alert says that they do not. Pure."""
    if any(each.sessions for each in standing.reports) and "sessions shared" not in standing.why:
        yield Finding("sessions shared", "ok", "all workers see the same session folder")


def same_validators(reports: Sequence[WorkerReport]) -> Iterator[Finding]:
    """Yield whether all workers offer the same validators: each must be able to judge any turn. Pure."""
    offers = {each.name: frozenset(each.validators) for each in reports if each.validators}
    everything = frozenset[str]().union(*offers.values())
    lacking = sorted(
        f"{name} lacks {', '.join(sorted(everything - has))}" for name, has in offers.items() if everything - has
    )
    if lacking:
        fix = "install the same packages on all of them; a turn that a worker cannot judge ends as an error"
        yield Finding("validators offered", "wrong", "; ".join(lacking), fix)
    elif offers:
        yield Finding("validators offered", "ok", "all workers offer the same validators")


def kept(account: Account) -> Finding:
    """Return whether every acknowledged turn ended or goes on. Pure."""
    said = f"{number_of(account.acknowledged, 'turn')} acknowledged: {account.ended} ended, {account.going_on} going on"
    if not account.lost:
        return Finding("turns kept", "ok", f"{said}, 0 lost")
    fix = "a record was removed, or the store lost data: compare with your backup (`turns restore`) and the store's log"
    return Finding("turns kept", "wrong", f"{said}, {account.lost} lost", fix)


def claimed(probe: QueueProbe) -> Finding:
    """The result of a probe. Pure."""
    check = f"claim {probe.queue}"
    if probe.state == "claimed":
        return Finding(check, "ok", f"{probe.worker} claimed a probe in {probe.seconds:.2f} s")
    if probe.state == "busy":
        fix = "more workers, or more HELIX_RUN_SLOTS, if turns wait too long"
        return Finding(check, "warning", "every slot is at work: a new turn waits", fix)
    return Finding(check, "wrong", f"nobody claimed a probe within {probe.seconds:.0f} s", START)


def backlog(standing: Standing, messages: dict[str, int]) -> Iterator[Finding]:
    """Yield how many messages are in the queues, and whether there are dead letters. Pure."""
    waiting = ", ".join(f"{count} in {queue}" for queue, count in sorted(messages.items()))
    yield Finding("queues", "ok", f"messages that nobody took yet: {waiting}; {standing.unfinished} unfinished turns")
    if standing.dead:
        fix = "`turns dead list`; then `turns replay --outcome dead` or `turns drop --all`"
        yield Finding("dead letters", "warning", f"{number_of(standing.dead, 'turn')} took down workers", fix)
    else:
        yield Finding("dead letters", "ok", "none")


def traces(untraced: int | None) -> Iterator[Finding]:
    """Yield whether finished turns are sent as traces, where that was ever begun. Pure."""
    if untraced:
        fix = "is `turns traces` running, and its receiver? its log says; turns themselves are not concerned"
        yield Finding("traces", "warning", f"{untraced} finished turns wait to be sent", fix)
    elif untraced is not None:
        yield Finding("traces", "ok", "all finished turns are sent")


# ``turns certify-runner``: drive a runner's real program through situations, and print what its word is worth.

#: The kit leads every call to its own service: these only have to be there.
_NEEDED = {
    "HELIX_CLAUDE_API_URL": "http://certify.invalid",
    "HELIX_CLAUDE_API_KEY": "sk-certify",
    "HELIX_OPENAI_URL": "http://certify.invalid/v1",
    "HELIX_OPENAI_API_KEY": "sk-certify",
}


@click.command("certify-runner")
@click.argument("name")
@click.option("--only", multiple=True, metavar="TEXT", help="Only situations with this in their names; repeatable.")
@click.option("--jobs", type=click.IntRange(1, 16), default=3, show_default=True, help="Situations at a time.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the table goes to stderr.")
def certify_runner(name: str, only: Sequence[str], jobs: int, as_json: bool) -> None:
    """Drive a runner's real program through situations that end well or badly, and print what its verdicts are worth.

    NAME is a model of HELIX_MODELS, or a runner with its option as it would be written there, such as
    openai_http:stub. No real service is asked: the door leads to a stub, whatever the settings say. Exit code 1:
    something was taken for complete falsely, a whole answer was thrown away, or the agent passed the door by.
    """
    from api_client.contract.settings import Settings, load
    from worker.agents import build_runner
    from worker.certification.trial import SITUATIONS, tried
    from worker.logs import configure_logging
    from worker.runners.guard import processes

    configure_logging(Settings(log_level="error"))  # the table says it
    os.environ.update({key: value for key, value in _NEEDED.items() if not os.environ.get(key)})
    models = load().models
    runner, option = build_runner(models.get(name, name))
    wanted = [each for each in SITUATIONS if not only or any(text in each.name for text in only)]
    if not wanted:
        raise click.UsageError(f"no situation has {', '.join(only)} in its name")
    try:
        rows = []
        for row in tried(runner, option, name, wanted, jobs):
            rows.append(row)
            for line in [*_HEAD, _line(row)] if len(rows) == 1 else [_line(row)]:
                click.echo(line, err=as_json)  # beside JSON the lines are progress
    finally:
        processes.shared().stop()
    counts = _counts(rows)
    if as_json:
        write_json({"runner": name, "counts": counts, "situations": [row.to_dict() for row in rows]})
    else:
        click.echo()
        for line in (*_summary(counts), *(f"{row.situation.name}: {row.problem}" for row in rows if row.problem)):
            click.echo(line)
    sys.exit(1 if any(row.problem for row in rows) else 0)


_HEAD = (
    "| Situation | Truth | The agent says | Without the witness | Verdict | Reason |",
    "| --- | --- | --- | --- | --- | --- |",
)


def _line(row: Trial) -> str:
    without = "complete" if row.without else "not complete"
    reason = " ".join(row.result.completion.reason.split())[:90]
    agents = f"{row.agent_says}{' (done)' if row.agents else ''}"
    verdict = row.said if row.applies else "not applicable"
    cells = [row.situation.name, row.situation.truth, agents, without, verdict, reason]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _counts(rows: Sequence[Trial]) -> dict[str, dict[str, int]]:
    """How often each of the three words is wrong, and how many true ends it keeps, where the situation came about."""
    found, rows = {}, [row for row in rows if row.applies]
    for whose in ("agents", "without", "ours"):
        said = [(row, bool(getattr(row, whose))) for row in rows]
        whole = [complete for row, complete in said if row.true_end]
        found[whose] = {
            "situations": len(rows),
            "false_complete": sum(row.false(complete) for row, complete in said),
            "true_ends": len(whole),
            "kept": sum(whole),
        }
    return found


def _summary(counts: dict[str, dict[str, int]]) -> Iterator[str]:
    names = {"agents": "the agent's own word", "without": "our gate without the witness", "ours": "our verdict"}
    for whose, found in counts.items():
        yield (
            f"{names[whose]}: {found['false_complete']} of {found['situations']} taken for complete falsely, "
            f"{found['kept']} of {found['true_ends']} true ends kept"
        )
