"""The closed table of what gates find in a phase's output: severity, occasion and words, as enforcement's table.

docs/WORKFLOW-SYSTEM.md lists the same codes; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

from worker.enforcement.codes import Code, worded
from worker.enforcement.issue import Severity, ValidationIssue

_E, _W = Severity.ERROR, Severity.WARNING

CODES: Mapping[str, Code] = {
    "MISSING_FILE": Code(
        _E,
        "An expected file is not there.",
        "",
        ("Erwartete Datei fehlt: {path}", "Schreibe '{path}'{suggestion}"),
        ("An expected file is missing: {path}", "Write '{path}'{suggestion}"),
    ),
    "EMPTY_FILE": Code(
        _E,
        "An expected file has no content.",
        "",
        ("Erwartete Datei ist leer: {path}", "Fülle '{path}' mit Inhalt"),
        ("An expected file is empty: {path}", "Fill '{path}' with content"),
    ),
    "NO_OUTPUT": Code(
        _E,
        "The phase left no file at all, or its output folder cannot be read.",
        "",
        ("Die Phase hat keine Dateien geschrieben", "Schreibe die Ergebnisse nach output/"),
        ("The phase wrote no files", "Write the results to output/"),
    ),
    "LINK_LEAVES": Code(
        _E,
        "A symbolic link leads out of the output folder; it is not followed.",
        "",
        ("Symbolischer Link führt aus dem Ordner hinaus: {path}", "Schreibe die Datei selbst statt des Links"),
        ("A symbolic link leads out of the folder: {path}", "Write the file itself instead of the link"),
    ),
    "LINK_NOT_FOLLOWED": Code(
        _W,
        "A symbolic link stays inside the output folder; no gate follows it, and an expected file must not be one.",
        "",
        ("Symbolischer Link wird nicht geprüft: {path}", "Schreibe die Datei selbst, wenn sie zählen soll"),
        ("A symbolic link is not checked: {path}", "Write the file itself if it is to count"),
    ),
    "NO_REGULAR_FILE": Code(
        _E,
        "The output holds something that is not a plain file: a pipe, a device, a file with a second name elsewhere.",
        "",
        ("Keine gewöhnliche Datei: {path}", "Entferne '{path}' oder schreibe eine gewöhnliche Datei"),
        ("No regular file: {path}", "Remove '{path}' or write a regular file"),
    ),
    "OUTPUT_TOO_LARGE": Code(
        _E,
        "The output has more than 5,000 files or 256 MiB; it is not examined.",
        "",
        ("Ausgabe ist zu groß: {problem}", "Lass weg, was sich herstellen lässt, etwa Abhängigkeiten und Builds"),
        ("The output is too large: {problem}", "Leave out what can be made again, such as dependencies and builds"),
    ),
    "FILE_TOO_LARGE": Code(
        _E,
        "A file that has to be parsed is larger than 2 MiB.",
        "",
        ("Datei ist zu groß zum Prüfen: {path}", "Teile die Datei auf, oder nimm sie mit 'ignore' aus"),
        ("A file is too large to be checked: {path}", "Split it, or leave it out with 'ignore'"),
    ),
    "CANNOT_PARSE": Code(
        _E,
        "A file takes its parser down, or longer than 30 s.",
        "",
        ("Datei lässt sich nicht prüfen: {problem}", "Vereinfache die Datei"),
        ("The file cannot be parsed: {problem}", "Make the file simpler"),
    ),
    "NOT_UTF8": Code(
        _E,
        "A text file is not UTF-8.",
        "",
        ("Datei ist kein UTF-8: {problem}", "Speichere die Datei als UTF-8"),
        ("The file is not UTF-8: {problem}", "Save the file as UTF-8"),
    ),
    "PYTHON_SYNTAX": Code(
        _E,
        "A Python file cannot be parsed.",
        "",
        ("Python-Syntaxfehler: {problem}", "Behebe den Syntaxfehler"),
        ("Python syntax error: {problem}", "Repair the syntax error"),
    ),
    "YAML_SYNTAX": Code(
        _E,
        "A YAML file cannot be parsed.",
        "",
        ("YAML-Syntaxfehler: {problem}", "Behebe den Syntaxfehler"),
        ("YAML syntax error: {problem}", "Repair the syntax error"),
    ),
    "JSON_SYNTAX": Code(
        _E,
        "A JSON file cannot be parsed.",
        "",
        ("JSON-Syntaxfehler: {problem}", "Behebe den Syntaxfehler"),
        ("JSON syntax error: {problem}", "Repair the syntax error"),
    ),
    "BROKEN_LINK": Code(
        _E,
        "A relative link of a Markdown file leads to a file that is not in the output.",
        "",
        ("Link führt ins Leere: {target}", "Berichtige den Link oder schreibe die Datei"),
        ("A link leads nowhere: {target}", "Repair the link or write the file"),
    ),
    "BROKEN_ANCHOR": Code(
        _W,
        "A link names a heading that the Markdown file does not have.",
        "",
        ("Link nennt eine Überschrift, die es nicht gibt: {target}", "Berichtige den Link"),
        ("A link names a heading that does not exist: {target}", "Repair the link"),
    ),
    "LINK_UNCHECKED": Code(
        _W,
        "A link of a Markdown file leads out of the output folder, where nothing is checked.",
        "",
        ("Link führt aus dem Ordner hinaus und ist ungeprüft: {target}", "Prüfe das Ziel selbst"),
        ("A link leads out of the folder and is not checked: {target}", "Check the target yourself"),
    ),
    "TESTS_FAILED": Code(
        _E,
        "The tests ended with another exit code than 0; the place is the first that their output names.",
        "",
        ("Tests sind fehlgeschlagen (Exit-Code {code}): {problem}", "Behebe die fehlgeschlagenen Tests"),
        ("Tests failed (exit code {code}): {problem}", "Repair what makes the tests fail"),
    ),
    "NO_TESTS": Code(
        _E,
        "pytest found no test (its exit code 5).",
        "",
        ("Es gibt keine Tests", "Schreibe Tests, die pytest findet (test_*.py)"),
        ("There are no tests", "Write tests that pytest finds (test_*.py)"),
    ),
    "COMMAND_FAILED": Code(
        _E,
        "A command of the phase ended with another exit code than 0.",
        "",
        ("Befehl {name} ist fehlgeschlagen (Exit-Code {code}): {problem}", "Behebe, was der Befehl meldet"),
        ("Command {name} failed (exit code {code}): {problem}", "Repair what the command reports"),
    ),
    "CANNOT_RUN": Code(
        _E,
        "A gate's program cannot be started: it is missing, or the machine is short of something.",
        "",
        ("{name} lässt sich nicht starten: {problem}", "Prüfe den Befehl in phases.yaml und die Installation"),
        ("{name} cannot be started: {problem}", "Check the command in phases.yaml and the installation"),
    ),
    "LIMIT_REACHED": Code(
        _E,
        "A gate's program needed more time, memory or output than it may.",
        "",
        ("{name} wurde beendet: {problem}", "Mache den Lauf kürzer, oder erhöhe die Grenze in phases.yaml"),
        ("{name} was ended: {problem}", "Make the run shorter, or raise the limit in phases.yaml"),
    ),
    "NO_ADR": Code(
        _E,
        "The gate adr_valid found no ADR to judge.",
        "",
        ("Es gibt kein ADR: {path}", "Schreibe das ADR als ADR-<Nummer>-<Name>.md"),
        ("There is no ADR: {path}", "Write the ADR as ADR-<number>-<name>.md"),
    ),
    "GATE_ERROR": Code(
        _E,
        "A gate itself failed; the output is not accepted because of that.",
        "",
        ("Prüfung {name} ist selbst fehlgeschlagen: {problem}", "Sieh ins Protokoll des Workers"),
        ("Gate {name} itself failed: {problem}", "Look into the worker's log"),
    ),
    "NOT_VERIFIED": Code(
        _E,
        "The verifier found an error, or gave no verdict; the message is its own.",
        "",
        ("{problem}", "Behebe, was der Verifier nennt"),
        ("{problem}", "Repair what the verifier names"),
    ),
}


def issue(code: str, locale: str, /, *, file: str = "", line: int = 0, **values: object) -> ValidationIssue:
    """Make an issue with the table's severity, and its words in ``de`` or ``en``.

    Raises:
        KeyError: the code is not in the table, or a value of its templates is missing.
    """
    return worded(CODES[code], code, locale, file=file, line=line, part="", **values)
