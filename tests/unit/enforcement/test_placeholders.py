"""Placeholders are no content, in any form; short sentences are."""

import re

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
Der Rest bleibt, wie er war.
Alles andere bleibt gleich.
The rest is unchanged, as before.
The rest is omitted for brevity.
The rest of the section is omitted for brevity.
The rest is unchanged as in the first answer.
The rest is omitted here.
Text omitted due to length.
Content truncated for brevity.
The content is unchanged from v1.
The section is unchanged since v2.
All other sections unchanged from above.
Der Rest wie oben beschrieben.
Der Rest bleibt wie oben beschrieben.
Der Rest bleibt so, wie er ist.
Der Rest bleibt genau so.
Der Rest bleibt unangetastet.
Der Rest ist aus Platzgründen gekürzt.
Der Rest ist gekürzt worden.
Der Rest ist ausgelassen, der Kürze halber.
Alles andere wie bisher geregelt.
Alles andere bleibt unverändert bestehen.
Der Inhalt bleibt unverändert erhalten.
Der Abschnitt bleibt so bestehen.
T.B.D.
tbd...
**TBD:** decision
TBD - waiting for team
TBD (to be defined by ops)
TBC
To be confirmed.
To be decided later.
To be decided by the team.
To be decided in the next meeting.
To be determined (TBD)
To be discussed.
To be filled in.
To be filled in later
To be completed.
To be added later.
To be written.
To be specified
To be clarified.
To be announced
Will be added later.
Will be decided later.
Will be filled in.
Will follow.
Details to follow.
More details to follow.
Details follow.
Coming soon…
Work in progress
Work in progress.
WIP: decision
Under construction
Under discussion.
Still under discussion
Still to be decided.
Still to be determined
Not decided.
Not yet known.
Not yet available.
No decision yet.
No decision has been made yet.
None yet.
Decision pending.
Pending decision
Not specified.
Not applicable.
Not defined yet
Nothing yet.
N.A.
N/A – see above
as discussed
As discussed above.
As discussed earlier.
As previously discussed.
As discussed in the meeting.
As stated above.
As outlined above.
As mentioned above.
As described in the context.
As in the original.
As per discussion.
Same as before.
Same as Options.
Same as in the previous version.
See discussion.
See above section.
See the previous answer.
See previous version.
(see above)
Refer to above.
Remains unchanged.
unchanged from the previous version
[same as before]
[content unchanged]
[rest of section unchanged]
[Insert …]
[insert here]
[Your text here]
[TODO: write decision]
[Add decision here]
[Describe the decision here]
[...]
{decision}
{insert decision}
<decision>
<insert decision here>
<Beschreibung>
<!-- TODO -->
<TBD>
%DECISION%
___
___________
???
??
?
- ...
* …
1. ...
- [ ] ...
- [ ] [Criterion 1]
- [ ] Criterion 1
- Item 1
Criterion 1
Kriterium 1
Decision goes here.
Decision here
Your decision here
Text goes here.
Content goes here
Add content here.
Add your text here
Write your decision here.
Describe the decision here.
Describe the context here.
Fill this in.
Fill in later
Please fill in.
Please add.
Insert decision here
Insert text here.
Enter text here
Lorem ipsum
Sample text
Example text
Dummy text
placeholder text
Placeholder for the decision
TODO.
ToDo: Entscheidung ergänzen
@todo
// TODO
# TODO
todo - add later
TODO for Anna
TODOS
FIXME: write this
XXX
xxxx
tba
Noch offen
Ist noch offen.
Die Entscheidung ist noch offen.
Entscheidung offen.
Entscheidung ausstehend
Entscheidung steht noch aus.
Steht noch aus.
Ausstehend.
Noch ausstehend.
Noch zu entscheiden.
Noch zu klären.
Noch zu definieren.
Noch zu ergänzen
Noch festzulegen.
Noch nicht entschieden.
Noch nicht bekannt.
Noch nicht festgelegt.
Noch nicht definiert
Noch keine Entscheidung.
Noch keine.
Muss noch geklärt werden.
Muss noch ergänzt werden.
Ist noch zu klären.
Wird noch geklärt.
Wird noch entschieden.
Wird noch definiert.
Wird noch festgelegt.
Wird später ergänzt.
Wird später entschieden.
Wird nachgetragen.
Wird noch nachgeliefert
Zu klären
Zu bestimmen.
Zu ergänzen.
Zu definieren
Folgt später.
Folgt in Kürze.
Folgt …
Details folgen.
Weitere Details folgen.
Inhalt folgt.
Text folgt.
Beschreibung folgt
Kommt später.
Kommt noch.
In Arbeit.
In Klärung.
In Bearbeitung
In Diskussion
In Abstimmung.
Unklar.
k. A.
k.A.
Keine Angabe.
Keine Angaben
Nicht zutreffend.
Entfällt.
Wie bereits besprochen.
Wie oben besprochen.
Wie im Chat besprochen.
Wie diskutiert.
Wie vereinbart.
Wie abgesprochen
Wie oben beschrieben.
Wie bereits beschrieben.
Wie bereits erwähnt.
Wie zuvor.
Wie in der vorigen Fassung.
Wie gehabt.
Siehe oben.
Siehe vorherige Antwort.
s. o.
s.o.
s. oben
Bleibt unverändert.
Unverändert.
(unverändert, siehe oben)
[Hier Entscheidung einfügen]
[Entscheidung einfügen]
<Entscheidung>
{Entscheidung}
Hier steht die Entscheidung.
Hier Entscheidung einfügen
Hier die Entscheidung beschreiben.
Hier Text einfügen.
Hier kommt der Text hin.
Text hier einfügen
Beschreibung hier einfügen.
Bitte ausfüllen.
Bitte ergänzen.
Noch auszufüllen
Platzhalter
Platzhalter für die Entscheidung
Beispieltext
Blindtext
Mustertext
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
TODO comments are forbidden in the code.
TODO lists are synchronised every minute.
TODO items live in Redis.
Todo-Listen werden minütlich synchronisiert.
Todo app on Android
The TODO file is read at the start.
A linter counts TODO and FIXME.
We remove every TODO before a release.
Die TODO-Liste steht im Wiki.
TBD is trunk-based development.
TBD (trunk-based development) is used by all teams.
We practise TBD.
Wir nutzen TBD statt Feature-Branches.
N/A values are dropped.
NA values are imputed.
WIP limits are three per lane.
WIP-Grenzen gelten je Spalte.
Fixme comments break the build.
XXL sizes are supported.
Open files are closed.
Open source
Open Policy Agent
Open telemetry is used.
Pending orders expire after an hour.
Offen für Erweiterung, geschlossen für Änderung.
Offene Punkte werden im Ticket geführt.
Offene Tickets gehen an den Betrieb.
Noch offene Aufträge werden am Ende geschlossen.
Folgende Optionen wurden verglichen:
Es folgt dem Prinzip der geringsten Rechte.
To be or not to be.
To decide quickly, the team votes.
To be safe, we write twice.
To follow the standard, we use UTF-8.
To do this, a worker takes a lease.
To be added to the group, a user needs a role.
To be discussed topics live on the board.
The decision is Redis.
The decision is open to review by every team.
Decision: Redis.
Decision by vote.
Details in ADR-12.
Details are in the appendix.
Details stehen in ADR-12.
Text search uses Postgres.
Text is stored as UTF-8.
Context switches are cheap.
Content is cached for an hour.
Content goes through the filter.
Here we use Redis.
Add your key to the vault.
Add content hashes here and there to the index.
Add a cache.
Insert the row twice.
Insert rows in batches.
Enter the vault password.
Write tests first.
Describe tables by their schema.
Write your name in capital letters.
Fill the cache at the start.
Fill in gaps with zeros.
Please restart the server.
See ADR-12.
See RFC 9110.
See https://example.org/x
See the section Limits of the handbook.
Siehe ADR-7.
Siehe Kapitel 3.
Siehe oben rechts im Bild.
As described in RFC 9110.
As before, the relay reads the table.
As of today, all workers run 3.11.
As agreed with the security team, keys rotate monthly.
Same as Redis, but on disk.
Same site cookies are used.
Wie in ADR-12 beschrieben, liest der Relay die Tabelle.
Wie vereinbart wird monatlich rotiert.
Wie bisher liest der Relay die Tabelle.
Wie oben gezeigt, sinkt die Latenz.
Unchanged files are skipped.
Unveränderte Dateien werden übersprungen.
The API remains unchanged.
Die Schnittstelle bleibt unverändert.
Der Text bleibt 30 Tage gespeichert und wird dann gelöscht.
Truncated logs are marked.
Omitted fields are null.
Not every worker needs it.
Not defined here is a null value.
Not decided by a person, but by a rule.
No decision is ever lost.
No text is lost.
No details leak to the user.
None.
Yes
Nein.
Keine.
Keine Entscheidung geht verloren.
Noch keine Nutzer betroffen.
Noch nicht zugestellte Nachrichten bleiben in der Warteschlange.
Zu klären ist nichts.
Zu entscheiden hat der Betrieb.
Wird noch am selben Tag gelöscht.
Wird später gelöscht.
Muss noch vor dem Release laufen.
Steht im Wiki.
Kommt aus der Warteschlange.
Kommt noch ein Auftrag, wird er abgelehnt.
Unklare Anfragen werden abgelehnt.
In Arbeit befindliche Aufträge bleiben.
Hier steht der Server.
Hier kommt Redis zum Einsatz.
Bitte nicht löschen.
Bitte Tests ausführen.
Text einfügen kann nur der Autor.
Platzhalter werden ersetzt.
Placeholder values are replaced.
Placeholder for the user's name: {name}.
Example text is shown in grey.
Criterion 1: the answer arrives in time.
Item 1 is sold out.
Option 1
Option A: Redis
3
[Redis](https://redis.io)
- [ ] Redis läuft
{a, b}
</section>
Vec<String>
List<T>
%PATH% is read.
50%
${HOME}/bin is in the path.
{{ name }} is replaced.
`TODO`s are counted.
* Redis
> We use Redis.
| Name | TBD |
Status: TBD after the review of 12 May
Coming soon after the release, the cache is filled.
Under discussion were Redis and Postgres.
In Diskussion waren Redis und Postgres.
In progress turns are kept.
Alles andere bleibt in Python.
Der Rest bleibt bei 60 Sekunden.
The content is truncated at 4 kB.
The rest is omitted from the log.
The rest is omitted by the parser.
The rest is omitted for anonymous users.
The text is unchanged, but truncated at 4 kB.
The text is truncated due to a limit of the index.
The content is unchanged since the last deployment.
Der Text wird gekürzt auf 200 Zeichen.
Der Inhalt wird gekürzt gespeichert.
Der Rest bleibt so lange im Cache.
Der Inhalt bleibt bestehen, bis der Nutzer ihn löscht.
""".strip().split("\n")


@pytest.mark.parametrize("line", PLACEHOLDERS)
def test_a_line_that_stands_for_text_nobody_has_written_is_no_content(line: str) -> None:
    assert is_placeholder(line)


@pytest.mark.parametrize("line", CONTENT)
def test_a_short_line_that_says_something_is_content(line: str) -> None:
    assert not is_placeholder(line)


@pytest.mark.parametrize(
    "line",
    ["TBD", "TODO write this", "Wird noch geklärt.", "[Insert decision here]", "Noch offen.", "...", "To be decided."],
)
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


def test_a_state_is_a_status_and_no_decision() -> None:
    rule = StructureRule(sections=("Status", "Decision"))
    found = rule.validate("## Status\n\nPending\n\n## Decision\n\nPending\n", {"locale": "en"})
    assert [(issue.code, issue.line) for issue in found] == [("EMPTY_SECTION", 5)]
    assert len(rule.validate("## Status\n\nTBD\n\n## Decision\n\nPending\n", {})) == 2


@pytest.mark.parametrize(("field", "value"), [("title", "TBD"), ("title", "'[Title]'"), ("status", "'{status}'")])
def test_a_placeholder_in_the_header_is_an_empty_field(field: str, value: str) -> None:
    text = re.sub(rf"(?m)^{field}: .*", f"{field}: {value}", ADR)
    assert [issue.code for issue in ADRStructureValidator().validate(text, {})] == ["EMPTY_ADR_FIELD"]
    assert ADRStructureValidator().validate(re.sub("(?m)^status: .*", "status: pending", ADR), {}) == []


def test_placeholders_are_no_criteria() -> None:
    text = re.sub(r"(?m)^- \[ \] .*", "- [ ] TBD", ADR, count=1)
    assert [issue.code for issue in ADRStructureValidator().validate(text, {})] == ["INSUFFICIENT_CRITERIA"]
