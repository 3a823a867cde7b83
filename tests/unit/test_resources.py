"""A resource of operators is declared once: terminal, JSON, API, page, button and rights follow."""

from dataclasses import asdict, dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner
from fastapi.routing import iter_route_contexts

from api_client.client import TurnsClient
from api_client.resources.registry import PAGES, RESOURCES
from api_client.resources.resource import Column, Listed, Resource, ResourcePage
from api_client.web.pages.operators import resources as pages
from api_client.web.routes import resources as routes
from tests.html import Document
from tests.unit.web.conftest import caller
from tests.unit.web.fake import FakeTurns, app_with, passed
from worker.cli.resources import listing as terminal
from worker.plugins.notifications import notification_commands as notifications


@dataclass(frozen=True)
class Lamp:
    """What only this test knows."""

    name: str
    since: float
    owner: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


async def read(_client: TurnsClient, most: int) -> Listed[Lamp]:
    return [Lamp("<b>left</b>", 0.0, "anna"), Lamp("right", 0.0, "ben")][: most if most > 0 else None], {"burning": 2}


LAMPS = Resource[Lamp](
    read=read,
    none="no lamp is on",
    caption=lambda facts: f"{facts['burning']} burning",
    columns=(
        Column("lamp", lambda lamp, _: lamp.name, "wide"),
        Column("on since", lambda lamp, _: lamp.since, "when"),
        Column("secret", lambda lamp, _: lamp.owner, "id"),
    ),
    doing="sees lamps",
    private=True,
    api="/v1/lamps",
    called="list_lamps",
    about="The lamps.",
    kind="lamp",
)
PAGE = ResourcePage(address="/lamps", title="Lamps", position=9, resources=(LAMPS,))


@pytest.fixture
def app() -> Any:
    app = app_with(FakeTurns(passed("Hallo.")))
    routes.add_resource(app.router, LAMPS)
    pages.add_page(app.router, PAGE)
    return app


async def test_the_api_lists_it_to_those_who_may_read_it(app: Any) -> None:
    async with caller(app) as here, caller(app, host="203.0.113.7") as far:
        told = (await here.get("/v1/lamps")).json()
        assert (told["object"], told["burning"]) == ("list", 2)
        assert told["data"][1] == {"object": "lamp", "name": "right", "since": 0.0, "owner": "ben"}
        assert (await far.get("/v1/lamps")).status_code == 403
    assert app.openapi()["paths"]["/v1/lamps"]["get"]["description"] == "The lamps."


async def test_the_page_shows_its_table(app: Any) -> None:
    async with caller(app) as here:
        page = Document((await here.get("/lamps")).text)
    [table] = page.all("table")
    assert "2 burning" in table.text
    assert [head.text for head in page.all("th")] == ["Lamp", "On since"]
    assert "<b>left</b>" in table.text, "what a row says is text"
    assert "anna" not in table.text


def test_the_terminal_lists_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "run_with_client", lambda _ask: ([Lamp("left", 0.0, "anna")], {}))
    monkeypatch.setattr(terminal, "run_with_client", lambda _ask: ([Lamp("left", 0.0, "anna")], {}))
    listed: click.Command = terminal.make_list_command(LAMPS, "lamps", "List the lamps.", example="lamps")
    assert CliRunner().invoke(listed).stdout.split() == ["lamp", "on", "since", "secret", "left", "anna"]
    assert '"owner": "anna"' in CliRunner().invoke(listed, ["--json"]).stdout
    monkeypatch.setattr(notifications, "run_with_client", lambda _ask: ([], {}))
    monkeypatch.setattr(terminal, "run_with_client", lambda _ask: ([], {}))
    assert CliRunner().invoke(listed).stdout == "no lamp is on\n"


def test_every_resource_has_its_address_and_every_page_its_place() -> None:
    known = {context.path for context in iter_route_contexts(app_with(FakeTurns(passed("Hallo."))).routes)}
    assert {each.api for each in RESOURCES} | {page.address for page in PAGES} <= known
    assert all(each in RESOURCES for page in PAGES for each in page.resources)
