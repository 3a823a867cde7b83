"""Chats on two hosts without a common folder, whose processes are killed: no message, no file and no turn is lost."""

from pathlib import Path

import pytest

from tests.claude.chats import Plan
from tests.objects.chats import scripted
from tests.objects.seaweedfs import ObjectServer


@pytest.mark.long
def test_chats_go_on_while_the_processes_of_two_hosts_are_killed(server: ObjectServer, tmp_path: Path) -> None:
    judgement = scripted(tmp_path, server, Plan(chats=4, at_once=2, every=3.0, seed=3))
    print(judgement.table())
    assert judgement.good, judgement.table()
    assert judgement.counts["messages"] == 20
