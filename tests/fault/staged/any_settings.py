"""Any allowed settings, each at its least and its most, with every kind of model, budget and key: turns end."""

import asyncio
import random
import tempfile
from pathlib import Path

from tests.fault.staged import Seen
from tests.installation import settings_on
from tests.integration.test_any_settings import BUDGETS, carry_out, rows, values
from worker.processes.embedded_broker import EmbeddedBroker


def stage(long: bool) -> Seen:
    """Rows of other combinations than those of the test."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        chosen = rows(values() | {"budgets": BUDGETS}, random.Random())
        plain = settings_on(broker, Path(folder) / "root")
        tried, refused, wrong = asyncio.run(carry_out(plain, chosen if long else chosen[:1]))
    return Seen(tried, "submits", len(wrong), "; ".join([f"{len(chosen)} combinations, {refused} at a limit", *wrong]))
