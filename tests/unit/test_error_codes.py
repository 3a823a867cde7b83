"""One table of errors: complete, in both languages, and what the documents and the command line say."""

import ast
import importlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from api_client.contract.completion import ErrorKind
from api_client.contract.error_codes import ERROR_CODES, error_sentence
from api_client.contract.errors import TurnNotFound
from api_client.contract.turn import Outcome
from tests.lab.references import render_error_reference
from worker.cli.explain import CODES, explain

ROOT = Path(__file__).parents[2]


@cache
def source() -> list[tuple[str, ast.AST]]:
    """Every node of our source, with the file it is in."""
    files = [*(ROOT / "api_client").rglob("*.py"), *(ROOT / "worker").rglob("*.py")]
    return [(str(file.relative_to(ROOT)), node) for file in files for node in ast.walk(ast.parse(file.read_text()))]


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    yield
    source.cache_clear()  # half a million nodes


def literals(value: ast.expr | None) -> Iterator[str]:
    """The texts an expression may be: ``"a"``, ``"a" if x else "b"``, ``x or "a"``."""
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=one, orelse=two):
            yield from (*literals(one), *literals(two))
        case ast.BoolOp(values=values):
            yield from (text for one in values for text in literals(one))


def literal_codes() -> dict[str, str]:
    """Every ``code="..."`` in our source, as an argument or an assignment: code -> where."""
    found = {}
    for file, node in source():
        value: ast.expr | None = None
        match node:
            case ast.keyword(arg="code", value=given):
                value = given
            case ast.Assign(targets=[ast.Name(id="code") | ast.Attribute(attr="code")], value=given):
                value = given
        found.update(dict.fromkeys(literals(value), file))
    return found


def test_every_code_raised_anywhere_is_in_the_table() -> None:
    missing = {code: place for code, place in literal_codes().items() if code not in {*ERROR_CODES, *CODES}}
    assert not missing, f"add to api_client/contract/error_codes.toml: {missing}"


def test_every_error_class_names_its_code() -> None:
    for file, node in source():
        if isinstance(node, ast.ClassDef) and "HelixError" in {getattr(base, "id", "") for base in node.bases}:
            assert "code = " in ast.unparse(node), f"{file}: class {node.name} has no code"


def test_every_ending_and_every_trouble_of_an_agent_has_its_code() -> None:
    assert {kind.value for kind in ErrorKind} <= set(ERROR_CODES)
    assert {outcome.value for outcome in Outcome if not outcome.success} <= set(ERROR_CODES)


def test_every_code_of_the_table_is_used() -> None:
    ends = {kind.value for kind in ErrorKind} | {outcome.value for outcome in Outcome}
    assert set(ERROR_CODES) - ends - set(literal_codes()) == set()


@pytest.mark.parametrize("code", ERROR_CODES)
def test_every_code_says_what_happened_and_what_to_do_in_both_languages(code: str) -> None:
    entry = ERROR_CODES[code]
    assert entry.de[0] != entry.en[0]
    assert bool(entry.de[1]) == bool(entry.en[1])
    assert entry.de[1] or code == "cancelled"
    for locale in ("de", "en"):
        said = error_sentence(code, locale, turn_id="t0")
        assert said.endswith(".")
        assert "{" not in said


def test_docs_errors_md_is_made_from_the_table() -> None:
    assert (ROOT / "docs" / "errors.md").read_text() == render_error_reference(), (
        "write it anew: python -m tests.lab.references"
    )


def test_the_command_explains_codes_of_both_tables_and_names_the_likely_one() -> None:
    run = CliRunner().invoke
    shown = json.loads(run(explain, ["turn_not_found", "--locale", "de", "--json"]).output)
    assert (shown["code"], shown["what"]) == ("turn_not_found", ERROR_CODES["turn_not_found"].de[0])
    assert "Add at the end" in run(explain, ["MISSING_STEP_MARKER"]).output
    assert run(explain, ["missing_step_marker"]).output == run(explain, ["MISSING_STEP_MARKER"]).output
    assert run(explain, ["TURN_NOT_FOUND"]).output == run(explain, ["turn_not_found"]).output
    assert len(run(explain, []).output.splitlines()) == len(ERROR_CODES) + len(CODES)
    wrong = run(explain, ["turn_not_fund"])
    assert (wrong.exit_code, "did you mean turn_not_found?" in wrong.output) == (2, True)


def test_the_command_line_writes_the_code_behind_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    cli = importlib.import_module("worker.cli")
    assert cli._print_problems([str(TurnNotFound("x"))], 1, TurnNotFound.code) == 1
    assert capsys.readouterr().err == "turns: no turn 'x' [turn_not_found]\n"
