"""How the product is cut into folders."""

from __future__ import annotations

from pathlib import Path

from tests.house.figures import MOST_FILES, folders, settings_of


def test_no_folder_of_the_product_has_more_files_than_somebody_keeps_in_mind() -> None:
    large = {name: count for name, count in folders(Path(__file__).parents[2]).items() if count > MOST_FILES}
    assert not large, f"make rooms, by noun: {large}"


def test_a_folder_that_is_too_large_is_seen(tmp_path: Path) -> None:
    (tmp_path / "worker" / "room" / "__pycache__").mkdir(parents=True)
    for number in range(MOST_FILES + 1):
        (tmp_path / "worker" / "room" / f"a{number}.lua").touch()
        (tmp_path / "worker" / "room" / "__pycache__" / f"a{number}.pyc").touch()
    assert folders(tmp_path) == {"worker/room": MOST_FILES + 1}


def test_the_settings_are_counted_in_a_file_and_in_a_room(tmp_path: Path) -> None:
    (tmp_path / "api_client" / "contract").mkdir(parents=True)
    (tmp_path / "api_client" / "contract" / "settings.py").write_text(
        "class Settings:\n    a: int = _setting(1)\n    b: int = other(2)\n"
    )
    room = tmp_path / "api_client" / "contract" / "settings"
    room.mkdir()
    (room / "serving.py").write_text("class Serving:\n    c: str = setting('')\n")
    assert settings_of(tmp_path) == 2
