"""The base of request bodies, and the port of fields that capabilities add to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, create_model

from api_client.contract.package_parts import collect_parts
from api_client.contract.settings import Settings


class Body(BaseModel):
    """Base class for request bodies and the objects in them. A null field counts as missing."""

    model_config = ConfigDict(strict=True, frozen=True)


_B = TypeVar("_B", bound=Body)


class BodyField(NamedTuple):
    """A field that a capability adds to request bodies. ``read`` returns the data to attach to the turn.

    ``model`` is a ``Body`` or another type that pydantic checks.
    """

    name: str
    model: Any
    read: Callable[[Any, Settings], dict[str, Any]]


@cache
def _load_fields() -> list[BodyField]:
    return collect_parts("api_client.web.bodies.body_fields", "FIELD")


def with_added_fields(model: type[_B]) -> type[_B]:
    fields: dict[str, Any] = {field.name: (field.model | None, None) for field in _load_fields()}
    return create_model(model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields)


def read_added_fields(body: Body, settings: Settings) -> dict[str, Any]:
    """Read the fields that capabilities added to a request body, and return the data to attach to the turn.

    Raises ``ApiError``.
    """
    found = dict[str, Any]()
    for field in _load_fields():
        if (value := getattr(body, field.name)) is not None:
            found |= field.read(value, settings)
    return found
