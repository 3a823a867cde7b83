"""The gates over real files and with real processes: what is wrong is named with file and line; nothing is followed."""

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.phase import Phase
from tests.support import processes_with, wait_for
from worker.verification import CheckInterrupted, GateReport, StopRequest, iterate_gates, run_gates
from worker.verification.gates.gate_codes import CODES

#: Marks are found on the whole machine: each run of these tests has its own.
RUN = f"test-{secrets.token_hex(4)}"
ADR = """---
adr_id: "001"
title: Rechnungen
status: Proposed
---

# ADR-001: Rechnungen

## Kontext

Es gibt Rechnungen.

## Entscheidung

Wir legen sie ab.

## Akzeptanzkriterien

- [ ] eins
- [ ] zwei
- [ ] drei
"""

Check = Callable[..., GateReport]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "phase" / "output"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def checked(output: Path, tmp_path: Path) -> Check:
    """Write files, then check them: ``checked({"a.py": "..."}, "tests_pass", output_files=["a.py"])``."""

    def run(files: dict[str, str | bytes], *gates: Any, stop: StopRequest | None = None, **values: Any) -> GateReport:
        for name, content in files.items():
            path = output / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        phase = Phase.from_dict({"id": "p", "description": "d", "quality_gate": list(gates), **values})
        report = run_gates(
            phase,
            output,
            stop=stop or StopRequest(),
            locale="en",
            scratch=tmp_path / "scratch",
            mark=f"{RUN}-{tmp_path.name}",
        )
        assert list((tmp_path / "scratch").glob("*")) == [], "a gate left its copy behind"
        return report

    return run


def found(report: GateReport) -> list[tuple[str, str, int]]:
    return [(issue.code, issue.file, issue.line) for issue in report.issues]


def test_expected_files_must_be_there_and_hold_something(checked: Check) -> None:
    report = checked({"reports.md": "x", "empty.md": ""}, output_files=["report.md", "empty.md", "reports.md"])
    assert found(report) == [("MISSING_FILE", "report.md", 0), ("EMPTY_FILE", "empty.md", 0)]
    assert "there is 'reports.md'" in report.issues[0].fix_hint
    assert not report.passed


def test_a_gate_may_expect_further_files(checked: Check) -> None:
    report = checked({"a.md": "x"}, {"type": "files_exist", "files": ["b.md"]}, output_files=["a.md"])
    assert found(report) == [("MISSING_FILE", "b.md", 0)]
    assert [result.gate for result in report.results] == ["files_exist", "syntax"]


def test_no_output_at_all_does_not_pass(checked: Check, output: Path) -> None:
    assert found(checked({})) == [("NO_OUTPUT", "", 0)]
    output.rmdir()
    assert found(checked({})) == [("NO_OUTPUT", "", 0)]


def test_links_out_of_the_folder_are_an_issue_and_are_not_followed(
    checked: Check, output: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("def broken(:\n")
    (output / "out.py").symlink_to(secret)
    (output / "folder").symlink_to(tmp_path)
    (output / "inside.md").symlink_to("a.md")
    report = checked({"a.md": "x"}, output_files=["out.py", "inside.md"])
    assert found(report) == [
        ("LINK_LEAVES", "folder", 0),
        ("LINK_LEAVES", "out.py", 0),
        ("LINK_NOT_FOLLOWED", "inside.md", 0),
        ("MISSING_FILE", "out.py", 0),
        ("MISSING_FILE", "inside.md", 0),
    ]


def test_pipes_and_second_names_are_no_files(checked: Check, output: Path, tmp_path: Path) -> None:
    os.mkfifo(output / "pipe.py")
    (tmp_path / "other").write_text("x")
    (output / "other.md").hardlink_to(tmp_path / "other")
    assert found(checked({"a.md": "x"})) == [("NO_REGULAR_FILE", "other.md", 0), ("NO_REGULAR_FILE", "pipe.py", 0)]


def test_an_output_folder_that_is_a_link_is_refused(checked: Check, output: Path, tmp_path: Path) -> None:
    output.rename(tmp_path / "elsewhere")
    output.symlink_to(tmp_path / "elsewhere")
    assert found(checked({"a.md": "x"})) == [("NO_OUTPUT", "", 0)]


def test_files_that_do_not_parse_are_named_with_their_line(checked: Check) -> None:
    report = checked(
        {
            "a.py": "x = 1\ndef f(:\n",
            "sub/b.yaml": "a: 1\nb: [1, 2\n",
            "c.json": '{"a": 1,\n}',
            "nan.json": "[NaN]",
            "latin.md": b"gut\nsch\xf6n\n",
            "alias.yml": "a: *nowhere\n",
            "nul.py": b"x = 1\0\n",
            "good.py": "print('never run')\nraise SystemExit(1)\n",
            "good.yaml": "--- !Custom\na: &x 1\n--- \nb: 2\n",
            "good.json": "{}",
            ".git/broken.py": "def (",
            "node_modules/x/broken.json": "{",
        }
    )
    assert sorted(found(report)) == [
        ("JSON_SYNTAX", "c.json", 2),
        ("JSON_SYNTAX", "nan.json", 0),
        ("NOT_UTF8", "latin.md", 2),
        ("PYTHON_SYNTAX", "a.py", 2),
        ("PYTHON_SYNTAX", "nul.py", 0),
        ("YAML_SYNTAX", "alias.yml", 1),
        ("YAML_SYNTAX", "sub/b.yaml", 3),
    ]
    assert {issue.validator for issue in report.issues} == {"syntax"}


def test_a_phase_may_leave_files_out_of_the_syntax_gate(checked: Check) -> None:
    assert checked({"tsconfig.json": "// x\n{}", "a.md": "x"}, {"type": "syntax", "ignore": ["tsconfig.json"]}).passed


def test_markdown_links_lead_to_files_of_the_output(checked: Check) -> None:
    text = """# Über uns & mehr

[gut](docs/b.md) [ordner](docs) ![bild](docs/fehlt.png)
[web](https://example.org/x.md) [post](mailto:a@b.c) [hier](#über-uns--mehr)
[weg](docs/b.md#nirgends) [oben](../x.md) [wurzel](/etc/passwd)

`[kein link](nowhere.md)`

[ref]: fehlt.md

Siehe [ref].
"""
    report = checked({"a.md": text, "docs/b.md": "# B\n\n[zurück](../a.md#über-uns--mehr)\n"})
    assert sorted(found(report), key=lambda each: each[2]) == [
        ("BROKEN_LINK", "a.md", 3),
        ("BROKEN_ANCHOR", "a.md", 5),
        ("LINK_UNCHECKED", "a.md", 5),
        ("LINK_UNCHECKED", "a.md", 5),
        ("BROKEN_LINK", "a.md", 11),
    ]


@pytest.mark.parametrize(
    "content", ["(" * 200_000, "x = " + "-" * 400_000 + "1", "a = " + "[" * 90_000, "x" + "+x" * 300_000]
)
def test_a_file_that_takes_the_parser_down_is_blamed_and_the_others_are_still_checked(
    checked: Check, content: str
) -> None:
    report = checked({"bomb.py": content, "z.json": "{"})
    bomb, other = report.issues
    assert (bomb.file, bomb.code in {"PYTHON_SYNTAX", "CANNOT_PARSE"}) == ("bomb.py", True)
    assert (other.file, other.code) == ("z.json", "JSON_SYNTAX")


def test_tests_that_pass_pass(checked: Check, output: Path) -> None:
    report = checked(
        {
            "calc.py": "def add(a, b):\n    return a + b\n",
            "test_calc.py": "from calc import add\n\ndef test_add():\n    assert add(1, 2) == 3\n",
        },
        "tests_pass",
    )
    assert report.passed, report.issues
    assert report.checks_passed == ("files_exist", "syntax", "tests_pass")
    assert sorted(path.name for path in output.iterdir()) == ["calc.py", "test_calc.py"], "the tests left something"


def test_a_failing_test_is_named_with_file_and_line(checked: Check) -> None:
    report = checked({"test_calc.py": "def test_add():\n    x = 1\n    assert x == 2\n"}, "tests_pass")
    assert found(report) == [("TESTS_FAILED", "test_calc.py", 3)]
    assert "assert 1 == 2" in report.issues[0].message


def test_pytest_sees_the_outputs_own_settings_and_none_of_the_folders_above(checked: Check, tmp_path: Path) -> None:
    """The copy may lie inside a project with settings and fixtures of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not mine')\n")
    test = {"test_it.py": "def test_it(tmp_path):\n    assert tmp_path\n"}
    assert checked(test, "tests_pass").passed
    own = {"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--own-option'\n"}
    report = checked(own, "tests_pass")
    assert found(report) == [("TESTS_FAILED", "", 0)]
    assert "--own-option" in report.issues[0].message


def test_no_tests_at_all_do_not_pass(checked: Check) -> None:
    assert found(checked({"calc.py": "x = 1\n"}, "tests_pass")) == [("NO_TESTS", "", 0)]


def test_programs_run_only_when_the_gates_before_them_passed(checked: Check) -> None:
    report = checked({"a.py": "def (\n"}, "tests_pass", {"type": "command", "command": ["false"]})
    assert [(result.gate, bool(result.skipped)) for result in report.results] == [
        ("files_exist", False),
        ("syntax", False),
        ("tests_pass", True),
        ("command", True),
    ]
    assert not report.passed


def script(code: str, **options: Any) -> dict[str, Any]:
    return {"type": "command", "name": "it", "command": [sys.executable, "-c", code], **options}


def test_a_command_that_fails_tells_the_place_its_output_names(checked: Check) -> None:
    report = checked({"src/a.py": "x = 1\n"}, script("print('src/a.py:7:3: error: no good'); raise SystemExit(3)"))
    assert found(report) == [("COMMAND_FAILED", "src/a.py", 7)]
    assert "exit code 3" in report.issues[0].message
    assert report.results[-1].gate == "command:it"


def test_a_line_for_the_shell_runs_only_when_asked_for(checked: Check) -> None:
    assert checked({"a.md": "x"}, {"type": "command", "command": "test -f a.md && true", "shell": True}).passed
    assert not checked({"a.md": "x"}, {"type": "command", "command": ["test -f a.md && true"]}).passed


def test_a_missing_program_says_so(checked: Check) -> None:
    report = checked({"a.md": "x"}, {"type": "command", "command": ["no-such-program-here"]})
    assert found(report) == [("CANNOT_RUN", "", 0)]
    assert "No such file" in report.issues[0].message


def test_a_command_knows_nothing_of_the_worker(checked: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_STORE_URL", "redis://secret")
    monkeypatch.setenv("REDIS_URL", "redis://secret")
    code = "import os, sys; sys.exit(any('secret' in v or k == 'PYTHONPATH' for k, v in os.environ.items()))"
    assert checked({"a.md": "x"}, script(code)).passed


def test_what_a_command_does_to_its_copy_does_not_touch_the_output(checked: Check, output: Path) -> None:
    report = checked({"a.md": "x"}, script("open('a.md', 'w').write('changed'); open('b.md', 'w').close()"))
    assert report.passed
    assert (output / "a.md").read_text() == "x"
    assert not (output / "b.md").exists()


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(checked: Check, tmp_path: Path) -> None:
    code = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    report = checked({"a.md": "x"}, script(code, seconds=0.5))
    assert found(report) == [("LIMIT_REACHED", "", 0)]
    wait_for(lambda: not processes_with(f"{RUN}-{tmp_path.name}.gate"))


def test_a_command_that_takes_too_much_memory_fails(checked: Check) -> None:
    report = checked({"a.md": "x"}, script("x = bytearray(400 * 2**20)", memory_mb=200))
    assert found(report) == [("COMMAND_FAILED", "", 0)]
    assert "MemoryError" in report.issues[0].message


def test_being_asked_to_stop_ends_the_program_and_reports_no_verdict(checked: Check, tmp_path: Path) -> None:
    stop = StopRequest()
    mark = f"{RUN}-{tmp_path.name}.gate"

    def cancel() -> None:
        wait_for(lambda: processes_with(mark))
        stop.reason = "cancelled"

    asking = threading.Thread(target=cancel)
    asking.start()
    started = time.monotonic()
    report = checked({"a.md": "x"}, script("import time; time.sleep(600)"), stop=stop)
    asking.join()
    assert (report.stopped, report.passed) == ("cancelled", False)
    assert time.monotonic() - started < 300
    wait_for(lambda: not processes_with(mark))


def test_a_stop_before_the_first_gate_is_told(output: Path) -> None:
    phase = Phase(id="p")
    with pytest.raises(CheckInterrupted, match="fenced"):
        next(iterate_gates(phase, output, stop=StopRequest(reason="fenced")))


def test_adrs_are_judged_by_the_rules_answers_are_judged_by(checked: Check) -> None:
    assert checked({"ADR-001-a.md": ADR}, "adr_valid").passed
    broken = ADR.replace("status: Proposed\n", "").replace("## Entscheidung", "## Meinung")
    report = checked({"docs/ADR-002-b.md": broken}, "adr_valid")
    assert {code for code, file, _ in found(report) if file == "docs/ADR-002-b.md"} == {
        "MISSING_ADR_FIELD",
        "MISSING_ADR_SECTION",
    }


def test_an_adr_must_be_there_and_be_one(checked: Check) -> None:
    assert found(checked({"a.md": "# Hallo\n"}, "adr_valid")) == [("NO_ADR", "", 0)]
    report = checked({}, {"type": "adr_valid", "files": ["a.md", "b.md"]})
    assert found(report) == [("NO_ADR", "a.md", 0), ("NO_ADR", "b.md", 0)]


def test_a_gate_that_breaks_does_not_let_pass(checked: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("worker.verification.gates.syntax.run_program", broken)
    report = checked({"a.md": "x"}, {"type": "command", "command": ["true"]})
    assert found(report) == [("GATE_ERROR", "", 0)]
    assert "RuntimeError: boom" in report.issues[0].message


def test_an_output_beyond_the_limits_is_not_examined(checked: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.verification.gates.output_tree.MAX_FILES", 3)
    report = checked({f"{number}.md": "x" for number in range(4)})
    assert found(report) == [("OUTPUT_TOO_LARGE", "", 0)]


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_its_words_in_german_and_english(code: str) -> None:
    entry = CODES[code]
    assert entry.de != entry.en
    assert all((*entry.de, *entry.en, entry.when))


def test_docs_list_the_same_codes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "WORKFLOW-SYSTEM.md").read_text()
    for code, entry in CODES.items():
        mark = "" if entry.severity == "error" else f" ({entry.severity})"
        assert f"- `{code}`{mark}: {entry.when}\n" in text, f"docs/WORKFLOW-SYSTEM.md: {code}"
