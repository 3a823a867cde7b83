"""The bench of growth counts each curve, and fails where one is steeper than a line."""

from pathlib import Path

import pytest

from tests.lab.bench import growth


def test_each_curve_is_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (measure, _, full) in growth.CURVES.items():
        sizes = [1000, 2000] if name == "texts" else [10, 20]
        monkeypatch.setitem(growth.CURVES, name, (measure, sizes, full))
    growth.main(["--quick", "--plots", str(tmp_path)])
    said = capsys.readouterr().out
    assert {path.stem.partition("-")[2] for path in tmp_path.iterdir()} == {*growth.CURVES}
    assert all(f"| {figure} |" in said for figure in ("commands of the next turn", "bytes to list ten", "connections"))


def test_a_figure_that_grows_with_the_square_of_its_size_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure(sizes: list[int]) -> growth.Curve:
        curve = growth.Curve("t", "x")
        for size in sizes:
            curve.note(size, flat=7, line=3 * size, square=size**2)
        return curve

    monkeypatch.setitem(growth.CURVES, "texts", (measure, [10, 100], []))
    assert growth.main(["--quick", "--only", "texts"]) == 1
    assert capsys.readouterr().out.rstrip().endswith("grows faster than its size: texts: square")
