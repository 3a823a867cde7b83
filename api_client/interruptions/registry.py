"""The kinds of questions by name, built in and installed."""

from __future__ import annotations

import functools

from api_client.contract.interruption import Interruption
from api_client.contract.package_parts import collect_parts
from api_client.contract.plugins import find_plugins
from api_client.contract.turn import Turn, TurnRequest
from api_client.interruptions.question import QuestionKind, QuestionView
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

GROUP = "helix_turns.interruptions"
_BUILT_IN: dict[str, QuestionKind] = {kind.name: kind for kind in collect_parts("api_client.interruptions", "KIND")}


def find_question_kind(name: str) -> QuestionKind:
    """Return the kind of question with this name, or a general yes-or-no kind for an unknown name."""
    return _BUILT_IN.get(name) or load_installed_kinds().get(name) or QuestionKind()


@functools.cache
def load_installed_kinds() -> dict[str, QuestionKind]:
    """Load the kinds of questions that installed packages provide, and return them by name."""
    found = {}
    for entry in find_plugins(GROUP).values():
        try:
            found[entry.name] = entry.load()()
        except Exception as error:
            log.warning("interruption.not_loaded", kind=entry.name, error=repr(error)[:200])
    return found


def count_all_added_runs(request: TurnRequest) -> int:
    """Return how many additional agent runs all kinds of questions may cause for a turn together."""
    return sum(kind.count_added_runs(request) for kind in (*_BUILT_IN.values(), *load_installed_kinds().values()))


def show_question(interruption: Interruption, locale: str = "en") -> QuestionView:
    """Return the question of a suspended turn as shown to people."""
    return find_question_kind(interruption.kind).show_question(interruption, locale)


def summarise_turn_questions(turn: Turn, locale: str) -> str:
    """Return the sentence that a chat shows about a turn's questions, or an empty string."""
    said = (
        find_question_kind(kind).summarise_questions(counted, locale) for kind, counted in turn.interruptions.items()
    )
    return "; ".join(filter(None, said))
