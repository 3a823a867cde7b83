"""The Claude CLI's prompt, as it goes to standard input. Pure.

Every part begins with a fixed line, so that a message never begins with a slash: the CLI would take ``/clear``
for a command and call no model at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MESSAGE = "Nachricht des Nutzers:"
FEEDBACK = "Rückmeldung der automatischen Prüfung zu deiner letzten Antwort:"
SO_FAR = "Deine Antwort bis zu der Stelle, an der sie abbrach:"
HISTORY = "Bisheriges Gespräch, zur Kenntnis; beantwortet wird nur die Nachricht danach:"

_SPEAKERS = {"user": "Nutzer", "assistant": "Consultant", "system": "Vorgabe"}
#: Longest history in a prompt, in characters; the oldest messages go first.
_MAX_HISTORY = 200_000


def prompt_for(prompt: str, messages: Sequence[Mapping[str, str]], *, knows: str = "", so_far: str = "") -> bytes:
    """The text for one run.

    Args:
        prompt: the user's message, or the feedback.
        messages: the conversation, the user's message last.
        knows: what the agent session it continues from has heard already: ``""`` nothing, ``"history"`` all but the
            user's message, ``"message"`` that too.
        so_far: the answer's text before a break; no agent session holds it.
    """
    message = messages[-1].get("content", "") if messages else prompt
    parts: list[str] = []
    if not knows and len(messages) > 1:
        parts.append(f"{HISTORY}\n\n{_told(messages[:-1])}")
    if knows != "message":
        parts.append(f"{MESSAGE}\n\n{message}")
    if so_far:
        parts.append(f"{SO_FAR}\n\n{so_far}")
    if prompt != message:
        parts.append(f"{FEEDBACK}\n\n{prompt}")
    if not parts:
        parts.append(f"{MESSAGE}\n\n{prompt}")
    return "\n\n".join(parts).replace("\0", "\ufffd").encode("utf-8", "replace")


def _told(messages: Sequence[Mapping[str, str]]) -> str:
    lines: list[str] = []
    length = 0
    for message in reversed(messages):
        content = message.get("content", "")
        length += len(content)
        if length > _MAX_HISTORY:
            lines.append("[Ältere Nachrichten sind hier ausgelassen.]")
            break
        lines.append(f"{_SPEAKERS.get(message.get('role', ''), 'Nutzer')}: {content}")
    return "\n\n".join(reversed(lines))
