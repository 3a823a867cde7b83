"""How the product is cut into folders."""

import ast
from pathlib import Path, PurePosixPath

import pytest

from tests.house.allowed import Allowed, table
from tests.house.figures import files, functions, settings_of
from tests.house.names import repeated
from tests.house.structure import (
    arrows,
    code_lines,
    keys_on_both_sides,
    knots,
    mutual,
    names_twice,
    parsed,
    places_of_limits,
)

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


def product(root: Path, modules: dict[str, str]) -> Path:
    """A product of these modules, by path."""
    for name, text in modules.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_folders_that_import_each_other_in_a_circle_are_a_knot(tmp_path: Path) -> None:
    modules = {
        "api_client/a/one.py": "from api_client.b import two\n",
        "api_client/b/two.py": "def late():\n    from ..c.three import x\n",
        "api_client/c/three.py": "import api_client.a.one\n",
        "worker/d/four.py": "from api_client.a.one import x\nfrom worker.e.five import y\n",
        "worker/e/five.py": "if TYPE_CHECKING:\n    from worker.d.four import z\n",
    }
    found = arrows(parsed(product(tmp_path, modules)))
    circle = {"api_client/a", "api_client/b", "api_client/c"}
    assert knots(found) == [circle, {"worker/d", "worker/e"}]
    assert mutual(found) == [("worker/d", "worker/e")]


def test_each_folder_imports_only_what_its_table_allows() -> None:
    wrong = list(table().problems(arrows(parsed(ROOT))))
    assert not wrong, "import from below, or mend tests/house/allowed.toml"


def test_the_table_of_imports_finds_what_is_not_allowed_and_what_is_past() -> None:
    some = Allowed(
        contract=("api_client/contract",),
        core=("api_client",),
        faces=("api_client/web",),
        may={"api_client/turns": ("api_client/store",), "worker": ("worker/files",)},
    )
    found = {
        "api_client/contract": {"api_client/store"},  # the contract is below all
        "api_client/index": {"api_client/contract", "api_client/store"},  # not listed
        "api_client/store": {"api_client/turns"},  # from below to above
        "api_client/turns": {"api_client/contract", "api_client/store"},
        "api_client/web": {"api_client/turns", "worker"},  # the core, and a face
        "worker": {"api_client/turns", "api_client/web"},
    }
    assert list(some.problems(found)) == [
        "api_client/contract may not import api_client/store",
        "api_client/index may not import api_client/store",
        "api_client/store may not import api_client/turns",
        "api_client/web may not import worker",
        "worker may not import api_client/web",
        "is no folder, take it off: worker/files",
    ]


def test_the_table_of_imports_allows_no_circle() -> None:
    may = {"api_client/turns": ("api_client/store",), "api_client/store": ("api_client/turns",)}
    both = Allowed(contract=(), core=(), faces=(), may=may)
    found = {"api_client/turns": {"api_client/store"}, "api_client/store": {"api_client/turns"}}
    assert list(both.problems(found)) == ["the table allows a circle: api_client/store, api_client/turns"]


def test_a_store_key_that_both_sides_name_is_counted(tmp_path: Path) -> None:
    modules = {
        "api_client/contract/keys.py": "class Keys:\n    def turn(self): ...\n    due = _Named()\n",
        "api_client/turns.py": "self._keys.turn(x); keys.due(y)\n",
        "worker/record.py": "keys.turn(x); other.due(y)\n",
    }
    assert keys_on_both_sides(parsed(product(tmp_path, modules))) == (["turn"], 2)


def test_a_class_name_and_a_limit_in_two_modules_are_counted(tmp_path: Path) -> None:
    modules = {
        "api_client/a.py": "class Spent: ...\nmax_attempts = Field(3, le=20)\n",
        "worker/b.py": "class Spent: ...\nclass _Own: ...\nif attempts > 20:\n    pass\n",
        "worker/c.py": "class _Own: ...\nattempts = 21\n",
    }
    trees = parsed(product(tmp_path, modules))
    assert names_twice(trees) == {"Spent": ["api_client/a.py", "worker/b.py"]}
    assert places_of_limits(trees)["attempts 20"] == 2


def test_code_lines_are_without_imports_docstrings_comments_and_blanks() -> None:
    text = '"""Says.\n\nMore."""\nimport ast\n\n# why\ndef f(a,\n      b):\n    """Says."""\n    return """x\ny"""\n'
    assert code_lines(text, ast.parse(text)) == {7, 8, 10, 11}


def test_what_ties_the_house_together_does_not_grow() -> None:
    trees = parsed(ROOT)
    found = arrows(trees)
    tied = {
        "folders in import cycles": sum(map(len, knots(found))),
        "pairs of folders that import each other": len(mutual(found)),
        "store keys handled on both sides": len(keys_on_both_sides(trees)[0]),
        "public class names used twice": len(names_twice(trees)),
        "modules that state the limit of attempts": places_of_limits(trees)["attempts 20"],
    }
    most = dict(zip(tied, (0, 0, 0, 0, 1), strict=True))
    grown = {name: (count, most[name]) for name, count in tied.items() if count > most[name]}
    assert not grown, "now, and at most (`python -m tests.house`); lower these numbers where yours are smaller"
