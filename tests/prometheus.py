"""A real Prometheus over a real relay, with the product's own rules, and a clock that may run faster.

Faster means that every duration of the rules (``for: 1m``, ``[30m]``) is divided; what the rules compare stays the
same.
"""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

import yaml

from tests.ports import free_port
from tests.support import wait_for

PROMETHEUS = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
RULE_FILE = Path(__file__).parents[1] / "compose" / "prometheus" / "alerts.yml"
#: How often the relay is scraped and the rules are evaluated, in seconds; a scrape may take as long.
SCRAPE_SECONDS = 2
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def faster(rules: str, times: float) -> str:
    """Return the rules with their durations divided by ``times``, but none shorter than three scrapes.

    The alert about scraping itself keeps its time, because a scrape does not get shorter.
    """

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found[2]) * _SECONDS[found[3]] / times
        return f"{found[1]}{max(3 * SCRAPE_SECONDS, round(seconds))}s{found[4]}"

    told: dict[str, Any] = yaml.safe_load(rules)
    for rule in (rule for group in told["groups"] for rule in group["rules"]):
        if rule["alert"] != "HelixNotScraped":
            rule["expr"] = re.sub(r"(\[)(\d+)([smh])(\])", shorter, rule["expr"])
            rule["for"] = re.sub(r"^()(\d+)([smh])()$", shorter, rule["for"]) if "for" in rule else "0s"
    return yaml.safe_dump(told)


class Prometheus:
    """A separate Prometheus process in a folder of its own."""

    def __init__(self, folder: Path, relay_url: str, *, times: float) -> None:
        assert PROMETHEUS
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        (folder / "alerts.yml").write_text(faster(RULE_FILE.read_text(), times))
        every = f"{SCRAPE_SECONDS}s"
        config = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [
                {
                    "job_name": "helix-turns",
                    "static_configs": [{"targets": [relay_url.removeprefix("http://")]}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        self._began = time.monotonic()
        self._log = (folder / "prometheus.log").open("wb")
        self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(60)
        self._log.close()

    def asked(self, query: str) -> list[dict[str, Any]]:
        """Return Prometheus's current answer to a query, which is empty while it starts."""
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        assert self.process.poll() is None, Path(self._log.name).read_text()
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return result
        except (OSError, urllib.error.URLError):
            return []

    def await_scrapes(self, count: int = 3) -> None:
        """Wait until the relay was scraped ``count`` times and no alert fires; ``ever_fired`` starts from here."""
        wait_for(lambda: [found for found in self.asked("sum_over_time(up[1h])") if int(found["value"][1]) >= count])
        wait_for(lambda: not self.firing())
        self._began = time.monotonic()

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        return {found["metric"]["alertname"] for found in self.asked('ALERTS{alertstate="firing"}')}

    def ever_fired(self) -> set[str]:
        """Return the names of the alerts that fired at any time since ``await_scrapes``."""
        seconds = int(time.monotonic() - self._began) + 1
        query = f'max_over_time(ALERTS{{alertstate="firing"}}[{seconds}s])'
        return {found["metric"]["alertname"] for found in self.asked(query)}
