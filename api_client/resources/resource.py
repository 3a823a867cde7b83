"""A kind of thing that operators list, declared once: rows, columns, buttons, and who may read them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from api_client.client import TurnsClient

Row = TypeVar("Row")
Listed: TypeAlias = tuple[Sequence[Row], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CellContext:
    """Data that a table cell needs besides its row: the current time, and the names of owners and keys."""

    now: float
    named: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Viewer:
    """A caller that views a resource over HTTP, with its permissions."""

    operator: bool
    metrics: bool
    scopes: frozenset[str]


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column in the table of a resource.

    ``kind`` is ``wide``, ``num``, ``quiet``, ``id`` (terminal only), or, for times in seconds since the epoch, ``when``
    or ``clock``. ``most`` is the number of characters shown.
    """

    head: str
    cell: Callable[[Row, CellContext], Any]
    kind: str = ""
    most: int = 60


@dataclass(frozen=True, kw_only=True)
class Button(Generic[Row]):
    """A button on a resource's page that carries out an operator's action on the resource."""

    name: str
    words: str
    fields: Callable[[Row], Mapping[str, str]]
    act: Callable[[TurnsClient, Mapping[str, str], str], Awaitable[object]]
    all_words: str = ""


async def _nothing(_client: TurnsClient) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Resource(Generic[Row]):
    """Declares a list, such as all workers, that is available as a command, over HTTP and as a page.

    Attributes:
        read: returns rows, at most the number given (-1: all), and facts about all of them.
        none: shown where there is no row. caption: above a page's table, from the facts.
        doing: names in a refusal what only operators may do. ``private``: only they may read it; ``figures``: only who
            may read figures over all owners.
        called, about: name and description of its ``GET``. kind: the ``object`` of a row.
        limited: callers choose the number of rows. shown: the row as a viewer sees it; None: hidden.
    """

    read: Callable[[TurnsClient, int], Awaitable[Listed[Row]]]
    columns: tuple[Column[Row], ...]
    none: str
    api: str
    called: str
    about: str
    caption: Callable[[Mapping[str, Any]], str] = lambda _: ""
    buttons: tuple[Button[Row], ...] = ()
    doing: str = ""
    private: bool = False
    figures: bool = False
    kind: str = ""
    limited: bool = False
    shown: Callable[[Row, Viewer], Row | None] = lambda row, _: row


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePage:
    """Declares a web page that shows the tables of resources to operators."""

    address: str
    title: str
    position: int
    resources: tuple[Resource[Any], ...] = ()
    template: str = "resource.html"
    refresh_seconds: int = 0
    more: Callable[[TurnsClient], Awaitable[dict[str, Any]]] = field(default=_nothing)
