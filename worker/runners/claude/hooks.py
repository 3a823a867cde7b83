"""Settings and hooks of one run of the Claude CLI, and the marks the hooks leave (ADR-036, docs/claude-cli.md).

Nothing is installed: each run gets its own settings file, outside the folder its agent works in, and hooks that
write into the delivery's own folder. Each mark names its run, so that no other process's mark can be taken for it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.files.safe_io import opened, read, replace

HOOK = Path(__file__).with_name("hook.sh")
TOOL_HOOK = Path(__file__).with_name("tool_hook.py")
START, STOP, STOP_FAILURE, END = "SessionStart", "Stop", "StopFailure", "SessionEnd"
EVENTS = (START, STOP, STOP_FAILURE, END)

#: Seconds the hook before a tool call may take: as long as a busy machine may need to start it.
_TOOL_TIMEOUT = 300
#: How a run ends whose tool call a person is asked about.
_DEFERRED = "tool_deferred"
#: Seconds a hook may take; without this the CLI cancels what runs while it ends.
_TIMEOUT = 10
#: Largest mark in bytes; it holds the last message of the answer.
_MAX_MARK = 8 * 2**20
#: What must fit on the disk beside it, in bytes.
_PROBE = 64 * 2**10

#: Escaping "?" as well makes the CLI (2.1.329) ignore the rule; unescaped it matches itself.
_SPECIAL = re.compile(r"[\\*\[\]]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The mark of one hook.

    Attributes:
        run: the mark of the run whose process ran the hook. session: the agent session.
        background: tasks that still ran. message: the last message of the answer. transcript: where the session is.
        error: the kind of error that ended the turn, where one did.
    """

    run: str = ""
    session: str = ""
    background: int = 0
    message: str = ""
    transcript: str = ""
    error: str = ""


def settings(
    marks: Path,
    *,
    readable: Iterable[Path],
    protected: Iterable[Path],
    allowed: Sequence[str],
    tools: Path | None = None,
) -> str:
    """The settings file of one run.

    Args:
        marks: the folder for the marks.
        readable: folders and files the agent may read besides its own folder.
        protected: folders it may not write.
        allowed: permission rules of the installation, such as ``WebSearch``.
        tools: the file that tells the hook before each tool call what may become of it; None: there is no such hook.
    """
    hooks: dict[str, Any] = {
        event: [{"hooks": [{"type": "command", "command": _command(event, marks), "timeout": _TIMEOUT}]}]
        for event in EVENTS
    }
    if tools is not None:
        # Whatever keeps it from answering blocks the call; an exit code other than 2 would not.
        hook = shlex.join([sys.executable, "-I", "-S", str(TOOL_HOOK), str(tools)])
        call = {"type": "command", "command": f"{hook} || exit 2", "timeout": _TOOL_TIMEOUT}
        hooks["PreToolUse"] = [{"matcher": "*", "hooks": [call]}]
    reading = [f"Read(/{_literal(path)}{'/**' if path.is_dir() else ''})" for path in readable]
    return json.dumps(
        {
            "hooks": hooks,
            "disableAllHooks": False,
            "permissions": {"allow": [*reading, *allowed], "deny": edit_rules(protected)},
        }
    )


def edit_rules(folders: Iterable[Path]) -> list[str]:
    """A rule about writing for each folder and all below it."""
    return [f"Edit(/{_literal(folder)}/**)" for folder in folders]


def _literal(path: Path) -> str:
    """A path for a rule: rules are patterns, in which these characters mean something."""
    return _SPECIAL.sub(r"\\\g<0>", str(path))


def _command(event: str, marks: Path) -> str:
    return f"set -- {event} {shlex.quote(str(marks))}; . {shlex.quote(str(HOOK))}"


def readable_entries(root: Path) -> list[Path]:
    """Return what an agent may read of the project: all but hidden entries, links and ``projects``.

    Of ``/`` nothing: that is the machine, and no project.
    """
    if root == root.parent:
        return []
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return []
    return [e for e in entries if not e.name.startswith(".") and e.name != "projects" and not e.is_symlink()]


def read_marks(directory: Path) -> dict[str, Mark]:
    """The marks in a delivery's ``marks/``, by event. One that cannot be read counts as none."""
    found: dict[str, Mark] = {}
    try:
        with opened(directory) as own, opened("marks", own) as marks:
            for event in EVENTS:
                try:
                    found[event] = parse_mark(read(event, marks, _MAX_MARK))
                except (OSError, ValueError, RecursionError):
                    continue
    except OSError:
        return {}
    return found


def is_over(directory: Path) -> bool:
    """Return whether a session has ended by its hooks: nothing but its process's own end is still to come."""
    return {START, STOP, END} <= read_marks(directory).keys()


def obstacle(directory: Path) -> str:
    """Say why a delivery's ``marks/`` takes no marks, in the system's words, such as a full disk; empty if it does.

    Hooks that could not write look like hooks that did not run. What is tried is as large as a long answer's mark.
    """
    try:
        with opened(directory) as own, opened("marks", own) as marks:
            replace("probe", b"\0" * _PROBE, marks, durable=False)
            os.unlink("probe", dir_fd=marks)
    except OSError as error:
        return str(error)
    return ""


def parse_mark(content: bytes) -> Mark:
    """One mark, as the hook wrote it. Raises ``ValueError``: it is not a mark."""
    run, _, body = content.decode("utf-8", "replace").partition("\n")
    facts = json.loads(body)
    if not isinstance(facts, dict):
        raise ValueError("a hook gets a JSON object")
    background = facts.get("background_tasks")
    return Mark(
        run=run,
        session=_text(facts, "session_id"),
        background=len(background) if isinstance(background, list) else 0,
        message=_text(facts, "last_assistant_message"),
        transcript=_text(facts, "transcript_path"),
        error=_text(facts, "error"),
    )


def _text(facts: dict[str, Any], name: str) -> str:
    value = facts.get(name)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
