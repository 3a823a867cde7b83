"""Builds the Claude CLI's prompt. Fixed lines come first, because the CLI executes messages such as ``/clear``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api_client.contract.word_tables import load_word_table
from worker.files.session import INSTRUCTION_ROLES


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLines:
    """The fixed texts that introduce the parts of a prompt, in one language."""

    message: str
    feedback: str
    so_far: str
    rejected: str
    history: str
    instructions: str
    no_instructions: str
    left_out: str
    speakers: Mapping[str, str]


GERMAN, ENGLISH = (PromptLines(**load_word_table(__file__)[language]) for language in ("de", "en"))
#: Longest history in a prompt, in characters.
_MAX_HISTORY = 200_000


def build_prompt(
    prompt: str,
    messages: Sequence[Mapping[str, str]],
    *,
    knows: str = "",
    so_far: str = "",
    rejected: str = "",
    locale: str = "en",
) -> bytes:
    """Build the CLI's prompt for one run: the new message, and the history that the CLI does not know yet.

    ``messages`` ends with the user's message. ``knows`` is what the continued session holds: nothing, the
    ``"dialogue"`` under other instructions, the ``"history"``, or also the ``"message"``. ``so_far`` is the interrupted
    answer; ``rejected`` is the answer that the feedback is about.
    """
    lines = GERMAN if locale.lower().startswith("de") else ENGLISH
    message = messages[-1].get("content", "") if messages else prompt
    parts: list[str] = []
    if not knows and len(messages) > 1:
        parts.append(f"{lines.history}\n\n{_format_history(messages[:-1], lines)}")
    if knows == "dialogue":
        given = [each for each in messages[:-1] if each.get("role") in INSTRUCTION_ROLES]
        told = f"{lines.instructions}\n\n{_format_history(given, lines)}" if given else lines.no_instructions
        parts.append(told)
    if knows != "message":
        parts.append(f"{lines.message}\n\n{message}")
    if so_far:
        parts.append(f"{lines.so_far}\n\n{so_far}")
    elif rejected and knows != "message" and len(rejected) <= _MAX_HISTORY:
        parts.append(f"{lines.rejected}\n\n{rejected}")
    if prompt != message:
        parts.append(f"{lines.feedback}\n\n{prompt}")
    if not parts:
        parts.append(f"{lines.message}\n\n{prompt}")
    return "\n\n".join(parts).replace("\0", "\ufffd").encode("utf-8", "replace")


def _format_history(messages: Sequence[Mapping[str, str]], words: PromptLines) -> str:
    lines: list[str] = []
    length = 0
    for message in reversed(messages):
        content = message.get("content", "")
        length += len(content)
        if length > _MAX_HISTORY:
            lines.append(words.left_out)
            break
        lines.append(f"{words.speakers.get(message.get('role', ''), words.speakers['user'])}: {content}")
    return "\n\n".join(reversed(lines))
