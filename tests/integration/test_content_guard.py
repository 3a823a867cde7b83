"""The engine on a real store: text and files that no issue named survive whatever the agent says when asked again."""

from api_client.contract.turn import Outcome
from tests.integration.engine import NO_MARKER, Bench, Play, says
from tests.unit.enforcement.samples import ADR
from worker.runners.base import Emit, Order, RunResult, Stop

MARKER = "<!-- STEP: done -->"
NAME = "ADR-040.md"
LACKING = ADR.replace("## Entscheidung\n\nWir nehmen einen Cache.\n\n", "")


def leaves(text: str, said: str) -> Play:
    """Writes an ADR into its delivery's folder and says something."""

    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        (order.directory / "output" / NAME).write_text(text)
        return says(said)(order, emit, stop)

    return play


def published(bench: Bench) -> str:
    [session] = bench.settings.sessions_dir.iterdir()
    return (session / "output" / NAME).read_text()


async def test_a_file_stays_when_only_the_marker_is_asked_for(bench: Bench) -> None:
    turn = await bench.outcome(leaves(ADR, NO_MARKER), says(MARKER))
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    assert published(bench) == ADR


async def test_a_file_that_no_issue_named_is_not_replaced(bench: Bench) -> None:
    turn = await bench.outcome(leaves(ADR, NO_MARKER), leaves("Kurz gesagt: ein Cache.", MARKER))
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    assert published(bench) == ADR


async def test_of_a_file_whose_section_is_missing_only_that_section_is_taken(bench: Bench) -> None:
    other = ADR.replace("Die Suche ist langsam.", "Anders.")
    turn = await bench.outcome(leaves(LACKING, f"Siehe Datei.\n\n{MARKER}"), leaves(other, f"Habe ich.\n\n{MARKER}"))
    assert (turn.outcome, turn.response) == (Outcome.PASSED_AFTER_RETRY, f"Siehe Datei.\n\n{MARKER}")
    assert published(bench) == ADR


async def test_a_faulty_file_does_not_pass_by_being_left_out(bench: Bench) -> None:
    turn = await bench.outcome(leaves(LACKING, f"Siehe Datei.\n\n{MARKER}"), *[says(f"Fertig.\n\n{MARKER}")] * 2)
    assert turn.outcome is Outcome.FAILED
    assert {issue.code for issue in turn.error.issues} == {"MISSING_ADR_SECTION"}


async def test_a_file_stays_when_the_fallback_mends_the_answer(bench: Bench) -> None:
    turn = await bench.outcome(leaves(ADR, "Welchen willst du?"), *[says("Welchen willst du denn?")] * 2)
    assert turn.outcome is Outcome.PASSED_BY_FALLBACK
    assert published(bench) == ADR


async def test_the_engine_keeps_an_adr_that_talk_would_replace(bench: Bench) -> None:
    talk = "Ich habe alles ergänzt, wie gewünscht. " * 8
    turn = await bench.outcome(says(f"{LACKING}\n{MARKER}"), *[says(f"{talk}\n{MARKER}")] * 2)
    assert turn.outcome is Outcome.FAILED
    assert {issue.code for issue in turn.error.issues} == {"MISSING_ADR_SECTION"}


async def test_the_engine_takes_a_section_as_models_send_it(bench: Bench) -> None:
    reply = "Hier:\n\n```markdown\n### **Entscheidung:**\n\nWir nehmen einen Cache.\n```\n\nDer Rest bleibt."
    turn = await bench.outcome(says(f"{LACKING}\n{MARKER}"), says(reply))
    assert (turn.outcome, turn.response) == (Outcome.PASSED_AFTER_RETRY, f"{ADR}\n{MARKER}")
