"""Runs Flower with /metrics and /healthcheck behind the password, which Flower leaves open."""

from __future__ import annotations

import os
from pathlib import Path

from flower.views.monitor import Healthcheck, Metrics  # type: ignore[import-untyped]
from tornado.web import authenticated

from worker.app import app


def main() -> None:
    """Run Flower with its options from FLOWER_* variables and its password from a variable or a file."""
    os.umask(0o077)  # its history names users' sessions
    if path := os.environ.pop("FLOWER_BASIC_AUTH_FILE", ""):
        os.environ["FLOWER_BASIC_AUTH"] = Path(path).read_text(encoding="utf-8-sig").strip()
    for handler in (Metrics, Healthcheck):
        handler.get = authenticated(handler.get)
    app.start(argv=["flower"])


if __name__ == "__main__":
    main()
