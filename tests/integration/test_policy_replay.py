"""``turns policy replay`` over turns that real workers carried out, and the pure comparison behind it."""

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.installation import Installation, environ_of, web
from tests.installation import asked as message
from tests.support import alive, wait_for, wait_until
from worker.cli import main
from worker.enforcement.policies import read_policy
from worker.enforcement.policy import Policy
from worker.plugins.analysis.policy_replay.comparison import Comparison, RecordedAttempt, RecordedTurn
from worker.plugins.analysis.policy_replay.comparison_run import ComparisonRun, PolicyShare, ValidationProcessDied

ROOT = Path(__file__).parents[2]
SCRIPT = """
- when: long
  attempts: [[{say: "Dies ist eine Antwort mit vielen Worten.\\n\\n<!-- STEP: done -->"}]]
- when: unmarked
  attempts:
    - [{say: "Kurz."}]
    - [{say: "Kurz.\\n\\n<!-- STEP: done -->"}]
- attempts: [[{say: "Kurz.\\n\\n<!-- STEP: done -->"}]]
"""
SHORT = """\
rules:
  - {rule: length, name: short, options: {max_words: 3}}
  - {rule: forbidden, name: no_words, shadow: true, options: {words: [Antwort]}}
"""


@pytest.fixture
async def turns(installation: Installation) -> dict[str, str]:
    installation.play(SCRIPT)
    installation.worker()
    found = {}
    client = installation.client
    for text in ("long", "unmarked", "plain"):
        found[text] = await client.submitter.submit(message(text, text))
    for turn_id in found.values():
        assert (await client.reader.await_result(turn_id, timeout=60)).outcome in {
            Outcome.PASSED,
            Outcome.PASSED_AFTER_RETRY,
        }
    return found


@pytest.fixture
def replay(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> Callable[..., str]:
    for name, value in environ_of(settings).items():
        monkeypatch.setenv(name, value)

    def run(policy: str, *arguments: str) -> str:
        (tmp_path / "policy.yaml").write_text(policy)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["policy", "replay", "--policy", str(tmp_path / "policy.yaml"), *arguments])
        out, err = capsys.readouterr()
        assert not ended.value.code, err
        return out

    return run


def test_it_names_what_another_policy_would_have_rejected_and_accepted(
    turns: dict[str, str], replay: Callable[..., str]
) -> None:
    found = json.loads(replay(SHORT, "--json"))
    assert (found["answers"], found["rejected_now"], found["accepted_now"]) == (4, 1, 1)
    assert (found["by_rule"], found["in_shadow"], found["extra"]["runs"]) == ({"short": 1}, {"no_words": 1}, 1)
    changes = {(each["turn_id"], each["attempt"]): each["rules"] for each in found["changes"]}
    assert changes == {(turns["long"], 1): ["short"], (turns["unmarked"], 1): []}

    lines = replay(SHORT, "--show", "1")
    assert "4 answers judged: 1 accepted then and rejected now (25.0%)" in lines
    assert "at least 1 more run" in lines
    assert replay(SHORT, "--model", "another", "--json").startswith('{"policy": ')
    assert json.loads(replay(SHORT, "--model", "another", "--json"))["answers"] == 0
    assert json.loads(replay(SHORT, "--since", "1s", "--json"))["answers"] <= 4

    same = json.loads(replay("rules: [step_marker, adr_structure, file_existence]", "--json"))
    assert (same["answers"], same["rejected_now"], same["accepted_now"]) == (4, 0, 0)


def test_what_a_rule_prints_is_not_in_the_json(
    turns: dict[str, str], replay: Callable[..., str], settings: Settings
) -> None:
    (settings.root / "own.py").write_text(
        "from worker.enforcement import ResponseValidator\nprint('loaded')\n\n"
        "class Own(ResponseValidator):\n    name = 'own'\n    bounded = True\n"
        "    def validate(self, response, context):\n        print('judged')\n        return []\n"
    )
    assert json.loads(replay("rules: [{rule: own.py}]", "--json"))["answers"] == 4


#: Turns of one flow: warned of after retries, spliced, broken off, with files, handed to a person, by the fallback.
OWN = """\
max_attempts: 2
rules:
  - {rule: step_marker, applies_to: {routes: [turns]}}
  - {rule: length, name: long, reactions: [retry, warn], options: {min_words: 6}}
  - {rule: structure, reactions: [retry, escalate], options: {sections: [Ziel]}, applies_to: {content: [code]}}
  - file_existence
  - adr_structure
  - {rule: forbidden, name: no_words, shadow: true, options: {words: [Antwort]}}
  - {rule: length, name: asked, on_request: true, options: {min_words: 90}}
"""
HEADER = "---\\nadr_id: '7'\\ntitle: Export\\nstatus: Accepted\\n---\\n\\n# ADR-7\\n\\n"
GOOD = "".join(
    f"## {title}\\n\\nEin Satz mit einigen Worten dazu.\\n\\n" for title in ("Kontext", "Entscheidung", "Konsequenzen")
)
END = "## Akzeptanzkriterien\\n\\n- [ ] Ein Satz mit einigen Worten dazu.\\n\\n"
MARKED = "<!-- STEP: done -->"
OWN_SCRIPT = f"""
- when: warned
  attempts: [[{{say: "Kurz. {MARKED}"}}], [{{say: "Auch kurz. {MARKED}"}}]]
- when: marked
  attempts: [[{{say: "Diese Antwort hat genug Worte ohne eine Marke."}}], [{{say: "Und wieder keine Marke."}}]]
- when: spliced
  attempts: [[{{say: "{HEADER}{GOOD}{MARKED}"}}], [{{say: "{END}"}}]]
- when: written
  attempts:
    - - write: {{path: output/ADR-7.md, content: "{HEADER}{GOOD}"}}
      - say: "Es steht nun in der Datei dort. {MARKED}"
    - - write: {{path: output/ADR-7.md, content: "{HEADER}{GOOD}{END}"}}
      - say: "Es steht nun alles in der Datei. {MARKED}"
- when: broken
  attempts: [[{{say: "Diese Antwort hat genug Worte und"}}, cut], [{{say: " geht hier weiter. {MARKED}"}}]]
- when: handed
  attempts: [[{{say: "```python\\nx = 1\\n```\\nEin Satz mit einigen Worten dazu. {MARKED}"}}]]
- attempts: [[{{say: "Eine gute Antwort mit allen Worten darin. {MARKED}"}}]]
"""


async def test_a_policy_decides_on_its_own_turns_again_as_the_workers_did(
    installation: Installation, replay: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    installation.play(OWN_SCRIPT, policy=str(tmp_path / "own.yaml"))
    installation.worker()
    asked = ("warned", "marked", "spliced", "written", "broken", "handed", "plain")
    client = installation.client
    ids = [await client.submitter.submit(message(text, text)) for text in asked]
    suspended = await wait_until(client.inbox.list_suspended)
    await client.inbox.decide_turn(suspended[0].turn_id, "approve", by="anna")
    ends = {text: await client.reader.await_result(each, timeout=60) for text, each in zip(asked, ids, strict=True)}
    judged = [await client.reader.read_attempts(turn_id) for turn_id in ids]
    outcomes = [f"{end.outcome} {end.error.message if end.error else ''}".strip() for end in ends.values()]
    retried = "passed_after_retry"
    assert outcomes == [retried, "passed_by_fallback", retried, retried, retried, "passed_by_human", "passed"]
    answers = [each for attempts in judged for each in attempts if each.completion["verdict"] == "complete"]
    assert len(answers) == 12
    found = json.loads(await asyncio.to_thread(replay, OWN, "--json"))
    assert found["answers"] == len(answers)
    assert (found["rejected_now"], found["accepted_now"], found["extra"]["runs"], found["changes"]) == (0, 0, 0, [])
    assert found["in_shadow"] == {"no_words": 3}


def test_many_answers_are_judged_by_several_processes_with_the_same_result(settings: Settings, tmp_path: Path) -> None:
    policy = read_policy(SHORT + ENDLESS)
    texts = ["a b", "one two three four", "Antwort", "a" * 60 + "!"] * 20
    answers = [RecordedTurn(turn_id=f"t{n}", attempts=(RecordedAttempt(text=text),)) for n, text in enumerate(texts)]
    found = []
    for processes in (1, 3):
        comparison = Comparison(most=9)
        with ComparisonRun(policy, settings, comparison, processes) as judging:
            for answer in answers:
                judging.add_turn(answer, GIVEN)
            judging.finish()
        found.append(comparison.to_dict())
    assert found[0] == found[1]
    assert (found[0]["answers"], found[0]["rejected_now"], found[0]["in_shadow"]) == (80, 20, {"no_words": 20})
    assert [change["turn_id"] for change in found[0]["changes"]] == [f"t{n}" for n in range(1, 36, 4)]


#: A rule of no known bound: it works in a child of the process that judges.
ENDLESS = "  - {rule: regex, options: {must_not: ['^[ab]*x$']}}\n"
GIVEN = PolicyShare(names=("short", "regex"), shadow=("no_words",), policy=Policy(locale="en"))

#: Judges without an end, and says which processes do.
JUDGING = """
import multiprocessing, signal
from itertools import count
from api_client.contract.settings import Settings
from tests.integration.test_policy_replay import ENDLESS, SHORT
from tests.integration.test_policy_replay import GIVEN
from worker.enforcement.policies import read_policy
from worker.plugins.analysis.policy_replay.comparison import Comparison, RecordedTurn, RecordedAttempt
from worker.plugins.analysis.policy_replay.comparison_run import ComparisonRun
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started all of this with it ignored
    with ComparisonRun(read_policy(SHORT + ENDLESS), Settings(), Comparison(), 2) as judging:
        for number in count():
            judging.add_turn(RecordedTurn(turn_id="t", attempts=(RecordedAttempt(text="a " * 99),)), GIVEN)
            if number == 200:
                print(*(child.pid for child in multiprocessing.active_children()), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_the_command_ends_the_processes_that_judge(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "judging.py"
    script.write_text(JUDGING)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HELIX_ROOT": str(tmp_path), "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(
        [sys.executable, str(script)],
        env=environ,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    below: list[int] = []
    try:
        assert running.stdout
        pids = [int(word) for word in running.stdout.readline().split()]
        assert len(pids) == 2
        below += pids
        for pid in pids:  # each has a child for the rule of no known bound
            below += wait_for(lambda pid=pid: children_of(pid))
        assert len(below) == 4
        running.send_signal(number)
        running.wait(60)
        running.stdout.close()
        wait_for(lambda: not any(map(alive, below)))
    finally:
        running.kill()
        running.wait()
        for pid in filter(alive, below):
            os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_process_that_is_killed_while_it_judges_is_named(settings: Settings) -> None:
    with ComparisonRun(read_policy(SHORT), settings, Comparison(), 1) as judging:
        give = RecordedTurn(turn_id="t", attempts=(RecordedAttempt(text="x"),))
        for _ in range(16):
            judging.add_turn(give, GIVEN)
        [child] = multiprocessing.active_children()
        assert child.pid
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        with pytest.raises(ValidationProcessDied, match=r"exit code -9"):
            judging.finish()


async def test_the_page_shows_the_result_with_the_texts_and_says_what_retention_removed(
    turns: dict[str, str], replay: Callable[..., str], settings: Settings
) -> None:
    page = json.loads(await asyncio.to_thread(replay, SHORT, "--json"))["page"]
    async with TurnsClient(settings) as client, web(settings, client) as http:
        listed = (await http.get("/policies")).text
        assert page in listed
        assert "policy.yaml" in listed
        shown = (await http.get(page)).text
        assert "Dies ist eine Antwort mit vielen Worten." in shown
        assert "rejected now" in shown
        assert f'href="/turns/{turns["long"]}"' in shown
        keys = Keys(settings.namespace)
        await client.store.redis.delete(keys.turn(turns["long"]), keys.attempts(turns["long"]))
        assert "This answer was deleted after the retention period." in (await http.get(page)).text
        assert (await http.get("/policies/none")).status_code == 404
