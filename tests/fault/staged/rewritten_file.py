"""As disk_full, with a broker that has rewritten its append-only file, and room that is made while it runs.

The new file is written without O_APPEND: what a full disk cuts off leaves a hole. The broker is killed soon after the
first turn that is acknowledged again, so that some starts find the hole, and others the file rewritten.
"""

import asyncio
import logging
import tempfile
from pathlib import Path

from tests.fault.staged import Seen, disk_full


def stage(long: bool) -> Seen:
    """Fill the disk and make room again, kill the broker, again and again."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it tells of each write to a killed server
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        return asyncio.run(disk_full._stage(Path(folder), 50 if long else 4, rewrites=True))
