"""Ten rules that start no process and ask no model, and answers of about 4 kB."""

#: Ten rules that start no process and ask no model; all are judged in place.
POLICY = """
locale: en
rules:
  - step_marker
  - adr_structure
  - file_existence
  - {rule: length, options: {min_chars: 10, max_chars: 20000}}
  - {rule: language, options: {expect: en}}
  - {rule: forbidden, options: {words: [lorem ipsum, foobar]}}
  - {rule: links, options: {hosts: [example.org]}}
  - code
  - {rule: structure, options: {sections: [Context, Decision]}}
  - {rule: forbidden, name: no_names, options: {words: [Alice, Bob], secrets: false}}
"""
PARAGRAPH = "The cache stands in front of the search, and it is filled again when the index has changed. "
CODE = '```python\ndef cached(key: str) -> str:\n    return key.lower()\n```\n\n```json\n{"ttl": 60}\n```\n\n'


def answer(number: int) -> str:
    """An answer of about 4 kB; no two are equal."""
    body = PARAGRAPH * 21
    return (
        f"# Answer {number}\n\n## Context\n\n{body}\n\n{CODE}See https://example.org/{number}.\n\n"
        f"## Decision\n\n{body}\n\n<!-- STEP: done -->\n"
    )
