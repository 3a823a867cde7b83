"""Operators read and name owners by their names; what failed is counted for each. Real workers, real commands."""

import pytest

from api_client import api_keys as ring
from api_client.contract.owners import format_owner, owner_of_name, owner_of_user, parse_owner
from api_client.store.audit import AuditLine, group_lines
from tests.installation import Installation

SCRIPT = """
- when: wrong
  attempts: [[{say: "Ohne Marke."}, {usage: {input_tokens: 100, output_tokens: 11, cost_usd: 0.5}}]]
- attempts: [[{say: "Gut. <!-- STEP: done -->"}, {usage: {input_tokens: 7, output_tokens: 2, cost_usd: 0.25}}]]
"""


async def test_who_is_hit_is_said_by_name_and_a_filter_takes_name_or_hash(installation: Installation) -> None:
    own = installation.play(SCRIPT, budgets={"owner:each": 0.002})
    installation.worker()
    ring.add_key(own.keys_path, ring.ApiKey(name="annas-key", hash="", owner="anna"))
    anna, user = owner_of_name("anna"), owner_of_user(owner_of_name("chat"), "u1")
    whose = {"wrong": (anna, "anna"), "good": (user, "chat")}
    client = installation.client
    ids = {}
    for text, (owner, key) in whose.items():
        ids[text] = await installation.ask(text, text, owner=owner, key=key, policy={"step_marker": ("retry", "fail")})
    for each in ids.values():
        await installation.result(each)
    rows = {row.name: row for row in (await client.figures.read_stats(3600.0, "owner")).rows}
    assert (rows["anna"].tokens, rows["anna"].failed_tokens, rows["anna"].rejected) == (333, 333, 3)
    assert rows["anna"].failed_cost_usd == pytest.approx(1.5)
    good = rows[f"chat/{user}"]
    assert (good.tokens, good.failed_tokens, good.rejected) == (9, 0, 0)
    await client.orders.write_line("cancel", by=f"key:{anna[:12]}")
    async with installation.web(client) as http:
        key = ring.add_key(own.keys_path, ring.ApiKey(name="op", hash="", owner="op", right="operator"))
        bearer = {"authorization": f"Bearer {key}"}
        listed = (await http.get("/v1/turns?owner=anna", headers=bearer)).json()
        assert [turn["turn_id"] for turn in listed["data"]] == [ids["wrong"]]

    def said(*words: str) -> str:
        return installation.command(*words).stdout

    assert "anna" in said("turn", "show", ids["wrong"])
    for name in ("anna", anna):
        shown = said("turn", "list", "--owner", name)
        assert ids["wrong"] in shown
        assert ids["good"] not in shown
    assert ids["good"] in said("turn", "list", "--owner", f"chat/{user}")
    assert "key:anna" in said("data", "audit")
    assert "0.0020" in said("stats", "budgets")
    named = ring.make_owner_namer(own.keys_path)
    assert [named(f"owner:{anna}"), named(f"owner {anna}"), named(f"key:{user[:12]}")] == [
        "owner:anna",
        "owner anna",
        f"key:{user[:12]}",
    ]


def test_an_owner_is_named_in_each_form_it_is_shown_in() -> None:
    anna, user = owner_of_name("anna"), owner_of_user(owner_of_name("chat"), "u1")
    assert [format_owner(*each) for each in ((anna, "anna"), (user, "chat"), ("local", ""), (anna, ""))] == [
        "anna",
        f"chat/{user}",
        "local",
        anna,
    ]
    for owner, said in ((anna, "anna"), (anna, anna), (user, f"chat/{user}"), ("local", "local"), ("", "")):
        assert parse_owner(said) == owner


def test_the_lines_of_a_bulk_action_are_one_group() -> None:
    lines = [AuditLine(at=9.0, action="gc", by="a")]
    lines += [AuditLine(at=8.0, action="cancel", by="a", bulk="b1", turn_id=f"t{n}") for n in range(356)]
    lines += [AuditLine(at=7.0, action="cancel", by="a", turn_id="t", refused="ended")] * 2
    groups = group_lines(lines)
    assert [(group.first.action, group.count, len(group.turn_ids), group.refused) for group in groups] == [
        ("gc", 1, 1, 0),
        ("cancel", 356, 20, 0),
        ("cancel", 1, 1, 1),
        ("cancel", 1, 1, 1),
    ]
