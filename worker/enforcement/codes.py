"""The closed table of issue codes: one place for severity, occasion, repair and words.

The first eight are ADR-038's, with its words. docs/enforcement.md lists the same codes; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worker.enforcement.issue import Severity, ValidationIssue

LOCALES = ("de", "en")
DEFAULT_LOCALE = "de"

#: Longest piece of an answer that a message quotes, in characters.
QUOTE_LIMIT = 80


@dataclass(frozen=True, slots=True)
class Code:
    """One rule that an answer can break.

    Attributes:
        severity: whether it causes a retry.
        when: when it is reported, one English sentence.
        repair: what repairs it besides the agent: the fallback's doing, or empty for none.
        de, en: message and fix hint as templates, in German and English.
        shortens: its repair makes the answer shorter (``ValidationIssue.shortens``).
    """

    severity: Severity
    when: str
    repair: str
    de: tuple[str, str]
    en: tuple[str, str]
    shortens: bool = False


_E, _W = Severity.ERROR, Severity.WARNING
_STEPS = "what|why|constraints|generate|finalize|done"

CODES: Mapping[str, Code] = {
    "MISSING_STEP_MARKER": Code(
        _E,
        "No step marker stands outside code and quotes.",
        "The fallback infers the step and appends the marker; `unknown` when nothing shows the step.",
        ("Response enthält keinen STEP-Marker", f"Füge am Ende hinzu: <!-- STEP: {_STEPS} -->"),
        ("The response has no STEP marker", f"Add at the end: <!-- STEP: {_STEPS} -->"),
    ),
    "INVALID_STEP": Code(
        _E,
        "The last step marker names none of the six steps; `unknown` is the fallback's alone.",
        "The fallback puts a marker with the inferred step in its place.",
        ("Ungültiger Step: {step}", "Gültige Steps: constraints, done, finalize, generate, what, why"),
        ("Invalid step: {step}", "Valid steps: constraints, done, finalize, generate, what, why"),
    ),
    "MISSING_ADR_FIELD": Code(
        _E,
        "An ADR's header lacks adr_id, title or status.",
        "",
        ("ADR fehlt Pflichtfeld im Header: {field}", "Füge '{field}' zum YAML-Header hinzu"),
        ("The ADR's header lacks a required field: {field}", "Add '{field}' to the YAML header"),
    ),
    "INVALID_YAML": Code(
        _E,
        "An ADR's header is not YAML (or uses custom tags, or several documents), or lacks its second `---`.",
        "",
        ("ADR hat ungültigen YAML-Header: {problem}", "Prüfe YAML-Syntax im Header"),
        ("The ADR's header is not valid YAML: {problem}", "Check the YAML syntax of the header"),
    ),
    "MISSING_YAML_HEADER": Code(
        _E,
        "An ADR (a `# ADR-` heading, or a file named ADR-*.md) has no header between `---` lines.",
        "",
        ("ADR fehlt YAML-Header", "Füge YAML-Header mit --- Delimitern hinzu"),
        ("The ADR has no YAML header", "Add a YAML header between --- lines"),
    ),
    "MISSING_ADR_SECTION": Code(
        _E,
        "An ADR lacks the section Kontext, Entscheidung or Akzeptanzkriterien as a level 2 heading.",
        "",
        ("ADR fehlt Section: ## {section}", "Füge Section '## {section}' mit Inhalt hinzu"),
        ("The ADR lacks a section: ## {section}", "Add the section '## {section}' with content"),
    ),
    "INSUFFICIENT_CRITERIA": Code(
        _W,
        "An ADR has fewer than three acceptance criteria (checkboxes, checked or not, and numbered items).",
        "",
        (
            "ADR hat nur {count} Akzeptanzkriterien (mindestens 3 empfohlen)",
            "Füge mehr konkrete, testbare Akzeptanzkriterien hinzu",
        ),
        (
            "The ADR has only {count} acceptance criteria (at least 3 recommended)",
            "Add more concrete, testable acceptance criteria",
        ),
    ),
    "FILE_NOT_FOUND": Code(
        _E,
        "`files.modify` names a file that does not exist.",
        "The fallback moves the entry to `files.create` and tells the user; no other byte changes.",
        (
            "files.modify referenziert nicht existierende Datei: {path}",
            "Entferne '{path}' aus files.modify oder verschiebe nach files.create{suggestion}",
        ),
        (
            "files.modify names a file that does not exist: {path}",
            "Remove '{path}' from files.modify or move it to files.create{suggestion}",
        ),
    ),
    "TEXT_AFTER_MARKER": Code(
        _W,
        "Text follows the step marker.",
        "",
        ("Nach dem STEP-Marker folgt noch Text", "Setze den STEP-Marker ganz ans Ende der Antwort"),
        ("Text follows the STEP marker", "Put the STEP marker at the very end of the answer"),
    ),
    "SEVERAL_STEP_MARKERS": Code(
        _W,
        "More than one step marker stands outside code and quotes; the last one counts.",
        "",
        ("Response enthält {count} STEP-Marker; der letzte zählt", "Setze genau einen STEP-Marker ans Ende"),
        ("The response has {count} STEP markers; the last one counts", "Put exactly one STEP marker at the end"),
    ),
    "INVALID_HEADER": Code(
        _E,
        "An ADR's header is empty or no mapping, or a required field is a list or a mapping.",
        "",
        ("ADR-Header ist ungültig: {problem}", "Schreibe den Header als 'schlüssel: wert'-Zeilen zwischen ---"),
        ("The ADR's header is invalid: {problem}", "Write the header as 'key: value' lines between --- lines"),
    ),
    "EMPTY_ADR_FIELD": Code(
        _E,
        "adr_id, title or status is there, but empty.",
        "",
        ("Pflichtfeld im ADR-Header ist leer: {field}", "Gib '{field}' im YAML-Header einen Wert"),
        ("A required field of the ADR's header is empty: {field}", "Give '{field}' a value in the YAML header"),
    ),
    "EMPTY_ADR_SECTION": Code(
        _E,
        "A required section is there, but has no content.",
        "",
        ("ADR-Section ist leer: ## {section}", "Fülle die Section '## {section}' mit Inhalt"),
        ("An ADR section is empty: ## {section}", "Fill the section '## {section}' with content"),
    ),
    "UNQUOTED_ADR_ID": Code(
        _W,
        "adr_id has leading zeros and no quotes: YAML 1.1 tools read 036 as 30.",
        "",
        ("adr_id {value} steht ohne Anführungszeichen", 'Schreibe adr_id: "{value}"'),
        ("adr_id {value} stands without quotes", 'Write adr_id: "{value}"'),
    ),
    "DUPLICATE_KEY": Code(
        _W,
        "A key of an ADR's header appears twice; tools disagree about which one counts.",
        "",
        ("Schlüssel steht doppelt im ADR-Header: {key}", "Führe die Einträge von '{key}' zusammen"),
        ("A key of the ADR's header appears twice: {key}", "Merge the entries of '{key}'"),
    ),
    "YAML_TOO_COMPLEX": Code(
        _E,
        "An ADR's header is too long, too deep, or has too many nodes or aliases to be read safely.",
        "",
        ("ADR-Header ist zu groß oder zu verschachtelt: {problem}", "Vereinfache den YAML-Header"),
        ("The ADR's header is too large or too nested: {problem}", "Simplify the YAML header"),
    ),
    "INVALID_FILES": Code(
        _E,
        "`files` is not a mapping, or one of its entries is not a list of paths.",
        "",
        ("{where} ist keine Liste von Pfaden", "Schreibe {where} als Liste, ein Pfad je Zeile"),
        ("{where} is not a list of paths", "Write {where} as a list, one path a line"),
    ),
    "INVALID_PATH": Code(
        _E,
        "An entry of `files` is not a usable path: empty, too long, with control characters, or a pattern.",
        "",
        ("{where} enthält keinen brauchbaren Pfad: {path}", "Nenne eine einzelne Datei, relativ zum Projekt"),
        ("{where} contains no usable path: {path}", "Name a single file, relative to the project"),
    ),
    "OUTSIDE_ROOT": Code(
        _E,
        "A path leads outside the project (absolute, ~, .., a drive, a URL, or through a symbolic link).",
        "",
        ("{where} verweist auf einen Pfad außerhalb des Projekts: {path}", "Nenne nur Pfade innerhalb des Projekts"),
        ("{where} names a path outside the project: {path}", "Name only paths inside the project"),
    ),
    "NOT_A_FILE": Code(
        _E,
        "A path of `files.modify` is a directory or another thing that is not a regular file.",
        "",
        ("{where} verweist auf etwas, das keine Datei ist: {path}", "Nenne die Datei selbst"),
        ("{where} names something that is not a file: {path}", "Name the file itself"),
    ),
    "PATH_WITH_SUFFIX": Code(
        _W,
        "A path carries a line number or a remark; the file itself exists.",
        "",
        ("{where}: Pfad mit Zusatz: {path}", "Schreibe nur den Pfad: {bare}"),
        ("{where}: path with a suffix: {path}", "Write the path alone: {bare}"),
    ),
    "FILE_ALREADY_EXISTS": Code(
        _W,
        "`files.create` names a file that exists already.",
        "",
        ("files.create nennt eine Datei, die es schon gibt: {path}", "Verschiebe '{path}' nach files.modify"),
        ("files.create names a file that exists already: {path}", "Move '{path}' to files.modify"),
    ),
    "DOC_NOT_FOUND": Code(
        _W,
        "`files.docs` names a document that does not exist yet.",
        "",
        ("files.docs nennt ein Dokument, das es nicht gibt: {path}", "Prüfe den Pfad{suggestion}"),
        ("files.docs names a document that does not exist: {path}", "Check the path{suggestion}"),
    ),
    "DELETE_NOT_FOUND": Code(
        _W,
        "`files.delete` names a file that is not there.",
        "",
        ("files.delete nennt eine Datei, die es nicht gibt: {path}", "Prüfe den Pfad{suggestion}"),
        ("files.delete names a file that does not exist: {path}", "Check the path{suggestion}"),
    ),
    "ADR_EXCERPT": Code(
        _W,
        "An ADR in a ```markdown fence is only shown, and not judged: a header alone, or a template's place holders.",
        "",
        (
            "Ein ADR-Auszug in einem Markdown-Block wird nicht als ADR geprüft",
            "Soll es ein ADR sein, schreibe es vollständig, ohne Platzhalter",
        ),
        (
            "An excerpt of an ADR in a markdown block is not judged as an ADR",
            "If it is meant as an ADR, write it in full, without place holders",
        ),
    ),
    "TOO_MANY_ADRS": Code(
        _E,
        "The answer or a file holds more than 20 ADRs; it is not judged in part.",
        "",
        ("Zu viele ADRs in einem Text (mehr als {count})", "Schreibe jedes ADR in eine eigene Datei"),
        ("Too many ADRs in one text (more than {count})", "Write each ADR to its own file"),
        shortens=True,
    ),
    "ANSWER_TOO_LONG": Code(
        _E,
        "The answer or a file is longer than 4,194,304 characters; it is not examined.",
        "",
        ("Antwort ist zu lang ({count} Zeichen)", "Fasse dich kürzer; schreibe Langes in Dateien"),
        ("The answer is too long ({count} characters)", "Be shorter; write long material to files"),
        shortens=True,
    ),
    "CONTENT_LOST": Code(
        _E,
        "A new answer lacks the ADR, or a good section of it, that the answer before it had.",
        "The fallback puts a section back as it stood before.",
        (
            "Die neue Antwort enthält nicht mehr, was schon gut war: {what}",
            "Schicke {what} wieder mit, mit dem Inhalt von vorher",
        ),
        (
            "The new answer lacks what was good already: {what}",
            "Send {what} again with the content it had",
        ),
    ),
    "INCOMPLETE_RESPONSE": Code(
        _E,
        "The agent did not really finish (ADR-036); such a text reaches no validator and no fallback.",
        "",
        ("Die Antwort brach ab, bevor sie fertig war", "Gib die vollständige Antwort noch einmal"),
        ("The answer broke off before it was finished", "Give the complete answer once more"),
    ),
    "ANSWER_FILE_REFUSED": Code(
        _E,
        "The agent wrote its answer into a file that is not taken: a link, no regular file, too large, one too many.",
        "",
        (
            "Die Datei {path} wird nicht übernommen: {problem}",
            "Schreibe sie neu: als gewöhnliche Datei, keinen Link, von höchstens 2 MiB; höchstens 50 Dateien",
        ),
        (
            "The file {path} is not taken: {problem}",
            "Write it again: a regular file, no link, of at most 2 MiB; at most 50 files",
        ),
    ),
    "VALIDATOR_ERROR": Code(
        _E,
        "A validator raised, ended the program, or returned something that is not a list of issues.",
        "",
        (
            "Validator {validator} konnte die Antwort nicht prüfen: {problem}",
            "Wiederhole die Antwort in einfacher Form",
        ),
        ("Validator {validator} could not judge the answer: {problem}", "Repeat the answer in a simpler form"),
    ),
}


def words(locale: str, german: str, english: str) -> str:
    """The words for a locale: German unless the locale is English."""
    return english if locale.lower().startswith("en") else german


def issue(
    code: str, locale: str, /, *, file: str = "", line: int = 0, part: str = "", **values: object
) -> ValidationIssue:
    """Make an issue with the table's severity, and its words in ``de`` or ``en``.

    The remaining values fill the code's templates; long or unprintable ones are clipped.

    Raises:
        KeyError: the code is not in the table, or a value of its templates is missing.
    """
    return worded(CODES[code], code, locale, file=file, line=line, part=part, **values)


def worded(
    entry: Code, code: str, locale: str, /, *, file: str = "", line: int = 0, part: str = "", **values: object
) -> ValidationIssue:
    """The issue of an entry of this or of another table.

    Raises:
        KeyError: a value of its templates is missing.
    """
    message, hint = entry.en if locale.lower().startswith("en") else entry.de
    if values:
        shown = {name: clip(str(value)) for name, value in values.items()}
        message, hint = message.format_map(shown), hint.format_map(shown)
    return ValidationIssue(
        code, message, hint, entry.severity, file=file, line=line, part=part, shortens=entry.shortens
    )


def clip(text: str, limit: int = QUOTE_LIMIT) -> str:
    """A piece of foreign text as one short printable line, so that it can break no frame, log or prompt."""
    head = text[: limit + 1]
    flat = head if head.isprintable() else "".join(char if char.isprintable() else " " for char in head)
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
