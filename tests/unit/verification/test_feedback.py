"""feedback.md: whole or not there, with the attempt of the real maximum and a time that says its zone."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path

import pytest

from worker.verification import FeedbackChannel


@pytest.fixture
def channel(tmp_path: Path) -> FeedbackChannel:
    return FeedbackChannel(tmp_path)


async def test_feedback_names_attempt_time_issues_and_what_to_do(channel: FeedbackChannel) -> None:
    """The real maximum, an aware time, UTF-8 whatever the locale."""
    assert await channel.send("- a.py:3: Größe fehlt", 2, 5)
    text = channel.feedback_path.read_bytes().decode("utf-8")
    assert "**Attempt**: 2/5" in text
    assert datetime.fromisoformat(re.findall(r"\*\*Time\*\*: (\S+)", text)[0]).tzinfo is not None
    assert "## Issues Found\n\n- a.py:3: Größe fehlt\n" in text
    assert "## Required Actions" in text


async def test_feedback_is_also_written_in_german(tmp_path: Path) -> None:
    channel = FeedbackChannel(tmp_path, max_attempts=4, locale="de")
    assert await channel.send("x", 4)
    text = channel.read() or ""
    assert "**Versuch**: 4/4" in text
    assert "Das war der letzte Versuch." in text


@pytest.mark.parametrize("attempt", [0, -1, 4])
async def test_an_attempt_beyond_the_maximum_is_refused(channel: FeedbackChannel, attempt: int) -> None:
    """Never "Attempt 4/3"."""
    with pytest.raises(ValueError, match="attempts count from 1 to their maximum"):
        await channel.send("x", attempt, 3)
    assert not channel.has_pending_feedback()


async def test_pending_feedback_is_seen_and_cleared_once_or_twice(channel: FeedbackChannel) -> None:
    assert not channel.has_pending_feedback()
    await channel.send("x", 1)
    assert channel.has_pending_feedback()
    channel.clear()
    channel.clear()
    assert not channel.has_pending_feedback()


async def test_new_feedback_replaces_the_old_as_a_whole_and_leaves_nothing_beside_it(channel: FeedbackChannel) -> None:
    await channel.send("alt " * 1000, 1)
    await channel.send("neu", 2)
    assert "alt" not in (channel.read() or "")
    assert [path.name for path in channel.session_dir.iterdir()] == ["feedback.md"]


async def test_a_write_that_fails_is_told_and_keeps_what_was_there(
    channel: FeedbackChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """send() says False when nobody can read the feedback."""
    await channel.send("erste", 1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert await channel.send("zweite", 2) is False
    assert "erste" in (channel.read() or "")
    assert [path.name for path in channel.session_dir.iterdir()] == ["feedback.md"]


async def test_without_a_folder_nothing_is_sent(tmp_path: Path) -> None:
    channel = FeedbackChannel(tmp_path / "nowhere")
    assert await channel.send("x", 1) is False
    channel.clear()
    assert channel.archive() is None


async def test_a_link_in_its_place_is_replaced_and_never_followed(channel: FeedbackChannel, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    channel.feedback_path.symlink_to(target)
    assert not channel.has_pending_feedback()
    assert await channel.send("x", 1)
    assert target.read_text() == "precious"
    assert not channel.feedback_path.is_symlink()


async def test_the_last_feedback_is_archived(channel: FeedbackChannel) -> None:
    """After the final failure it lies in logs/, not where the next run would take it for its own."""
    await channel.send("letzte", 3)
    kept = channel.archive()
    assert kept is not None
    assert "letzte" in kept.read_text()
    assert kept.parent == channel.session_dir / "logs"
    assert not channel.has_pending_feedback()
    assert channel.archive() is None
