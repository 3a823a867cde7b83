"""The kinds of questions by name: ours, and those of installed packages."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points

from api_client.contract.interruption import Interruption
from api_client.contract.turn import Turn, TurnRequest
from api_client.interruptions.escalation_question import VerdictQuestion
from api_client.interruptions.question import QuestionKind, QuestionView
from api_client.interruptions.tool_approval_question import ToolApprovalQuestion
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: The group of entry points in which packages name their kinds.
GROUP = "helix_turns.interruptions"
_BUILT_IN = {kind.name: kind for kind in (ToolApprovalQuestion(), VerdictQuestion())}


def question_kind(name: str) -> QuestionKind:
    """Return the kind of this name; one that shows any question where no package here has it."""
    return _BUILT_IN.get(name) or installed_kinds().get(name) or QuestionKind()


@functools.cache
def installed_kinds() -> dict[str, QuestionKind]:
    """Return the kinds of installed packages, made once; one that does not load is left out."""
    found = {}
    for entry in entry_points(group=GROUP):
        try:
            found[entry.name] = entry.load()()
        except Exception as error:
            log.warning("interruption.not_loaded", kind=entry.name, error=repr(error)[:200])
    return found


def added_runs(request: TurnRequest) -> int:
    """Return how many runs beyond those requested all kinds together may add to a turn by themselves."""
    return sum(kind.added_runs(request) for kind in (*_BUILT_IN.values(), *installed_kinds().values()))


def question_of(asked: Interruption, locale: str = "en") -> QuestionView:
    """Return a question as people are shown it."""
    return question_kind(asked.kind).show(asked, locale)


def recap_of(turn: Turn, locale: str) -> str:
    """Return what a chat says below an answer about the questions of its turn; empty for nothing."""
    said = (question_kind(kind).recap(counted, locale) for kind, counted in turn.interruptions.items())
    return "; ".join(filter(None, said))
