"""Flower with all its pages behind the password: of itself it leaves /metrics and /healthcheck open."""

from __future__ import annotations

from flower.views.monitor import Healthcheck, Metrics  # type: ignore[import-untyped]
from tornado.web import authenticated

from worker.app import app


def main() -> None:
    """Run Flower; its options come from FLOWER_* variables."""
    for handler in (Metrics, Healthcheck):
        handler.get = authenticated(handler.get)
    app.start(argv=["flower"])


if __name__ == "__main__":
    main()
