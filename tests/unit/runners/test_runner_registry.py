from __future__ import annotations

import pytest

from api_client.contract.errors import SettingsError
from worker.runners.registry import build_runner


def test_a_name_gives_a_runner_and_no_option() -> None:
    runner, option = build_runner("scripted")
    assert (runner.name, option) == ("scripted", "")


def test_what_stands_after_the_first_colon_is_the_option() -> None:
    runner, option = build_runner("inline:scripts/a:b.yaml")
    assert (runner.name, option) == ("inline", "scripts/a:b.yaml")


def test_all_models_of_a_runner_share_one_object() -> None:
    assert build_runner("scripted:a.yaml")[0] is build_runner("scripted")[0]


def test_an_unknown_runner_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"no runner 'clade'; there are: .*inline, .*scripted"):
        build_runner("clade:x")
