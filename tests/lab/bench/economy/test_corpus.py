"""The bench itself: its broken answers are broken, its oracle sees it, it plays as ``ResponseEnforcer`` does."""

from collections import Counter
from pathlib import Path

import pytest

from tests.lab.bench.economy.answers import facts
from tests.lab.bench.economy.behaviours import AGENTS
from tests.lab.bench.economy.corpus import SIZES, Case, cases
from tests.lab.bench.economy.oracle import lost, problems
from tests.lab.bench.economy.play import lay_out, play, play_enforcer
from tests.lab.bench.economy.request import Request, read

CASES = list(cases())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    lay_out(folder)
    return folder


def test_two_hundred_answers_of_sixteen_kinds_and_more_in_two_languages_and_six_sizes() -> None:
    assert len(CASES) == 200
    assert len({case.kind for case in CASES}) >= 16
    assert Counter(case.good.lang for case in CASES) == {"de": 100, "en": 100}
    for size in SIZES:
        lengths = [len(case.good.text()) for case in CASES if case.size == size]
        assert len(lengths) >= 32
        assert all(size * 0.7 <= length <= max(size * 1.3, size + 500) for length in lengths)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_oracle_finds_the_good_answer_good_and_the_broken_one_broken(case: Case, root: Path) -> None:
    assert problems(case.good.text(), is_adr=case.good.is_adr, root=root) == []
    assert case.first != case.good.text()
    if case.kind == "warnings_only":
        assert problems(case.first, is_adr=True, root=root) == []
    else:
        assert problems(case.first, is_adr=case.good.is_adr, root=root)


def test_the_oracle_misses_each_sentence_that_is_gone() -> None:
    good = CASES[0].good
    dropped = good.without(good.sections[-1][0]).text()

    assert lost([good.text()], good.text()) == set()
    assert lost([good.text()], dropped) == facts(good.sections[-1][1])


def test_a_model_reads_what_is_asked_for_from_the_words_alone() -> None:
    parts = "Fehler: nur ein Test.\nSchicke dabei nur den STEP-Marker, die Section '## Kontext': Der Rest bleibt."
    assert read(parts) == Request(marker=True, sections=("Kontext",))
    assert read("Send only the whole YAML header (with its --- lines): the rest is kept.") == Request(header=True)
    assert read("Bitte wiederhole deine Antwort mit den Korrekturen.").whole
    assert read("Setze deine Antwort fort:\n\n> letzte Zeile\n> und ein St") == Request(
        quoted="letzte Zeile\nund ein St"
    )


@pytest.mark.parametrize("behaviour", AGENTS)
async def test_response_enforcer_comes_to_the_same_end_as_the_pure_functions(behaviour: str, root: Path) -> None:
    for case in CASES[::7]:
        pure = play(case, AGENTS[behaviour], root)
        assert await play_enforcer(case, AGENTS[behaviour], root) == pure, case.name
