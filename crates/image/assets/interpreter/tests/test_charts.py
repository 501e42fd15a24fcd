"""Figures read back into numbers."""

from __future__ import annotations

import sys
import unittest
from datetime import datetime
from pathlib import Path

from interpreter.tests.running import has

if has("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    sys.path.append(str(Path(__file__).resolve().parent.parent / "kernels"))
    from sloplet_charts import describe_figure


@unittest.skipUnless(has("matplotlib"), "matplotlib is not installed")
class Charts(unittest.TestCase):
    """One test for each kind."""

    def setUp(self) -> None:
        """Fresh axes."""
        self.figure = Figure()
        self.axes = self.figure.subplots()

    def test_lines_with_units_and_dates(self) -> None:
        self.axes.plot([datetime(2024, 1, 2), datetime(2024, 1, 3)], [1, 2], label="up")
        self.axes.plot([datetime(2024, 1, 2)], [5])
        self.axes.axhline(3)
        self.axes.set(title="t", xlabel="Time (s)", ylabel="Size [m]")
        chart = describe_figure(self.figure)
        self.assertEqual((chart["type"], chart["title"], chart["x_unit"], chart["y_unit"]), ("line", "t", "s", "m"))
        self.assertEqual((chart["x_scale"], chart["y_scale"]), ("datetime", "linear"))
        first, second = chart["elements"]
        self.assertEqual(first, {"label": "up", "points": [("2024-01-02T00:00:00+00:00", 1.0), ("2024-01-03T00:00:00+00:00", 2.0)]})
        self.assertEqual((second["label"], len(second["points"])), ("Line 2", 1))

    def test_categories_and_logarithms(self) -> None:
        self.axes.plot([1, 10], ["a", "b"])
        self.axes.set_xscale("log")
        chart = describe_figure(self.figure)
        self.assertEqual((chart["x_scale"], chart["y_scale"]), ("log", "categorical"))
        self.assertEqual(chart["elements"][0]["points"], [(1.0, "a"), (10.0, "b")])

    def test_scatter(self) -> None:
        self.axes.scatter([1, 2], [3, 4], label="dots")
        chart = describe_figure(self.figure)
        self.assertEqual((chart["type"], chart["title"], chart["x_label"]), ("scatter", None, None))
        self.assertEqual(chart["elements"], [{"label": "dots", "points": [(1.0, 3.0), (2.0, 4.0)]}])

    def test_bars_in_both_directions(self) -> None:
        expected = [{"label": "a", "group": "g", "value": 1.0}, {"label": "b", "group": "g", "value": 2.0}]
        self.axes.bar(["a", "b"], [1, 2], label="g")
        self.assertEqual(describe_figure(self.figure)["elements"], expected)
        lying = Figure()
        lying.subplots().barh(["a", "b"], [1, 2], label="g")
        self.assertEqual(describe_figure(lying)["elements"], expected)

    def test_pie(self) -> None:
        self.axes.pie([90, 10], labels=["most", "rest"], autopct="%d", startangle=90)
        chart = describe_figure(self.figure)
        expected = [{"label": "most", "angle": 324.0, "radius": 1.0}, {"label": "rest", "angle": 36.0, "radius": 1.0}]
        self.assertEqual((chart["type"], chart["elements"]), ("pie", expected))

    def test_boxes_of_all_looks(self) -> None:
        values = [[1, 2, 3, 4, 100], [5, 6, 7]]
        for options in ({}, {"patch_artist": True}, {"vert": False}):
            figure = Figure()
            figure.subplots().boxplot(values, labels=["x", "y"], **options)
            chart = describe_figure(figure)
            self.assertEqual(chart["type"], "box_and_whisker", options)
            numbers = {"min": 1.0, "first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0, "max": 4.0}
            self.assertEqual(chart["elements"][0], {"label": "x", "outliers": [100.0], **numbers}, options)
            self.assertEqual((chart["elements"][1]["label"], chart["elements"][1]["outliers"]), ("y", []))

    def test_several_and_none(self) -> None:
        self.assertEqual(describe_figure(self.figure)["type"], "unknown")
        self.assertIsNone(describe_figure(Figure()))
        figure = Figure()
        left, right = figure.subplots(1, 2)
        figure.suptitle("both")
        left.plot([1, 2])
        right.scatter([1], [2])
        chart = describe_figure(figure)
        self.assertEqual((chart["type"], chart["title"]), ("superchart", "both"))
        self.assertEqual([element["type"] for element in chart["elements"]], ["line", "scatter"])
