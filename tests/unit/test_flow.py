"""Which flow version a session has: by share, kept, and moved only where it must be."""

import random
from collections import Counter

import pytest

from api_client.contract.question_language import _ENGLISH, _GERMAN, detect_language
from api_client.contract.settings import Settings
from api_client.policies.flows import Rollback, active_versions, choose_flow
from tests.lab.bench.rules.splits import called_real, session
from worker.cli.installation.scenes import SCENES
from worker.plugins.analysis.versions import FEWEST, compare_versions

SESSIONS = [f"s-{number}" for number in range(4000)]


def spread(versions: dict[str, int]) -> dict[str, str]:
    return {session: choose_flow(session, versions) for session in SESSIONS}


def test_sessions_are_spread_as_the_weights_say() -> None:
    found = Counter(spread({"v2": 9, "v3": 1}).values())
    assert 300 < found["v3"] < 500
    assert Counter(spread({"v2": 1, "v3": 1, "off": 0}).values()).keys() == {"v2", "v3"}


def test_a_larger_share_moves_sessions_to_its_version_alone() -> None:
    few, many = spread({"v2": 9, "v3": 1}), spread({"v2": 1, "v3": 1})
    moved = {(few[session], many[session]) for session in SESSIONS if few[session] != many[session]}
    assert moved == {("v2", "v3")}


def test_a_rollback_moves_the_sessions_of_that_version_alone_and_they_come_back() -> None:
    versions = {"v2": 2, "v3": 1, "v4": 1}
    before, after = spread(versions), spread(active_versions(versions, {"v3"}))
    assert all(after[session] == flow for session, flow in before.items() if flow != "v3")
    assert {after[session] for session, flow in before.items() if flow == "v3"} == {"v2", "v4"}
    assert spread(active_versions(versions, ())) == before


def test_where_no_version_with_a_weight_is_left_the_others_get_turns() -> None:
    assert active_versions({"v2": 0, "v3": 1}, {"v3"}) == {"v2": 1}
    assert active_versions({"v2": 0, "v3": 1}, ()) == {"v3": 1}
    assert active_versions({"v2": 0, "v3": 1}, {"v2", "v3"}) == {"v3": 1}


def test_what_is_stored_of_a_rollback_reads_back() -> None:
    said = Rollback(at=1.5, by="anna@host", why="too slow")
    assert Rollback.from_json(said.to_json()) == said


# Two versions beside each other: equal ones are rarely called different, different ones are.


def test_of_a_thousand_splits_of_equal_turns_at_most_five_percent_are_called_different() -> None:
    assert called_real(1000) <= 50


def test_a_version_that_fails_more_often_is_found_and_few_sessions_say_nothing() -> None:
    drawn = random.Random(16)
    turns = [turn for n in range(300) for turn in session(drawn, f"a{n}", "v2")]
    turns += [turn for n in range(300) for turn in session(drawn, f"b{n}", "v3", failing=0.15)]
    found = {figure.name: figure for figure in compare_versions(turns, "v2", "v3").figures}
    assert found["failure"].real
    assert found["failure"].change.low > 0.05
    few = [turn for turn in turns if int(turn.session_id[1:]) < FEWEST - 1]
    assert not any(figure.real for figure in compare_versions(few, "v2", "v3").figures)


# The language of a question is seen from its commonest words.

FENCE = "```\nthe connection was refused by the server, and it is not there\n```"


@pytest.mark.parametrize(
    ("question", "language"),
    [
        *((getattr(scene, language), language) for scene in SCENES for language in ("de", "en")),
        ("Hallo", "de"),
        ("Warum?", "de"),
        ("Ich will kündigen", "de"),
        ("Was ist das?", "de"),
        ("Explain it.", "en"),
        ("Which workers die?", "en"),
        (f"Erkläre mir diesen Fehler:\n{FENCE}", "de"),
        ('Translate "der Hund und die Katze" into Latin, please', "en"),
        ("> das ist nicht wahr und war es nie\n\nCheck this", "en"),
        ("ADR-007", ""),
        ("", ""),
        ("¿Cómo funciona esto?", ""),
        ("Pourquoi le serveur ne répond pas ?", ""),
    ],
)
def test_a_question_shows_its_language(question: str, language: str) -> None:
    assert detect_language([question]) == language


def test_the_newest_message_that_shows_a_language_decides() -> None:
    assert detect_language(["ok", "Und warum?", "Write an ADR."]) == "de"
    assert detect_language(["ok", "Why is that?", "Schreib ein ADR."]) == "en"


def test_no_word_is_of_both_languages() -> None:
    assert not _GERMAN & _ENGLISH


def test_without_a_sign_it_is_english() -> None:
    assert Settings().locale == "en"
