"""The kinds of questions by name, built in and installed."""

from __future__ import annotations

import functools

from api_client.contract.interruption import Interruption
from api_client.contract.package_parts import collect_parts
from api_client.contract.plugins import INTERRUPTION, UnusablePlugin, find_plugins, make_plugin
from api_client.contract.turn import Turn, TurnRequest
from api_client.interruptions.question import QuestionKind, QuestionView
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

_BUILT_IN: dict[str, QuestionKind] = {kind.name: kind for kind in collect_parts("api_client.interruptions", "KIND")}


def find_question_kind(name: str) -> QuestionKind:
    """Return the kind of question with this name, or a general yes-or-no kind for an unknown name."""
    return _BUILT_IN.get(name) or load_installed_kinds().get(name) or QuestionKind()


@functools.cache
def load_installed_kinds() -> dict[str, QuestionKind]:
    """Load the kinds of questions that installed packages provide, and return them by name."""
    found = {}
    for name in find_plugins(INTERRUPTION):
        try:
            found[name] = make_plugin(INTERRUPTION, name)
        except UnusablePlugin as error:
            log.warning("interruption.not_loaded", kind=name, error=str(error)[:200])
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
