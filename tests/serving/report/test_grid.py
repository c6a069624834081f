from __future__ import annotations

from handlers.shapes import Shape
from serving.report.grid import arrange


def shapes(*texts: str) -> list[Shape]:
    return [Shape.parse(text) for text in texts]


def test_the_dims_that_vary_most_are_the_axes() -> None:
    found = shapes(*(f"x={b}x3x{h}x{w}:fp32" for b in (1, 2) for h in (32, 64, 96) for w in (32, 64, 96, 128)))
    grid = arrange(found)
    assert grid is not None
    assert (grid.x.label, grid.x.ticks) == ("x[3]", (32, 64, 96, 128))
    assert (grid.y.label, grid.y.ticks) == ("x[2]", (32, 64, 96))
    assert [panel.title for panel in grid.panels] == ["x[0]: 1", "x[0]: 2"]
    placed = [index for panel in grid.panels for index in panel.cells.values()]
    assert sorted(placed) == list(range(24))
    assert found[grid.panels[1].cells[2, 0]].text == "x=2x3x96x32:fp32"


def test_dims_that_vary_together_are_one_axis() -> None:
    grid = arrange(shapes("x=1x3x32x32:fp32", "x=1x3x64x64:fp32", "x=8x3x64x64:fp32"))
    assert grid is not None
    assert {grid.x.label, grid.y.label} == {"x[2] = x[3]", "x[0]"}
    assert len(grid.panels) == 1 and len(grid.panels[0].cells) == 3


def test_one_axis_and_none() -> None:
    line = arrange(shapes("x=1x3:fp32", "x=2x3:fp32"))
    assert (
        line is not None
        and (line.x.label, line.y.label) == ("x[0]", "")
        and line.panels[0].cells
        == {
            (0, 0): 0,
            (0, 1): 1,
        }
    )
    point = arrange(shapes("x=1x3:fp32"))
    assert point is not None and point.x.label == point.y.label == ""


def test_inputs_that_differ_have_no_grid() -> None:
    assert arrange(shapes("x=1x3:fp32", "x=1x3x3:fp32")) is None
    assert arrange([]) is None
