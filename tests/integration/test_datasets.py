"""``turns turn export --rejected`` and ``turns data import-feedback`` over turns that real workers carried out."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.settings import Settings
from tests.installation import Installation, Said

SCRIPT = """
- when: unmarked
  attempts:
    - [{say: "Kurz, mit sk-a1B2a1B2a1B2a1B2a1B2."}]
    - [{say: "Kurz.\\n\\n<!-- STEP: done -->"}]
- when: repaired
  attempts: [[{say: "Was nun?"}]]
- attempts: [[{say: "Kurz.\\n\\n<!-- STEP: done -->"}]]
"""


@pytest.fixture
async def turns(installation: Installation) -> dict[str, str]:
    installation.play(SCRIPT)
    installation.worker()
    found = {}
    for text in ("unmarked", "repaired", "plain"):
        found[text] = await installation.ask(text, text, metadata={"message_id": f"m-{text}"})
    for turn_id in found.values():
        assert (await installation.result(turn_id)).outcome.success
    return found


@pytest.fixture
def run(installation: Installation) -> Callable[..., Said]:
    return installation.command


def rows(text: str) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["turn_id"], row["attempt"]): row for row in map(json.loads, text.splitlines())}


def test_every_rejected_answer_is_a_line_with_its_repair_and_the_final_answer(
    turns: dict[str, str], run: Callable[..., Said], settings: Settings, tmp_path: Path
) -> None:
    code, out, err = run("turn", "export", "--rejected", "--since", "1d")
    found = rows(out)
    assert (code, {turn_id for turn_id, _ in found}) == (0, {turns["unmarked"], turns["repaired"]})
    row = found[turns["unmarked"], 1]
    assert row["messages"][-1]["content"] == row["prompt"]
    assert row["prompt"].startswith("unmarked")
    assert row["answer"].startswith("Kurz, mit ")
    assert "a1B2a1B2" not in out, "credentials are masked"
    assert [issue["code"] for issue in row["issues"]] == ["MISSING_STEP_MARKER"]
    assert (row["decision"], row["repair"], row["outcome"]) == ("retry", None, "passed_after_retry")
    assert row["final"].startswith("Kurz")
    last = max(found[key]["attempt"] for key in found if key[0] == turns["repaired"])
    repaired = found[turns["repaired"], last]
    assert repaired["decision"] == "fallback"
    assert repaired["repair"]["text"].startswith("Was nun?\n\n<!-- STEP: ")
    assert repaired["final"] == repaired["repair"]["text"]
    assert "of 2 turns" in err
    assert "removed by retention" not in err

    code, out, err = run(
        "turn", "export", "--rejected", "--since", "52w", "--redact", "-o", str(tmp_path / "rows.jsonl")
    )
    text = (tmp_path / "rows.jsonl").read_text()
    assert (code, out, len(rows(text))) == (0, "", len(found))
    assert "unmarked" not in text
    assert "HELIX_RETENTION_SECONDS" in err
    assert run("turn", "export", "--rejected", "--model", "another")[1] == ""
    assert run("turn", "export")[0] == run("turn", "export", "turn-x", "--rejected")[0] == 2


def thumb(message_id: str, rating: int, at: float, model: str = "scripted", **data: Any) -> dict[str, Any]:
    """An entry as Open WebUI 0.12.4 exports it."""
    return {
        "id": f"f-{message_id}-{at}",
        "user_id": "u",
        "version": 0,
        "type": "rating",
        "data": {
            "rating": rating,
            "model_id": model,
            "sibling_model_ids": None,
            "reason": None,
            "comment": None,
            **data,
        },
        "meta": {"arena": False, "chat_id": "c", "message_id": message_id, "message_index": 2},
        "snapshot": {"chat": {}},
        "created_at": int(at),
        "updated_at": int(at),
    }


def test_thumbs_are_joined_to_turns_once_and_what_cannot_be_joined_is_named(
    turns: dict[str, str], run: Callable[..., Said], tmp_path: Path
) -> None:
    now = time.time()
    entries = [
        thumb("m-unmarked", 1, now - 9),
        thumb("m-unmarked", -1, now, reason="wrong", comment="not true", details={"rating": 2}),
        thumb("m-plain", 1, now),
        thumb("m-old", -1, now - 90 * 86_400),
        thumb("m-never", 1, now),
        thumb("m-other", 1, now, model="gpt-x"),
        thumb("m-none", 0, now),
        {"type": "rating", "data": None},
    ]
    (tmp_path / "feedback.json").write_text(json.dumps(entries))
    code, out, err = run("data", "import-feedback", str(tmp_path / "feedback.json"), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {turn_id: one["rating"] for turn_id, one in found["joined"].items()} == {
        turns["unmarked"]: -1,
        turns["plain"]: 1,
    }
    assert (found["removed_by_retention"], found["unknown"]) == (["m-old"], ["m-never"])
    assert (found["other_models"], found["without_rating"], found["changed"]) == (1, 2, 2)

    _, out, _ = run("data", "import-feedback", str(tmp_path / "feedback.json"))
    assert "2 turns with a thumb: 1 up, 1 down; 0 of them new" in out
    assert "removed by retention: the turns of 1 thumb (m-old)" in out
    row = rows(run("turn", "export", "--rejected")[1])[turns["unmarked"], 1]
    assert (row["feedback"]["rating"], row["feedback"]["comment"], row["feedback"]["score"]) == (-1, "not true", 2.0)


@pytest.mark.parametrize(("text", "words"), [("{}", "a list of objects"), ("id,user_id", "not JSON"), ("[1]", "list")])
def test_a_file_that_is_no_export_is_refused(run: Callable[..., Said], tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "feedback.json").write_text(text)
    code, out, err = run("data", "import-feedback", str(tmp_path / "feedback.json"))
    assert (code, out) == (2, "")
    assert words in err
