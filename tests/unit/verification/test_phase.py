"""Phases and phases.yaml: what is right is read, and everything that is wrong is told at once, with its line."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.phase import Phase, read_phases
from api_client.contract.phase_checks import GATES, PHASE, PhaseError
from api_client.contract.value_kinds import InvalidValue
from worker.verification import PhasesFileError, load_phases, parse_phases
from worker.verification.gates.gate_codes import CODES
from worker.verification.gates.gate_run import GATES as RUNNABLE

ROOT = Path(__file__).parents[3]

WHOLE = """
name: Rechnungen
phases:
  - id: entwurf
    name: Der Entwurf
    type: documentation
    description: Schreibe das ADR.
    config: {model: opus, stil: knapp, tiefe: 3}
    input_files: [anfrage.md]
    output_files: [ADR-001-rechnungen.md]
    quality_gate: adr_valid
    verify_agent: true
    max_attempts: 5
  - id: 2
    description: |
      Baue es.
    quality_gate:
      - type: tests_pass
        seconds: 60
        criteria: [Jede Funktion hat einen Test.]
      - {type: command, command: [make, lint], name: lint}
"""


def phase(**values: Any) -> dict[str, Any]:
    return {"id": "p", "description": "Tu etwas.", **values}


def complaints(**values: Any) -> list[str]:
    with pytest.raises(InvalidValue) as raised:
        PHASE(phase(**values))
    return [str(problem) for problem in raised.value.problems]


def test_a_phases_yaml_is_read_with_every_key() -> None:
    first, second = parse_phases(WHOLE)
    assert (first.id, first.name, first.type, first.verify_agent, first.max_attempts) == (
        "entwurf",
        "Der Entwurf",
        "documentation",
        True,
        5,
    )
    assert (first.model, first.config["tiefe"]) == ("opus", 3)
    assert (first.input_files, first.output_files) == (("anfrage.md",), ("ADR-001-rechnungen.md",))
    assert [gate.type for gate in first.quality_gates] == ["adr_valid"]
    assert (second.id, second.name, second.verify_agent, second.max_attempts) == ("2", "2", False, 3)
    assert second.description == "Baue es.\n"
    assert second.quality_gates[0].options["seconds"] == 60
    assert second.criteria == ("Jede Funktion hat einen Test.",)


def test_a_phase_survives_the_way_through_json() -> None:
    for one in parse_phases(WHOLE):
        assert Phase.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_a_key_without_a_value_counts_as_left_out() -> None:
    empty = dict.fromkeys(("name", "type", "config", "input_files", "quality_gate", "verify_agent", "max_attempts"))
    assert Phase.from_dict(phase(**empty)) == Phase.from_dict(phase())


def test_every_gate_that_may_be_named_can_be_run_and_is_in_the_page_of_phases() -> None:
    assert set(GATES) == set(RUNNABLE)
    table = (ROOT / "docs/WORKFLOW-SYSTEM.md").read_text().partition("| gate | what it checks")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(GATES)


def test_every_code_that_a_gate_names_is_in_its_table() -> None:
    named = {
        code
        for path in (ROOT / "worker/verification").rglob("*.py")
        for code in re.findall(r"""\bbuild_gate_issue\(\s*["']([A-Z_]+)""", path.read_text())
    }
    assert len(named) > 5
    assert named <= set(CODES)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"id": "../x"}, "id: must be 1 to 64 letters"),
        ({"id": True}, "id: must be 1 to 64 letters"),
        ({"id": None}, "id: a phase needs 'id'"),
        ({"description": ""}, "description: must not be empty"),
        ({"description": 7}, "description: must be a text, not a number"),
        ({"type": "Big Job"}, "type: must be a small word"),
        ({"output_file": ["a"]}, "output_file: no such key; did you mean 'output_files'?"),
        ({"output_files": "a.md"}, "output_files: must be a list of paths, not a text"),
        ({"output_files": ["/etc/passwd"]}, "output_files[1]: must be a relative path"),
        ({"output_files": ["C:\\x"]}, "output_files[1]: must be a relative path"),
        ({"output_files": ["~/x"]}, "output_files[1]: must be a relative path"),
        ({"output_files": ["a", "b/../../x"]}, "output_files[2]: must not leave its folder"),
        ({"output_files": ["docs/"]}, "output_files[1]: must name a file"),
        ({"output_files": ["a\0b"]}, "output_files[1]: must be a path of 1 to 1024 printable"),
        ({"output_files": ["a", "a"]}, "output_files[2]: names 'a' twice"),
        ({"output_files": ["output/a.md"]}, "output_files[1]: paths count from the phase's output/ already"),
        ({"output_files": ["a", "./a"]}, "output_files[2]: names './a' twice"),
        ({"output_files": ["a", "a/b"]}, "output_files[2]: 'a' cannot be a file and the folder of 'a/b'"),
        ({"output_files": ["x/y/z", "x/y"]}, "output_files[2]: 'x/y' cannot be a file and the folder of 'x/y/z'"),
        ({"output_files": ["ä" * 200]}, "output_files[1]: no file can have a name of 400 bytes; at most 255"),
        ({"output_files": [".claude/settings.json"]}, "output_files[1]: no agent may write '.claude'"),
        ({"output_files": ["src/.Git/config"]}, "output_files[1]: no agent may write '.git'"),
        ({"input_files": ["n" * 256]}, "input_files[1]: no file can have a name of 256 bytes"),
        ({"input_files": ["../secret"]}, "input_files[1]: must not leave its folder"),
        ({"verify_agent": "yes"}, "verify_agent: must be true or false, not 'yes'"),
        ({"max_attempts": 0}, "max_attempts: must be a whole number from 1 to 20"),
        ({"max_attempts": True}, "max_attempts: must be a whole number from 1 to 20"),
        ({"config": ["a"]}, "config: must be a mapping"),
        ({"config": {"model": 3}}, "config.model: must be the name of a model"),
        ({"config": {"x": float("nan")}}, "config: must hold only texts"),
        ({"config": {"x": "y" * 20_000}}, "config: must have at most"),
        ({"quality_gate": "sytax"}, "quality_gate.type: no gate 'sytax'; did you mean 'syntax'?"),
        ({"quality_gate": [{"type": "tests_pass", "second": 3}]}, "quality_gate[1].second: no such key; did you mean"),
        ({"quality_gate": {"type": "tests_pass", "seconds": -1}}, "quality_gate.seconds: must be a number of seconds"),
        ({"quality_gate": {"type": "command"}}, "quality_gate.command: the gate 'command' needs the command to run"),
        ({"quality_gate": {"type": "command", "command": "make"}}, "quality_gate.shell: a list of words runs without"),
        ({"quality_gate": {"type": "command", "command": []}}, "quality_gate.command: must be a list of words"),
        ({"quality_gate": {"type": "files_exist", "files": ["/x"]}}, "quality_gate.files[1]: must be a relative path"),
        ({"quality_gate": [7]}, "quality_gate[1]: must be the name of a gate"),
    ],
)
def test_what_is_wrong_with_a_phase_is_said_in_a_sentence(values: dict[str, Any], told: str) -> None:
    found = complaints(**values)
    assert [each for each in found if each.startswith(told)], found


def test_all_problems_of_all_phases_are_told_at_once() -> None:
    with pytest.raises(PhaseError) as raised:
        read_phases({"phases": [phase(id="a", verify_agent=1), phase(id="a", max_attempts=99)], "phase": 1})
    assert [str(problem).split(":")[0] for problem in raised.value.problems] == [
        "phase",
        "phases[1].verify_agent",
        "phases[2].max_attempts",
        "phases[2].id",
    ]


@pytest.mark.parametrize("data", [None, [], {}, {"phases": []}, "phases", {"phases": {"id": 1}}])
def test_a_file_without_phases_is_an_error(data: object) -> None:
    with pytest.raises(PhaseError, match="must be a list of phases with at least one"):
        read_phases(data)


def test_an_error_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "phases.yaml").write_text(
        "phases:\n- id: a\n  description: x\n  verify_agent: yes\n- id: a\n  desciption: y\n  id: b\n"
    )
    with pytest.raises(PhasesFileError) as raised:
        load_phases(tmp_path)
    file = tmp_path / "phases.yaml"
    assert str(raised.value).splitlines() == [
        f"{file}:4:17: phases[1].verify_agent: must be true or false, not 'yes'",
        f"{file}:5:3: phases[2].description: a phase needs 'description'",
        f"{file}:6:3: phases[2].desciption: no such key; did you mean 'description'?",
        f"{file}:7:3: phases[2].id: is there twice",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "1:1: is not usable YAML: holds no phases"),
        ("phases:\n- id: [\n", "3:1: is not usable YAML"),
        ("- !!python/object:os.system {}\n", "1:1: is not usable YAML: tag"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(8)),
            "> 2000 values",
        ),
        ("phases: &a [*a]\n", "aliases followed"),
        ("- " * 60 + "x", "> 32 levels"),
        ("? [a]\n: b\n", "1:1: is not usable YAML: a key must be a text"),
    ],
)
def test_hostile_or_broken_yaml_is_one_clear_error(text: str, told: str) -> None:
    with pytest.raises(PhasesFileError) as raised:
        parse_phases(text)
    assert told in str(raised.value)


def test_a_missing_file_and_a_folder_without_one_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(PhasesFileError, match=r"phases\.yaml: no such file; write one"):
        load_phases(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"- id: a\n  description: \xe4\n")
    with pytest.raises(PhasesFileError, match=r"latin\.yaml:2:1: is not UTF-8"):
        load_phases(tmp_path / "latin.yaml")


def test_what_is_no_plain_file_is_refused_at_once_with_file_and_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "phases.yaml")
    with pytest.raises(PhasesFileError, match=r"phases\.yaml: cannot be read: it is not a plain file"):
        load_phases(tmp_path)
    (tmp_path / "real.yaml").write_text(
        "- id: a\n  description: x\n  input_files:\n  - real.yaml\n  - missing\n  - dir\n  - pipe\n  - link\n  - up/x\n"
    )
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("..")
    with pytest.raises(PhasesFileError) as raised:
        load_phases(tmp_path / "real.yaml")
    assert [line.partition("real.yaml:")[2] for line in raised.value.described] == [
        "6:5: [1].input_files[3]: 'dir' is a folder, not a plain file",
        "7:5: [1].input_files[4]: 'pipe' is a pipe, not a plain file",
        "8:5: [1].input_files[5]: 'link' is a link, not a plain file",
        "9:5: [1].input_files[6]: 'up/x' is a link, not a plain file",
    ]
    (tmp_path / "other.yaml").symlink_to(tmp_path / "real.yaml")
    with pytest.raises(PhasesFileError, match="it is a link; name the file it leads to"):
        load_phases(tmp_path / "other.yaml")


def test_plain_words_are_read_as_yaml_1_2_has_them() -> None:
    (one,) = parse_phases(
        "- id: 036\n  description: no\n  config: {a: on, b: 1.5, c: true, d: '7', e: ~, f: 2026-01-01}"
    )
    assert (one.id, one.description) == ("036", "no")
    assert one.config == {"a": "on", "b": 1.5, "c": True, "d": "7", "e": None, "f": "2026-01-01"}
