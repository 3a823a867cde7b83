"""Faults that once broke a promise, staged again on real parts. ``make faults`` runs all of them and prints one table.

Each module of STAGES has ``def stage(long: bool) -> Seen``: it stages its fault with real processes, at a size that
suits a test (``long=False``, at most a minute) or a proof (``long=True``, a few minutes).
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """What a staged fault showed.

    Attributes:
        tried: How many cases were tried.
        cases: What a case is, in the plural: "acknowledged turns", "archives".
        wrong: How many of them broke the promise.
        beside: Further figures in a few words: "12 refused, 3 adopted".
    """

    tried: int
    cases: str
    wrong: int
    beside: str = ""


#: Module of this package -> the promise that its fault once broke.
STAGES: dict[str, str] = {
    "second_fault": "an acknowledged turn survives a second fault of a replicated store",
    "disk_full": "what is acknowledged on a full disk is kept when the broker is killed",
    "restore": "a refused restore leaves the place as it was",
    "slow_store": "no alarm about a lost turn that had ended well on a slow store",
    "rolling_upgrade": "every chat gets its answer while relays and workers of two releases run beside each other",
    "agent_oom": "agents killed from outside on one host cost no turn an attempt, and the host draws no work",
    "uneven_hosts": "a set-up error of one host ends no turn",
    "other_root": "phases run on a worker that has their folder",
    "rewritten_file": "what is acknowledged around a full disk is kept after the broker has rewritten its file",
    "new_cluster": "a new installation on an empty Redis Cluster takes turns and ends them, and doctor agrees",
    "any_settings": "any allowed settings take turns: no bookkeeping refuses a submit",
    "files_away": "a finished run is kept while the object store is away",
    "frozen_engine": "a run that finished while its engine was frozen is not paid for again",
    "frozen_host": "a host that was frozen goes on with its runs where no other took them, and only there",
    "twin_workers": "workers of containers with the same host name and process ids count one by one",
}


def stage_of(name: str) -> Callable[[bool], Seen]:
    """The function that stages the fault of this name."""
    staged: Callable[[bool], Seen] = importlib.import_module(f"{__name__}.{name}").stage
    return staged
