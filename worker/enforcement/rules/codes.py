"""The codes of the rules with options, with their words in German and English. docs/rules/ lists them by rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.enforcement.codes import Code, worded
from worker.enforcement.issue import Severity, ValidationIssue

_E = Severity.ERROR


def _code(when: str, de: tuple[str, str], en: tuple[str, str], repair: str = "", *, shortens: bool = False) -> Code:
    return Code(_E, when, repair, de, en, shortens)


RULE_CODES: Mapping[str, Code] = {
    "ANSWER_TOO_SHORT": _code(
        "The answer has fewer characters or words than the rule wants.",
        ("Die Antwort ist zu kurz: {count} {unit}, mindestens {bound}", "Antworte ausführlicher"),
        ("The answer is too short: {count} {unit}, at least {bound}", "Answer in more detail"),
    ),
    "ANSWER_OVER_LENGTH": _code(
        "The answer has more characters or words than the rule allows.",
        ("Die Antwort ist zu lang: {count} {unit}, höchstens {bound}", "Kürze die Antwort"),
        ("The answer is too long: {count} {unit}, at most {bound}", "Shorten the answer"),
        shortens=True,
    ),
    "PATTERN_MISSING": _code(
        "A pattern of `must` is not in the answer.",
        ("Der Antwort fehlt: {pattern}", "Ergänze, was zu diesem Muster passt: {pattern}"),
        ("The answer lacks: {pattern}", "Add what matches this pattern: {pattern}"),
    ),
    "PATTERN_FOUND": _code(
        "A pattern of `must_not` is in the answer.",
        ("Die Antwort enthält, was sie nicht enthalten darf: {pattern}", "Entferne, was zu diesem Muster passt"),
        ("The answer holds what it must not: {pattern}", "Remove what matches this pattern"),
        shortens=True,
    ),
    "FORBIDDEN_WORD": _code(
        "A word of `words` is in the answer.",
        ("Die Antwort enthält ein verbotenes Wort: {word}", "Ersetze '{word}'"),
        ("The answer holds a forbidden word: {word}", "Replace '{word}'"),
    ),
    "SECRET_FOUND": _code(
        "Something that looks like a key, a token or a private key is in the answer; no message quotes it.",
        ("Die Antwort enthält ein Geheimnis ({what})", "Ersetze es durch einen Platzhalter"),
        ("The answer holds a secret ({what})", "Put a placeholder in its place"),
        "The fallback puts `[removed]` in its place.",
    ),
    "LINK_NOT_ALLOWED": _code(
        "A link leads to a host that is not in `hosts`, or uses a scheme that is not in `schemes`.",
        ("Link ist nicht erlaubt: {url}", "Entferne den Link oder nenne eine erlaubte Quelle: {allowed}"),
        ("The link is not allowed: {url}", "Remove the link or name an allowed source: {allowed}"),
    ),
    "WRONG_LANGUAGE": _code(
        "The answer is written in another language.",
        ("Die Antwort ist auf {found} geschrieben", "Antworte auf {wanted}"),
        ("The answer is written in {found}", "Answer in {wanted}"),
    ),
    "CODE_DOES_NOT_PARSE": _code(
        "A fenced block does not parse in its language.",
        ("Der {language}-Block ist fehlerhaft: {problem}", "Korrigiere den Block"),
        ("The {language} block does not parse: {problem}", "Correct the block"),
        "The fallback removes trailing commas from JSON.",
    ),
    "CITED_FILE_NOT_FOUND": _code(
        "The answer cites a file with a line, and the file does not exist in the project.",
        ("Die Antwort zitiert eine Datei, die es nicht gibt: {path}", "Prüfe den Pfad{suggestion}"),
        ("The answer cites a file that does not exist: {path}", "Check the path{suggestion}"),
    ),
    "CITED_LINES_NOT_FOUND": _code(
        "The answer cites lines that the file does not have.",
        ("{path} hat keine Zeile {lines} (nur {count})", "Prüfe die Zeilenangabe"),
        ("{path} has no line {lines} (only {count})", "Check the line numbers"),
    ),
    "MISSING_SECTION": _code(
        "A heading that the template wants is missing.",
        ("Es fehlt der Abschnitt: {section}", "Füge den Abschnitt '{section}' mit Inhalt hinzu"),
        ("A section is missing: {section}", "Add the section '{section}' with content"),
    ),
    "EMPTY_SECTION": _code(
        "A heading that the template wants is there, with nothing below it.",
        ("Der Abschnitt ist leer: {section}", "Fülle den Abschnitt '{section}'"),
        ("The section is empty: {section}", "Fill the section '{section}'"),
    ),
    "SECTION_ORDER": _code(
        "The headings of the template stand in another order.",
        ("Der Abschnitt '{section}' steht an der falschen Stelle", "Halte die Reihenfolge ein: {order}"),
        ("The section '{section}' stands in the wrong place", "Keep this order: {order}"),
    ),
    "NO_JSON": _code(
        "There is no JSON where the rule looks for it.",
        ("Die Antwort enthält kein JSON", "{how}"),
        ("The answer holds no JSON", "{how}"),
    ),
    "COMMAND_REJECTED": _code(
        "The program ended with an exit code that does not accept, and named no line.",
        ("{program} lehnt die Antwort ab (Exit-Code {code}){problem}", "Behebe, was das Programm meldet"),
        ("{program} rejects the answer (exit code {code}){problem}", "Repair what the program reports"),
    ),
    "COMMAND_FOUND": _code(
        "The program ended with an exit code that does not accept, and named this line.",
        ("{program}: {problem}", "Behebe, was das Programm in dieser Zeile meldet"),
        ("{program}: {problem}", "Repair what the program reports in this line"),
    ),
    "JUDGE_REJECTED": _code(
        "The judging model rejects the answer; its words are in the message.",
        ("Die prüfende KI lehnt die Antwort ab", "Behebe den genannten Mangel"),
        ("The judging model rejects the answer", "Repair what it names"),
    ),
    "JSON_MISMATCH": _code(
        "The JSON does not fit its schema or model.",
        ("Das JSON passt nicht an der Stelle {place}: {problem}", "Korrigiere das JSON"),
        ("The JSON does not fit at {place}: {problem}", "Correct the JSON"),
    ),
}


def rule_issue(
    code: str, locale: str, /, *, line: int = 0, file: str = "", part: str = "", **values: Any
) -> ValidationIssue:
    """An issue of this table. Values fill its templates; long or unprintable ones are clipped.

    Raises:
        KeyError: the code is not in the table, or a value of its templates is missing.
    """
    return worded(RULE_CODES[code], code, locale, line=line, file=file, part=part, **values)
