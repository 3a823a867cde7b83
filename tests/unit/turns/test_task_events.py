"""A task and those that follow it in place: their ids, as Flower joins them to a chain."""

from __future__ import annotations

from uuid import UUID

from api_client.contract.tasks import RETRY, RUN, VALIDATE, Link
from worker.turns.tasks.task_events import Task, TaskEvents, TaskStory

_NAMED = {"task": VALIDATE, "options": {"task_id": "named-by-the-chain"}}


def story() -> TaskStory:
    task = Task(name=RUN, task_id="first", kwargs={"turn_id": "t0-1", "attempt": 1}, chain=[_NAMED])
    return TaskStory(TaskEvents(lambda: None), task)


def test_the_id_of_the_next_task_is_the_chains_own_where_that_names_one() -> None:
    told = story()
    assert told.following(Link(VALIDATE, 1)) == "named-by-the-chain"
    told.follow(Link(VALIDATE, 1))
    assert (told.task_id, told.task.root_id, told.task.parent_id) == ("named-by-the-chain", "first", "first")


def test_the_id_of_the_next_task_stays_the_same_until_that_is_begun() -> None:
    told = story()
    foreseen = told.following(Link(RETRY, 2))
    assert told.following(Link(RETRY, 2)) == foreseen == str(UUID(foreseen))
    told.follow(Link(RETRY, 2))
    assert told.task_id == foreseen


def test_each_task_that_follows_has_another_id() -> None:
    told, seen = story(), {"first"}
    for link in (Link(RETRY, 2), Link(VALIDATE, 2), Link(RETRY, 3), Link(VALIDATE, 3)):
        told.follow(link)
        seen.add(told.task_id)
    assert len(seen) == 5
