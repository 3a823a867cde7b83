"""The settings and hooks of one run of the Claude CLI, and the marks that the hooks write (ADR-036).

The settings file is outside the agent's working folder.
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

from worker.files.safe_io import open_folder, read_file, replace_file

HOOK = Path(__file__).with_name("hook.sh")
TOOL_HOOK = Path(__file__).with_name("tool_hook.py")
START, STOP, STOP_FAILURE, END = "SessionStart", "Stop", "StopFailure", "SessionEnd"
EVENTS = (START, STOP, STOP_FAILURE, END)

#: Time limit of the tool hook in seconds; a busy machine may need long to start it.
_TOOL_TIMEOUT = 300
#: Stop reason of a run that waits for a person's decision.
_DEFERRED = "tool_deferred"
#: Time limit of a hook in seconds; without a limit, the CLI cancels hooks while it exits.
_TIMEOUT = 10
_MAX_MARK = 8 * 2**20
_PROBE = 64 * 2**10

#: Plugins that the CLI brings along: they change nothing that a model sees here, and delay each message by 5 to 9 ms.
_PLUGINS = ("cc-plugin-agents-md@builtin", "cc-plugin-plugin-authoring@builtin", "cc-plugin-privacy@builtin")

#: Not "?", because the CLI (2.1.329) ignores rules with an escaped "?".
_SPECIAL = re.compile(r"[\\*\[\]]")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookMark:
    """The report that one hook of the CLI has written to a file.

    Attributes:
        run: tag of the process that ran the hook.
        background: number of background tasks still running.
        error: kind of error that ended the turn, if any.
    """

    run: str = ""
    session: str = ""
    background: int = 0
    message: str = ""
    transcript: str = ""
    error: str = ""


def build_settings(
    marks: Path,
    *,
    readable: Iterable[Path],
    protected: Iterable[Path],
    allowed: Sequence[str],
    tools: Path | None = None,
) -> str:
    """Return the content of the CLI's settings file for one run, with its hooks and permissions.

    Args:
        readable: readable files and folders besides the working folder.
        protected: folders that must not be written.
        allowed: permission rules of the installation, such as ``WebSearch``.
        tools: input file of the tool hook; None for no tool hook.
    """
    hooks: dict[str, Any] = {}
    for event in EVENTS:
        command = f"set -- {event} {shlex.quote(str(marks))}; . {shlex.quote(str(HOOK))}"
        hooks[event] = [{"hooks": [{"type": "command", "command": command, "timeout": _TIMEOUT}]}]
    if tools is not None:
        # If the hook fails, the call is blocked: only exit code 2 does that.
        hook = shlex.join([sys.executable, "-I", "-S", str(TOOL_HOOK), str(tools)])
        call = {"type": "command", "command": f"{hook} || exit 2", "timeout": _TOOL_TIMEOUT}
        hooks["PreToolUse"] = [{"matcher": "*", "hooks": [call]}]
    reading = [f"Read(/{_escape_path(path)}{'/**' if path.is_dir() else ''})" for path in readable]
    return json.dumps(
        {
            "hooks": hooks,
            "disableAllHooks": False,
            "enabledPlugins": dict.fromkeys(_PLUGINS, False),
            "permissions": {"allow": [*reading, *allowed], "deny": edit_rules(protected)},
        }
    )


def edit_rules(folders: Iterable[Path]) -> list[str]:
    """Return permission rules that allow or deny writing in each folder."""
    return [f"Edit(/{_escape_path(folder)}/**)" for folder in folders]


def _escape_path(path: Path) -> str:
    return _SPECIAL.sub(r"\\\g<0>", str(path))


def read_marks(directory: Path) -> dict[str, HookMark]:
    """Return the reports that the hooks of a run have written, by event. Skip unreadable reports."""
    found: dict[str, HookMark] = {}
    try:
        with open_folder(directory) as own, open_folder("marks", own) as marks:
            for event in EVENTS:
                try:
                    found[event] = parse_mark(read_file(event, marks, _MAX_MARK))
                except (OSError, ValueError, RecursionError):
                    continue
    except OSError:
        return {}
    return found


def has_ended(directory: Path) -> bool:
    """Return True if all hooks of a run, including the final one, have written their reports."""
    return {START, STOP, END} <= read_marks(directory).keys()


def find_write_error(directory: Path) -> str:
    """Return why the hooks cannot write to a run's folder, such as a full disk, or an empty string."""
    try:
        with open_folder(directory) as own, open_folder("marks", own) as marks:
            replace_file("probe", b"\0" * _PROBE, marks, durable=False)
            os.unlink("probe", dir_fd=marks)
    except OSError as error:
        return str(error)
    return ""


def parse_mark(content: bytes) -> HookMark:
    """Parse the report that a hook has written to a file. Raises ``ValueError``."""
    run, _, body = content.decode("utf-8", "replace").partition("\n")
    facts = json.loads(body)
    if not isinstance(facts, dict):
        raise ValueError("a hook gets a JSON object")
    background = facts.get("background_tasks")
    return HookMark(
        run=run,
        session=_get_text(facts, "session_id"),
        background=len(background) if isinstance(background, list) else 0,
        message=_get_text(facts, "last_assistant_message"),
        transcript=_get_text(facts, "transcript_path"),
        error=_get_text(facts, "error"),
    )


def _get_text(facts: dict[str, Any], name: str) -> str:
    value = facts.get(name)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
