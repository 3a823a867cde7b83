"""How the product is cut into folders."""

from __future__ import annotations

import ast
from pathlib import Path, PurePosixPath

import pytest

from tests.house.figures import files, functions, settings_of
from tests.house.names import repeated

ROOT = Path(__file__).parents[2]
MOST_FUNCTION_LINES = 60


def test_the_settings_are_counted_in_a_file_and_in_a_room(tmp_path: Path) -> None:
    (tmp_path / "api_client" / "contract").mkdir(parents=True)
    (tmp_path / "api_client" / "contract" / "settings.py").write_text(
        "class Settings:\n    a: int = _setting(1)\n    b: int = other(2)\n"
    )
    room = tmp_path / "api_client" / "contract" / "settings"
    room.mkdir()
    (room / "serving.py").write_text("class Serving:\n    c: str = setting('')\n")
    assert settings_of(tmp_path) == {"a", "c"}


def test_no_two_rooms_use_one_file_name_but_by_convention() -> None:
    beyond, _ = repeated(PurePosixPath(path.relative_to(ROOT).as_posix()) for path in files(ROOT, ".py"))
    assert not beyond, "name the file after its noun (docs/ARCHITECTURE.md, How files are named)"


@pytest.mark.parametrize(
    ("rooms", "by_convention"),
    [
        (("worker/turns", "worker/cli/turns"), True),
        (("api_client/contract", "worker/turns", "api_client/web/pages"), True),
        (("worker/turns", "worker/enforcement/rules"), True),
        (("worker/turns", "worker/verification"), False),
        (("api_client/contract", "api_client/contract/values"), False),
    ],
)
def test_a_name_is_shared_by_a_noun_and_the_rooms_that_declare_or_show_it(
    rooms: tuple[str, ...], by_convention: bool
) -> None:
    beyond, explained = repeated(PurePosixPath(room, "links.py") for room in rooms)
    assert (not beyond, explained) == (by_convention, int(by_convention))


def test_relay_and_worker_each_have_one_store() -> None:
    one, other, third = (PurePosixPath(room, "store.py") for room in ("api_client", "worker/turns", "worker/files"))
    assert not repeated([one, other])[0]
    assert repeated([one, other, third])[0]


def test_no_function_of_the_product_is_longer_than_a_screen() -> None:
    sizes = {
        str(path.relative_to(ROOT)): max(functions(ast.parse(path.read_text(encoding="utf-8"))), default=0)
        for path in files(ROOT, ".py")
    }
    assert {path: size for path, size in sizes.items() if size > MOST_FUNCTION_LINES} == {}
