"""The rule ``claims``: which words are claims, and what contradicts them. Real runs: ``python -m tests.lab.claims``."""

import pytest

from tests.lab.claims import wordings
from worker.enforcement.attempt_validation import validate_attempt
from worker.enforcement.tool_call_log import (
    Counts,
    ToolCall,
    ToolCallLog,
    ToolCallRecorder,
    find_identifiers,
    parse_test_counts,
    runs_tests,
)
from worker.plugins.claims.rule import ClaimsRule, join_logs
from worker.plugins.claims.statements import find_statements

EMPTY = ToolCallLog()
FAILED = ToolCallLog(calls=(ToolCall(kind="write", what="app.py", ok=False),))


def ran(command: str, *, ok: bool = True, code: int | None = None, output: str = "") -> ToolCallLog:
    writer = ToolCallRecorder()
    writer.begin("1", "run", command)
    writer.end("1", ok=ok, code=code, output=output)
    return writer.log


def wrote(*paths: str) -> ToolCallLog:
    return ToolCallLog(calls=tuple(ToolCall(kind="write", what=path, ok=True) for path in paths))


def about(*logs: ToolCallLog | None) -> dict[str, list[dict[str, object]]]:
    """The context of an answer whose runs have these logs."""
    return {"evidence": [{"claims": log.to_dict()} if log else {} for log in logs]}


def codes(answer: str, log: ToolCallLog | None = EMPTY, **options: object) -> list[str]:
    found = ClaimsRule(**options).validate(answer, {**about(log), "locale": "en"})  # type: ignore[arg-type]
    return [issue.code for issue in found]


CLAIMS = [
    form.format(file="src/new.py", other="src/old.py", n=7, command="make lint")
    for said in (wordings.DESIGNED, wordings.HELD_OUT)
    for forms in said.values()
    for form in forms
]
NONE = [*wordings.NO_CLAIM_DESIGNED, *wordings.NO_CLAIM_HELD_OUT]


@pytest.mark.parametrize("answer", CLAIMS)
def test_a_run_that_did_nothing_contradicts_every_claim(answer: str) -> None:
    assert codes(answer)


@pytest.mark.parametrize("form", NONE)
def test_plans_advice_denials_and_quotes_claim_nothing(form: str) -> None:
    assert codes(form.format(ghost="src/new.py", unrun="make lint")) == []


@pytest.mark.parametrize("answer", CLAIMS)
def test_a_runner_without_tool_events_is_never_rejected(answer: str) -> None:
    found = ClaimsRule().validate(answer, {"locale": "en"})
    assert [(issue.code, issue.is_error) for issue in found] == [("CLAIMS_NOT_CHECKABLE", False)]


def test_feedback_names_the_claim_and_the_evidence() -> None:
    log = ran("pytest -q", ok=False, code=1, output="1 failed, 11 passed in 0.1s")
    (issue,) = ClaimsRule().validate("Done.\n\nAll 12 tests pass.", {**about(log), "locale": "en"})
    assert issue.message == (
        "You say: 'All 12 tests pass'; the last `pytest -q` ended with: exit code 1, 1 failed, 11 passed"
    )
    assert (issue.code, issue.line, issue.fix_hint) == ("CLAIMED_TESTS_FAILED", 3, "Run it again, or state the result")


def test_an_answer_that_takes_its_claim_back_takes_the_place_of_the_first() -> None:
    context = {**about(EMPTY), "locale": "en"}
    first = validate_attempt(
        [], "I created `a.py`. " + "It reads the settings and prints them, one a line. " * 6, [ClaimsRule()], context
    )
    second = validate_attempt([first], "I have not created the file yet.", [ClaimsRule()], context)
    assert (len(first.errors), second.answer, second.errors) == (1, "I have not created the file yet.", ())


@pytest.mark.parametrize(
    ("answer", "log", "expected"),
    [
        ("I created `app.py`.", wrote("output/app.py"), []),
        ("I created `/srv/x/output/app.py`.", wrote("output/app.py"), []),
        ("I created `my_app.py`.", wrote("output/app.py"), ["CLAIMED_FILE_NOT_THERE"]),
        ("I updated `a/app.py`.", wrote("b/app.py"), ["CLAIMED_FILE_NOT_THERE"]),
        ("I updated `app.py`.", ToolCallLog(files={"app.py": "there"}), ["CLAIMED_FILE_NOT_CHANGED"]),
        ("I updated `app.py`.", ToolCallLog(files={"app.py": "changed"}), []),
        ("I created `app.py`.", FAILED, ["CLAIMED_FILE_NOT_THERE"]),
        ("I created `/tmp/app.py`.", ran("echo x > /tmp/app.py"), []),
        ("I created `app.py`.", ToolCallLog(calls=(ToolCall(kind="other", what="mcp__fs__write", ok=True),)), []),
        ("I created `app.py`.", ToolCallLog(whole=False), []),
        ("All tests pass.", ran("ls tests"), ["CLAIMED_TESTS_NOT_RUN"]),
        ("All tests pass.", ran("ruff check ."), ["CLAIMED_TESTS_NOT_RUN"]),
        ("All tests pass.", ran("./go.sh", output="12 passed in 0.1s"), []),
        ("All tests pass.", ran("pytest | tail", output="1 failed, 2 passed in 0.1s"), ["CLAIMED_TESTS_FAILED"]),
        ("All tests pass.", ran("pytest || true", output="2 passed in 0.1s"), []),
        ("All tests pass.", ran("pytest", ok=False, code=1) + ran("pytest", output="3 passed in 1s"), []),
        ("All 12 tests pass.", ran("pytest", output="11 passed in 0.1s"), ["CLAIMED_TEST_COUNT"]),
        ("The 4 new tests pass.", ran("pytest", output="11 passed in 0.1s"), []),
        ("All 12 tests pass.", ran("go test ./...", output="ok  \tpkg\t0.1s"), []),
        ("All 9 tests pass.", ran("pytest a", output="5 passed in 1s") + ran("pytest b", output="4 passed in 1s"), []),
        ("I ran `pytest -q`.", ran("cd x && python -m pytest -q 2>&1 | tail"), []),
        ("I ran `make lint`.", ran("make test"), ["CLAIMED_COMMAND_NOT_RUN"]),
        ("`make lint` passes.", ran("make lint", ok=False, code=2), ["CLAIMED_COMMAND_FAILED"]),
        ("I created 2 files.", wrote("a.py", "output/a.py", "b.py"), []),
        ("I created 3 files.", wrote("a.py", "b.py"), ["CLAIMED_FILE_COUNT"]),
        ("I created 2 test files.", wrote("a.py", "b.py", "c.py"), []),
    ],
)
def test_a_claim_is_compared_with_the_log(answer: str, log: ToolCallLog, expected: list[str]) -> None:
    assert codes(answer, log) == expected


@pytest.mark.parametrize("name", ["a.rs", "a.cpp", "a.json", "a.mdx", "a.tsx", "a.h", "Makefile"])
def test_a_file_in_a_list_is_known_by_its_whole_ending(name: str) -> None:
    assert codes(f"Created files:\n\n- `{name}`") == ["CLAIMED_FILE_NOT_THERE"]


def test_a_command_that_was_not_let_run_did_not_run() -> None:
    refused = ToolCallLog(calls=(ToolCall(kind="run", what="pytest", ok=False, ran=False, tests=True),))
    assert codes("I ran `pytest`.", refused) == ["CLAIMED_COMMAND_NOT_RUN"]
    assert codes("All tests pass.", refused) == ["CLAIMED_TESTS_NOT_RUN"]


def test_the_operator_names_commands_that_run_tests() -> None:
    assert codes("All tests pass.", ran("bazel run //x")) == ["CLAIMED_TESTS_NOT_RUN"]
    assert codes("All tests pass.", ran("bazel run //x"), tests=("bazel run",)) == []


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("=== 1 failed, 11 passed, 2 warnings in 0.10s ===", (11, 1)),
        ("\x1b[32m3 passed\x1b[0m in 0.1s", (3, 0)),
        ("Tests:       1 failed, 11 passed, 12 total\n", (11, 1)),
        ("Ran 12 tests in 0.1s\n\nFAILED (failures=1, errors=2)", (9, 3)),
        ("Ran 2 tests in 0.1s\n\nOK", (2, 0)),
        ("test result: ok. 3 passed; 0 failed;\ntest result: FAILED. 1 passed; 2 failed;", (4, 2)),
        ("# pass 3\n# fail 1\n", (3, 1)),
        ("  12 passing (10ms)\n  1 failing\n", (12, 1)),
        ("Tests run: 12, Failures: 1, Errors: 0", (11, 1)),
        ("12 examples, 2 failures", (10, 2)),
        ("OK (12 tests, 20 assertions)", (12, 0)),
        ("100% tests passed, 0 tests failed out of 12", (12, 0)),
        ("the 12 passed the 3", None),
    ],
)
def test_the_summary_of_a_test_runner_is_counted(output: str, counts: tuple[int, int] | None) -> None:
    assert parse_test_counts(output) == (Counts(*counts) if counts else None)


def test_commands_that_run_tests_are_known_by_their_words() -> None:
    runs = ["pytest", "make check", "npm run test:unit", "python -m unittest", "cd a && cargo test", "./run_tests.sh"]
    others = ["ls tests", "cat tests/a.py", "git add tests", "npm install jest", "pytest --version", "ruff check ."]
    assert [command for command in (*runs, *others) if runs_tests(command)] == runs


def test_a_tool_call_log_is_stored_and_read_again() -> None:
    log = ran("pytest", ok=False, code=0, output="1 failed, 2 passed in 1s") + wrote("a.py")
    kept = log + ToolCallLog(files={"a.py": "changed", "b.py": "missing"}, whole=False)
    assert ToolCallLog.read(kept.to_dict()) == kept
    assert kept.to_dict(lambda text: text.replace("pytest", "***"))["calls"][0]["what"] == "***"
    assert ToolCallLog.read({}) is None
    assert ToolCallLog.read({"calls": 1, "files": {}, "whole": True}) is None
    assert join_logs(about(kept)) == kept
    assert join_logs(about(kept, None)) is None


def test_the_newest_calls_of_a_long_run_are_kept_and_that_is_said() -> None:
    writer = ToolCallRecorder()
    for number in range(500):
        writer.begin(str(number), "read", "x")
    assert (len(writer.log.calls), writer.log.whole) == (400, False)


def test_claims_are_found_in_a_time_that_grows_with_the_text() -> None:
    assert len(find_statements("I created `a.py`.\n\n" * 400)) == 200


def sent(*names: str, ok: bool | None = True, ran: bool = True) -> ToolCallLog:
    """The log of a call through the tool gateway, with these identifiers in its arguments and result."""
    return ToolCallLog(calls=(ToolCall(kind="sent", what="jira.create", ok=ok, ran=ran, names=names),))


NOT_MADE = ["CLAIMED_CALL_NOT_MADE"]


@pytest.mark.parametrize(
    ("answer", "log", "expected"),
    [
        ("I created ticket OPS-12.", EMPTY, NOT_MADE),
        ("I created ticket OPS-12.", sent("OPS-12"), []),
        ("I created ticket `OPS-12`.", sent("12"), []),
        ("I created ticket **ops-12** for this.", sent("OPS-13", "7"), NOT_MADE),
        ("I've opened a pull request (#45).", sent("45"), []),
        ("I've opened a pull request (#45).", sent("46"), NOT_MADE),
        ("I have filed an issue about it.", sent("46"), []),
        ("I created ticket OPS-12.", sent("OPS-12", ok=False), NOT_MADE),
        ("I created ticket OPS-12.", sent("OPS-12", ok=None), []),
        ("I created ticket OPS-12.", sent(ok=False, ran=False), NOT_MADE),
        ("I created ticket OPS-12.", sent(*find_identifiers(" ".join(map(str, range(200))))), []),
        ("I created ticket OPS-12.", ToolCallLog(whole=False), []),
        ("I created ticket OPS-12.", ToolCallLog(calls=(ToolCall(kind="read", what="jira.list", ok=True),)), NOT_MADE),
        ("I created ticket OPS-12.", ToolCallLog(calls=(ToolCall(kind="other", what="mcp__x__y", ok=True),)), []),
        ("I opened a pull request.", ran("gh pr create"), []),
        ("I opened a pull request.", ran("git push -o merge_request.create"), []),
        ("I opened a pull request.", ran("cat a.md | grep x") + ran("pytest -q"), NOT_MADE),
        ("- Sent the e-mail to Anna", EMPTY, NOT_MADE),
        ("Ich habe das Ticket OPS-12 angelegt.", EMPTY, NOT_MADE),
        ("Ich habe die E-Mail an Anna gesendet.", sent(), []),
        ("Ticket OPS-12 angelegt.", EMPTY, NOT_MADE),
        ("I scheduled the meeting for Monday.", EMPTY, NOT_MADE),
        ("I created `app.py`.", sent(), []),
        *[
            (answer, EMPTY, [])
            for answer in (
                "You can open a ticket.",
                "I have not created a ticket.",
                "I created a class for tickets.",
                "I would have opened an issue.",
                "Anna opened PR #4 last week.",
                "The ticket OPS-12 was closed.",
                "I opened the door to messages.",
                "Shall I create a ticket?",
                "Ich lege kein Ticket an.",
                "I updated the error message.",
                "I plan to send an e-mail.",
            )
        ],
    ],
)
def test_a_statement_about_a_record_elsewhere_needs_a_call_that_may_have_made_it(
    answer: str, log: ToolCallLog, expected: list[str]
) -> None:
    assert codes(answer, log) == expected


def test_what_the_gateway_saw_replaces_the_agents_own_word_however_the_agent_names_the_tool() -> None:
    names = ("mcp__helix__jira__create_issue", "jira__create_issue", "helix_jira_create_issue", "mcp__other__write")
    own = ToolCallLog(calls=tuple(ToolCall(kind="other", what=name, ok=True) for name in names))
    seen = ToolCallLog(calls=(ToolCall(kind="sent", what="jira.create_issue", ok=True, names=("OPS-1",)),))
    joined = own.with_observed(seen)
    assert [call.what for call in joined.calls] == ["mcp__other__write", "jira.create_issue"]
    assert ToolCallLog.read(joined.to_dict()) == joined
