"""Transcripts: answers with true and untrue claims, each with the log of a real run of the CLI, and the verdict."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.claude.running import Agent, cli, inside
from tests.claude.stub import Stub, says
from tests.lab.claims import wordings
from tests.lab.claims.scenes import SCENES, Scene
from worker.enforcement.rules import ObservedRun
from worker.enforcement.tool_call_log import ToolCallLog
from worker.plugins.claims.files_on_disk import find_files
from worker.plugins.claims.rule import ClaimsRule
from worker.runners.claude.cli_launch import writable_paths
from worker.runners.sandbox.guard_client import AgentProcesses

_BETWEEN = "\n\n* * *\n\n"
_NAMES = ("Read", "Write", "Edit", "Bash")
#: The settings of every run.
TOOLS = {"sandbox": "off", "claude_tools": _NAMES, "claude_allowed_tools": _NAMES, "writable": ("docs",)}


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """An answer at the end of a scene. ``kind``: its class. ``true``: none of its claims is untrue."""

    scene: str
    kind: str
    held_out: bool
    true: bool
    answer: str


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A transcript with the codes of the rule's errors."""

    transcript: Transcript
    codes: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether the rule is right."""
        return self.transcript.true is not bool(self.codes)


def transcripts_of(scene: Scene) -> Iterator[Transcript]:
    """All transcripts of a scene."""
    for held_out in (False, True):
        said = wordings.HELD_OUT if held_out else wordings.DESIGNED
        for kind, forms in said.items():
            for place, form in enumerate(forms):
                for true, values in _filled(scene, kind, place):
                    yield Transcript(
                        scene=scene.name, kind=kind, held_out=held_out, true=true, answer=form.format(**values)
                    )
        none = wordings.NO_CLAIM_HELD_OUT if held_out else wordings.NO_CLAIM_DESIGNED
        for form in none:
            answer = form.format(ghost=scene.unwritten[0], unrun=scene.not_ran[0])
            yield Transcript(scene=scene.name, kind="none", held_out=held_out, true=True, answer=answer)


def _filled(scene: Scene, kind: str, place: int) -> Iterator[tuple[bool, dict[str, object]]]:
    """The values of a wording in a scene, true ones and untrue ones; which ones, changes with its place."""
    passed = scene.tests > 0
    match kind:
        case "file":
            names = [(True, scene.written), (False, scene.unwritten)]
            yield from ((true, {"file": each[place % len(each)]}) for true, each in names if each)
        case "two":
            if len(scene.written) > 1:
                yield True, {"file": scene.written[0], "other": scene.written[1]}
                yield False, {"file": scene.written[0], "other": scene.unwritten[place % 2]}
        case "passes":
            yield passed, {}
        case "count":
            yield passed, {"n": scene.tests if passed else 4}
            yield False, {"n": 7}
        case "ran":
            yield scene.tests != 0, {}
        case "command":
            yield from ((True, {"command": command}) for command in scene.ran)
            yield False, {"command": scene.not_ran[place % 2]}
        case "green":
            yield from ((well, {"command": command}) for command, well in scene.ran.items())
            yield False, {"command": scene.not_ran[place % 2]}
        case "files":
            if scene.files > 1:
                yield True, {"n": scene.files}
            yield False, {"n": scene.files + 3}


def played(agent: Agent, scene: Scene) -> tuple[ToolCallLog, list[Transcript]]:
    """Run a scene once in the real CLI, which says all answers in its last message; returns the run's log too."""
    for name, text in scene.before.items():
        path = agent.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.utime(path, (time.time() - 60,) * 2)
    wanted = list(transcripts_of(scene))
    agent.stub.replies = [*scene.calls, says(_BETWEEN.join(each.answer for each in wanted))]
    began = time.time()
    ran = agent.run(idle_seconds=120.0, deadline=time.monotonic() + 240)
    assert ran.verdict == "complete", ran.reason
    assert ran.result.tool_calls is not None
    heard = ran.result.text.split(_BETWEEN)
    assert heard == [each.answer for each in wanted]
    named = [*scene.written, *scene.unwritten]
    run = ObservedRun(
        folder=ran.order.directory,
        root=agent.effective.root,
        writable=tuple(writable_paths(agent.effective)),
        text=ran.result.text,
        tool_calls=ran.result.tool_calls,
        since=began,
    )
    return replace(ran.result.tool_calls, files=find_files(run, named)), wanted


def judged() -> Iterator[Judged]:
    """Play every scene, and judge its transcripts one by one."""
    program = cli()
    if program is None:
        raise SystemExit("the Claude CLI is not installed here: `make e2e-claude` installs it")
    agents, rule = AgentProcesses(), ClaimsRule()
    agents.start_guard()
    try:
        for scene in SCENES:
            with tempfile.TemporaryDirectory() as root, Stub() as stub:
                agent = Agent(Path(root), stub, agents, inside(Path(root), program), TOOLS)
                log, transcripts = played(agent, scene)
                for each in transcripts:
                    found = rule.validate(each.answer, {"evidence": [{"claims": log.to_dict()}], "locale": "en"})
                    yield Judged(transcript=each, codes=tuple(issue.code for issue in found if issue.is_error))
    finally:
        agents.stop_guard()
