"""Comparisons: of policies by recorded answers (``turns replay-policy``), of flow versions (``compare``, ``flow``)."""

from __future__ import annotations

import contextlib
import multiprocessing
import secrets
import signal
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Self

import click

from api_client.client import TurnsClient
from api_client.contract.issues import BadRequest, SettingsError
from api_client.contract.record import AttemptRecord
from api_client.contract.settings import Settings, load
from api_client.contract.turn import Outcome, Turn
from api_client.figures.versions import FEWEST, FIGURES, Difference, EndedTurn, Measured, Versions
from api_client.figures.versions import compare as compared
from api_client.policies import apply
from api_client.policies.kept import PolicyReplay
from api_client.turns.record.encoding import judged, policy_of
from worker.cli.figures.stats import percent
from worker.cli.policy import chosen_by, read_file
from worker.cli.terminal import (
    json_option,
    number_of,
    one_line,
    since_option,
    whoami,
    with_client,
    write_json,
    write_list,
    write_said,
    write_table,
)
from worker.cli.turns.listing import finished_chats, finished_turns
from worker.enforcement.child import isolated
from worker.enforcement.policies import (
    Chosen,
    Comparison,
    Judged,
    PolicyFile,
    RecordedAttempt,
    Rejects,
    Subject,
    build,
    rejects,
)
from worker.enforcement.policy import Policy, refused
from worker.enforcement.validators import ResponseValidator
from worker.external import provide
from worker.processes.programs import usable_cpus
from worker.turns.folders import AnswerFiles, delivery_folder, kept

# Judging recorded answers again, in as many processes as there are processors; what is under way is bounded.

#: Turns that a process gets at once, and such batches that one process has at most: it judges one, and has the next.
_BATCH, _WAITING = 16, 2
#: A process that has nothing to judge ends with its pipe, and ends its children; one that judges is ended after this.
_END_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The policy's part in a turn: names of its rules, of those in shadow, and what follows from errors."""

    names: tuple[str, ...]
    shadow: tuple[str, ...] = ()
    policy: Policy


_Batch = list[tuple[Judged, Given]]


class JudgingEnded(Exception):
    """A process that judged answers has ended before its time."""


class ComparisonRun:
    """Judges turns by a policy and counts their answers in a comparison, in the order in which they come.

    A context manager. Fewer turns than one batch are judged in this process. The others start as they are needed, and
    end with the block; when this process is killed, they find the end of their pipe. ``processes``: by default as many
    as there are processors.
    """

    def __init__(self, policy: PolicyFile, settings: Settings, comparison: Comparison, processes: int = 0) -> None:
        self._policy, self._settings, self._comparison = policy, settings, comparison
        self._most = processes or usable_cpus()
        self._processes: list[_Process] = []
        self._next: _Batch = []
        self._under_way: deque[tuple[_Batch, _Process]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            process.end()

    def add(self, turn: Judged, given: Given) -> None:
        """Submit a turn; it is counted when all before it are. Raises ``JudgingEnded``."""
        self._next.append((turn, given))
        if len(self._next) == _BATCH:
            batch, self._next = self._next, []
            self._send(batch)

    def rest(self) -> None:
        """Count all that was submitted. Raises ``JudgingEnded``."""
        while self._under_way:
            self._receive()
        with _Rules(self._policy, self._settings.root) as rules:
            for turn, given in self._next:
                self._comparison.count(turn, rejects(turn, rules.of(given)))
        self._next = []

    def _send(self, batch: _Batch) -> None:
        if len(self._under_way) == self._most * _WAITING:
            self._receive()
        process = self._following()
        process.send(batch)
        self._under_way.append((batch, process))

    def _following(self) -> _Process:
        """The process whose turn it is: each in order, so that results come in the order of the batches."""
        if len(self._processes) < self._most:
            self._processes.append(_Process(self._policy, self._settings))
            return self._processes[-1]
        self._processes.append(self._processes.pop(0))
        return self._processes[-1]

    def _receive(self) -> None:
        batch, process = self._under_way.popleft()
        for (turn, _), found in zip(batch, process.receive(), strict=True):
            self._comparison.count(turn, found)


class _Process:
    """A process that judges batches, one after the other. It has no end of another's pipe."""

    def __init__(self, policy: PolicyFile, settings: Settings) -> None:
        started = multiprocessing.get_context("spawn")
        self._pipe, theirs = started.Pipe()
        self._process: SpawnProcess = started.Process(target=_judge, args=(theirs, policy, settings), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, batch: _Batch) -> None:
        try:
            self._pipe.send(batch)
        except OSError:
            raise self._ended() from None

    def receive(self) -> list[list[Rejects]]:
        try:
            found: list[list[Rejects]] = self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        return found

    def _ended(self) -> JudgingEnded:
        self._process.join(1)
        return JudgingEnded(f"a process that judged answers has ended (exit code {self._process.exitcode})")

    def end(self) -> None:
        self._pipe.close()
        self._process.join(_END_SECONDS)
        self._process.terminate()
        self._process.join()


class _Rules(ExitStack):
    """The rules of turns, built once for the same names and language; those of no known bound have children."""

    def __init__(self, policy: PolicyFile, root: Path) -> None:
        super().__init__()
        self._policy, self._root = policy, root
        self._built: dict[tuple[tuple[str, ...], str], tuple[ResponseValidator, ...]] = {}

    def of(self, given: Given) -> Chosen:
        return Chosen(self._named(given.names, given), self._named(given.shadow, given), given.policy)

    def _named(self, names: tuple[str, ...], given: Given) -> tuple[ResponseValidator, ...]:
        locale = given.policy.locale
        if (names, locale) not in self._built:
            built = build(self._policy, names, root=self._root, locale=locale)
            self._built[names, locale] = self.enter_context(isolated(built))
        return self._built[names, locale]


def _judge(pipe: Connection, policy: PolicyFile, settings: Settings) -> None:
    """Such a process: it judges until the other end of the pipe is closed, by whatever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    provide(settings)
    with _Rules(policy, settings.root) as rules, contextlib.suppress(EOFError, OSError):
        while True:
            turns: _Batch = pipe.recv()
            pipe.send([rejects(turn, rules.of(given)) for turn, given in turns])


# ``turns replay-policy``: judge recorded answers by another policy, without an agent.


@click.command("replay-policy")
@click.option("--policy", "file", required=True, metavar="FILE", help="The policy to try.")
@since_option("7d")
@click.option("--model", default="", help="Turns of this model alone.")
@click.option("--show", default=20, show_default=True, help="Answers to name that are judged differently.")
@json_option
def replay_policy(file: str, since: float, model: str, show: int, as_json: bool) -> None:
    """Judge the recorded answers of finished turns by a policy file, and decide as workers do. No agent runs.

    No turn changes. The relay's page /policies keeps the result, with the texts.

    Files that an agent wrote are judged where they still lie on this machine; rules that look at the project see it as
    it is today. A turn of another policy gets no rule for routes, because the record does not name its route.
    """
    policy, replay_id = read_file(file), secrets.token_hex(6)
    settings = load()
    provide(settings)
    chosen_by(policy, Subject(), root=settings.root)  # before children build its rules

    async def read(client: TurnsClient) -> Comparison:
        comparison = Comparison(most=show)
        with ComparisonRun(policy, settings, comparison) as judging:
            async for turn, attempts in finished_chats(client, time.time() - since, model):
                given = _given(turn, policy)
                judging.add(_recorded(settings, turn, attempts, given.policy.max_attempts), given)
            judging.rest()
        await client.policy_replays.keep(_result(comparison))
        return comparison

    def _result(comparison: Comparison) -> PolicyReplay:
        return PolicyReplay(
            replay_id=replay_id,
            at=time.time(),
            by=whoami(),
            file=Path(file).name,
            policy=policy.hash,
            since_seconds=since,
            model=model,
            found=comparison.to_dict(),
        )

    try:
        comparison = with_client(read)
    except JudgingEnded as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        write_json({"policy": policy.hash, "page": f"/policies/{replay_id}", **comparison.to_dict()})
    else:
        _write(comparison)
        click.echo(f"\nwith the texts: {settings.public_url.rstrip('/')}/policies/{replay_id} on the relay")


def _given(turn: Turn, file: PolicyFile) -> Given:
    """Return what a policy gives a turn: what it had under that policy, or what a submit like its own would get."""
    request, applied = turn.request, turn.request.applied
    if applied is None or applied.hash != file.hash:
        filled = applied.filled if applied else ("validators", "policy", "max_attempts", "locale")
        named = {"validators", "policy", "max_attempts", "locale"} - set(filled)
        try:
            request = apply(request, file, owner=request.key, route="", named=named)
        except BadRequest:  # it names a rule that this policy does not offer
            request = apply(request, file, owner=request.key, route="", named=named - {"validators"})
    policy = policy_of(replace(turn, request=request, allowed=0))
    return Given(names=request.validators, shadow=request.applied.shadow if request.applied else (), policy=policy)


def _recorded(settings: Settings, turn: Turn, attempts: list[AttemptRecord], most: int) -> Judged:
    found = []
    for number, (record, attempt) in enumerate(zip(attempts, judged(attempts), strict=True), 1):
        files = _files(settings, turn, attempts[:number])
        by_human = turn.outcome is Outcome.PASSED_BY_HUMAN
        found.append(
            RecordedAttempt(
                text=record.text,
                answer=record.answer,
                complete=attempt.complete,
                fresh=attempt.fresh,
                decision="escalate" if by_human and record.decision == "accept" else record.decision,
                feedback=record.feedback,
                files=files.files,
                issues=(*files.lost, *refused(files.refused, turn.request.locale)),
            )
        )
    runs = max(len(attempts), 1)
    return Judged(
        turn_id=turn.turn_id,
        attempts=tuple(found),
        context={"session_id": turn.request.session_id, "prompt": turn.request.prompt},
        allowed=max(turn.allowed, most) if turn.allowed else 0,
        tokens=turn.tokens_used // runs,
        micro_dollars=turn.cost_used // runs,
    )


def _files(settings: Settings, turn: Turn, attempts: list[AttemptRecord]) -> AnswerFiles:
    """The files of the last attempt's answer; none where they lie on another machine, or retention removed them."""
    try:
        here = delivery_folder(settings, turn, attempts[-1]).is_dir()
        return kept(settings, turn, attempts) if here else AnswerFiles()
    except (SettingsError, OSError):
        return AnswerFiles()


def _write(found: Comparison) -> None:
    share = percent(found.rejected_now / found.answers) if found.answers else "-"
    click.echo(
        f"{number_of(found.answers, 'answer')} judged: {found.rejected_now} accepted then and rejected now ({share}), "
        f"{found.accepted_now} rejected then and accepted now"
    )
    if found.rejected_now:
        click.echo(
            f"at least {number_of(found.runs, 'more run')}, {found.tokens} tokens, ${found.micro_dollars / 1e6:.2f}"
        )
    for title, rules in (("rejects now", found.by_rule), ("would reject (shadow)", found.in_shadow)):
        if rules:
            click.echo()
            write_table([("rule", title), *((one_line(name, 60), str(count)) for name, count in rules.most_common())])
    if found.changes:
        click.echo()
        rows = [(each.turn_id, str(each.attempt), ", ".join(each.rules) or "accepted") for each in found.changes]
        write_table([("turn", "attempt", "now"), *rows])


# ``turns compare``: two flow versions beside each other, and whether they really differ (ADR-034, A/B).

#: How a figure is called for people.
_CALLED = {
    "retry": "asked again",
    "fallback": "repaired by fallback",
    "failure": "no accepted answer",
    "seconds": "time of a turn",
    "usd": "cost of a turn",
}


@click.command()
@click.argument("old")
@click.argument("new")
@since_option("7d")
@click.option("--model", default="", help="Turns of this model alone.")
@json_option
def compare(old: str, new: str, since: float, model: str, as_json: bool) -> None:
    """Compare the finished turns of two flow versions, OLD and NEW.

    "real" says that versions without any difference would differ so much in one of twenty comparisons at most, all
    figures together. Phases and cancelled turns are left out; what retention has removed is not there.
    """
    if old == new:
        raise click.UsageError("name two different versions, such as v2 v3")

    async def read(client: TurnsClient) -> Versions:
        turns = [
            EndedTurn(
                session_id=turn.request.session_id,
                flow=turn.flow,
                outcome=turn.outcome or Outcome.ERROR,
                asked_again=turn.retries > 0,
                seconds=turn.finished_at - turn.created_at,
                usd=turn.cost_used / 1e6,
            )
            async for turn in finished_turns(client, time.time() - since, model)
            if turn.flow in {old, new}
        ]
        return compared(turns, old, new)

    found = with_client(read)
    if as_json:
        write_json(asdict(found))
    else:
        _write_versions(found)


def _write_versions(found: Versions) -> None:
    for version, sessions, turns in zip((found.old, found.new), found.sessions, found.turns, strict=True):
        click.echo(f"{version}: {turns} turns of {sessions} sessions")
    click.echo()
    write_table([("", found.old, found.new, "change", "real"), *map(_line, found.figures)])
    click.echo()
    if not found.enough:
        click.echo(f"Too few sessions to say more: {FEWEST} of each version are needed.")
    elif real := [_CALLED[figure.name] for figure in found.figures if figure.real]:
        click.echo(f"{found.new} really differs from {found.old} in: {', '.join(real)}.")
    else:
        click.echo(f"No difference between {found.old} and {found.new} is beyond chance.")


def _line(figure: Difference) -> tuple[str, ...]:
    said = "yes" if figure.real else "no"
    return (
        _CALLED[figure.name],
        *(_said(figure.name, each) for each in (figure.old, figure.new)),
        _said(figure.name, figure.change, sign="+"),
        f"{said} (p {figure.p:.3f}, of {len(FIGURES)})",
    )


def _said(name: str, measured: Measured, sign: str = "") -> str:
    """A figure with its 95 % confidence interval."""
    low, value, high = (_unit(name, each, sign) for each in (measured.low, measured.value, measured.high))
    return f"{value} [{low}, {high}]"


def _unit(name: str, value: float, sign: str) -> str:
    if name == "seconds":
        return f"{value:{sign}.2f} s"
    return f"{value:{sign}.4f} $" if name == "usd" else f"{value:{sign}.1%}"


# ``turns flow``: the versions of HELIX_FLOW_VERSION, rolling one back, taking it back (ADR-034).


@click.group()
def flow() -> None:
    """Versions of prompts and rules beside each other (docs/operations.md, Flow versions)."""


@flow.command()
@json_option
def show(as_json: bool) -> None:
    """Show each version: its share of sessions, its policy, and whether it was rolled back."""

    async def read(client: TurnsClient) -> list[dict[str, object]]:
        active, gone = await client.flows.active(), await client.flows.rolled_back()
        total = sum(active.values())
        found = []
        for version, weight in client.settings.flow_version.items():
            source = client.policies.of("", flow=version)
            block = client.settings.flow_settings.get(version, {})
            note = gone.get(version)
            found.append(
                {
                    "version": version,
                    "weight": weight,
                    "share": active.get(version, 0) / total,
                    "policy": source.hash if source else "",
                    "prompt_template": block.get("prompt_template", ""),
                    "max_failure_rate": block.get("max_failure_rate"),
                    "rolled_back": {"at": note.at, "by": note.by, "why": note.why} if note else None,
                }
            )
        return found

    found = with_client(read)
    head = ("version", "weight", "sessions", "policy", "prompt template", "bound", "")
    write_list(as_json, found, "", head, map(_version_line, found))


def _version_line(each: Mapping[str, object]) -> tuple[str, ...]:
    bound, gone = each["max_failure_rate"], each["rolled_back"]
    said = ""
    if isinstance(gone, dict):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(gone["at"]))
        said = f"rolled back at {at} by {one_line(gone['by'], 40)}"
        said += f": {one_line(gone['why'], 80)}" if gone["why"] else ""
    return (
        str(each["version"]),
        str(each["weight"]),
        f"{each['share']:.0%}",
        str(each["policy"]) or "-",
        one_line(each["prompt_template"], 60) or "-",
        f"{bound:.0%}" if isinstance(bound, float) else "-",
        said,
    )


@flow.command()
@click.argument("version")
@click.option("--why", default="", help="Shown beside the version.")
@json_option
def rollback(version: str, why: str, as_json: bool) -> None:
    """Give VERSION no more turns, on all relays within a second; nothing is restarted.

    Its sessions go on with the other versions. Turns that have VERSION already keep it to their end.
    """

    async def act(client: TurnsClient) -> Mapping[str, int]:
        async with client.audit.noted("flow.rollback", by=whoami(), detail=version):
            return await client.flows.roll_back(version, by=whoami(), why=why)

    _done(with_client(act), as_json, f"{version} gets no more turns")


@flow.command()
@click.argument("version")
@json_option
def resume(version: str, as_json: bool) -> None:
    """Give VERSION its share of turns again. What failed before counts no more for its bound."""

    async def act(client: TurnsClient) -> Mapping[str, int]:
        async with client.audit.noted("flow.resume", by=whoami(), detail=version):
            return await client.flows.resume(version, by=whoami())

    _done(with_client(act), as_json, f"{version} gets turns again")


def _done(active: Mapping[str, int], as_json: bool, said: str) -> None:
    shares = ", ".join(f"{name}={weight}" for name, weight in active.items())
    write_said(as_json, {"active": dict(active)}, f"{said}; sessions: {shares}")
