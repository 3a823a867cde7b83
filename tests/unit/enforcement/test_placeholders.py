"""Placeholders are no content, in any form; short sentences are."""

import pytest

from tests.unit.enforcement.samples import ADR
from worker.enforcement import ADRStructureValidator
from worker.enforcement.documents.placeholders import is_placeholder
from worker.enforcement.rules import LengthRule, StructureRule

PLACEHOLDERS = """
TBD
TBD.
**TBD**
_tbd_
- TBD
- [ ] TBD
1. TBD
> TBD
(TBD)
TODO
TODO: describe the decision
TODO(anna): later
- [ ] TODO fill in
FIXME
...
…
---
N/A
n/a.
&nbsp;
[Insert decision here]
[…]
[Beschreibung der Entscheidung]
- [Option 1]
<your decision here>
{{ decision }}
${decision}
To be decided.
To be determined
Not yet decided.
Still open.
As discussed.
Same as above.
See above.
Lorem ipsum dolor sit amet, consetetur sadipscing elitr.
Noch offen.
Offen.
Noch zu klären
Wird noch ergänzt.
Folgt.
Folgt noch …
Wie besprochen.
Wie oben.
Siehe oben
(unverändert)
The rest as before.
Der Rest bleibt unverändert.
""".strip().split("\n")
CONTENT = """
We use Redis.
No.
Ja
Redis
Use model A.
Wir warten auf die offene Entscheidung des Teams.
The decision is to be made by each team for itself.
Open files are closed at the end.
Pending turns are announced again.
Folgt einer Anfrage keine Antwort, wird sie wiederholt.
The text is unchanged when nobody edits it, and that is tested.
[Redis](https://redis.io) is used.
[Redis][1]
[x] done
- [x] Antwort unter 100 ms
`TODO` comments are counted by the linter and shown on the page of the project, so nobody forgets one of them.
<img src="x.png">
<details>
{"a": 1}
See above all the limits of the service.
As discussed in ADR-12, the store is Redis.
TODOs are not allowed in the code.
TBDs
404
""".strip().split("\n")


@pytest.mark.parametrize("line", PLACEHOLDERS)
def test_a_line_that_stands_for_text_nobody_has_written_is_no_content(line: str) -> None:
    assert is_placeholder(line)


@pytest.mark.parametrize("line", CONTENT)
def test_a_short_line_that_says_something_is_content(line: str) -> None:
    assert not is_placeholder(line)


@pytest.mark.parametrize("line", ["TBD", "[Insert decision here]", "Noch offen.", "...", "To be decided."])
def test_rules_find_a_section_of_a_placeholder_empty(line: str) -> None:
    text = ADR.replace("Wir nehmen einen Cache.", line)
    assert [issue.code for issue in ADRStructureValidator().validate(text, {})] == ["EMPTY_ADR_SECTION"]
    assert [issue.code for issue in StructureRule(sections=("Entscheidung",)).validate(text, {})] == ["EMPTY_SECTION"]


def test_a_placeholder_beside_text_leaves_a_section_filled() -> None:
    text = ADR.replace("Wir nehmen einen Cache.", "TBD\n\nWir nehmen einen Cache.")
    assert ADRStructureValidator().validate(text, {}) == []
    assert ADRStructureValidator().validate(ADR.replace("Wir nehmen einen Cache.", "```text\nTODO\n```"), {}) == []


def test_placeholders_do_not_count_as_written_words() -> None:
    answer = "Use Redis.\n\n- TBD\n- [Insert reasons here]\n- To be decided."
    assert [issue.code for issue in LengthRule(min_words=3).validate(answer, {})] == ["ANSWER_TOO_SHORT"]
    assert LengthRule(min_words=2, max_words=12).validate(answer, {}) == []
