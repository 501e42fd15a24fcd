"""Reads a matplotlib figure back into the numbers that it was drawn from."""

from __future__ import annotations

import re
from typing import Any

import matplotlib.dates as dates
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.category import StrCategoryConverter
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle, Wedge

Chart = dict[str, Any]

# A chart of more points is sent as a picture alone.
MAX_POINTS = 200_000


def describe_figure(figure: Figure) -> Chart | None:
    """One chart, or a chart of charts when there are several axes."""
    found = [chart for chart in (describe_axes(axes) for axes in figure.axes) if chart is not None]
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    suptitle = getattr(figure, "_suptitle", None)
    title = suptitle.get_text() if suptitle is not None else None
    return {"type": "superchart", "title": title or None, "elements": found}


def describe_axes(axes: Axes) -> Chart | None:
    """The chart on these axes; None for a colour bar and the like."""
    if axes.get_label() == "<colorbar>":
        return None
    chart: Chart = {"type": "unknown", "title": axes.get_title() or None, "elements": []}
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    boxes = read_boxes(axes)
    bars = [container for container in axes.containers if isinstance(container, BarContainer)]
    scatters = [collection for collection in axes.collections if isinstance(collection, PathCollection)]
    lines = [line for line in axes.lines if is_data(axes, line)]
    if wedges:
        return chart | {"type": "pie", "elements": read_wedges(axes, wedges)}
    if boxes:
        return chart | labels(axes) | {"type": "box_and_whisker", "elements": boxes}
    if bars:
        return chart | labels(axes) | {"type": "bar", "elements": read_bars(axes, bars)}
    if scatters:
        elements = [points(axes, scatter, scatter.get_offsets(), i) for i, scatter in enumerate(scatters)]
        return chart | labels(axes) | scales(axes) | {"type": "scatter", "elements": bounded(elements)}
    if lines:
        elements = [points(axes, line, line.get_xydata(), i) for i, line in enumerate(lines)]
        return chart | labels(axes) | scales(axes) | {"type": "line", "elements": bounded(elements)}
    return chart


def bounded(elements: list[Chart]) -> list[Chart]:
    """Refuses charts that are too large to be sent."""
    if sum(len(element["points"]) for element in elements) > MAX_POINTS:
        raise ValueError("the chart has too many points")
    return elements


def labels(axes: Axes) -> Chart:
    """What the axes are called, and their units in parentheses."""
    x, y = axes.get_xlabel() or None, axes.get_ylabel() or None
    return {"x_label": x, "y_label": y, "x_unit": unit(x), "y_unit": unit(y)}


def unit(label: str | None) -> str | None:
    """`s` of `Time (s)`."""
    match = re.search(r"[(\[]([^()\[\]]+)[)\]]\s*$", label or "")
    return match.group(1).strip() if match else None


def scales(axes: Axes) -> Chart:
    """The ticks and the kind of both axes."""
    both: Chart = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        ticks = [float(tick) for tick in axis.get_ticklocs()]
        both[f"{name}_ticks"] = [place(axis, tick) for tick in ticks]
        both[f"{name}_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
        both[f"{name}_scale"] = scale(axis)
    return both


def scale(axis: Axis) -> str:
    """`linear`, `log` and so on, or `datetime` or `categorical` by what was plotted."""
    if is_date(axis):
        return "datetime"
    if is_category(axis):
        return "categorical"
    return str(axis.get_scale())


def is_date(axis: Axis) -> bool:
    """Whether the numbers on this axis are days since the epoch."""
    return isinstance(converter(axis), dates._SwitchableDateConverter)


def is_category(axis: Axis) -> bool:
    """Whether the numbers on this axis stand for names."""
    return isinstance(converter(axis), StrCategoryConverter)


def converter(axis: Axis) -> Any:
    """What turns a user's values into numbers; newer releases ask for it by a method."""
    return axis.get_converter() if hasattr(axis, "get_converter") else axis.converter


def place(axis: Axis, number: float) -> str | float:
    """A number on an axis as its user wrote it."""
    if is_date(axis):
        return dates.num2date(number).isoformat()
    if is_category(axis):
        for name, position in axis.units._mapping.items():
            if position == number:
                return str(name)
    return float(number)


def points(axes: Axes, artist: Any, data: Any, index: int) -> Chart:
    """The points of a line or of a scatter."""
    if len(data) > MAX_POINTS:
        raise ValueError("the chart has too many points")
    label = str(artist.get_label())
    if label.startswith("_"):
        label = f"{'Line' if isinstance(artist, Line2D) else 'Dataset'} {index + 1}"
    return {"label": label, "points": [(place(axes.xaxis, x), place(axes.yaxis, y)) for x, y in data]}


def is_data(axes: Axes, line: Line2D) -> bool:
    """Lines across the axes (`axhline`) are decoration."""
    # By identity: transforms that happen to give the same numbers are equal.
    across = (axes.get_yaxis_transform(which="grid"), axes.get_xaxis_transform(which="grid"))
    return len(line.get_xydata()) > 0 and not any(line.get_transform() is transform for transform in across)


def read_wedges(axes: Axes, wedges: list[Wedge]) -> list[Chart]:
    """The slices of a pie: their labels, angles in degrees and radii."""
    texts = [text.get_text() for text in axes.texts]
    slices = []
    for index, wedge in enumerate(wedges):
        label = str(wedge.get_label() or "")
        if label.startswith("_") or not label:
            label = texts[index] if index < len(texts) and len(texts) == len(wedges) else ""
        angle = round(abs(float(wedge.theta2) - float(wedge.theta1)), 4)
        slices.append({"label": label, "angle": angle, "radius": float(wedge.r)})
    return slices


def read_bars(axes: Axes, containers: list[BarContainer]) -> list[Chart]:
    """The bars of all groups."""
    elements = []
    for container in containers:
        upright = getattr(container, "orientation", "vertical") != "horizontal"
        axis = axes.xaxis if upright else axes.yaxis
        names = dict(zip((float(t) for t in axis.get_ticklocs()), (t.get_text() for t in axis.get_ticklabels())))
        group = str(container.get_label())
        for bar in container.patches:
            if not isinstance(bar, Rectangle):
                continue
            start, size = (bar.get_x(), bar.get_width()) if upright else (bar.get_y(), bar.get_height())
            centre = float(start + size / 2)
            name = place(axis, centre) if is_date(axis) else names.get(round(centre, 9)) or f"{centre:g}"
            value = float(bar.get_height() if upright else bar.get_width())
            elements.append({"label": str(name), "group": "" if group.startswith("_") else group, "value": value})
    return elements


def read_boxes(axes: Axes) -> list[Chart]:
    """The boxes of a box plot, which matplotlib draws as a run of unnamed lines (and patches).

    For each box: its outline, two whiskers, two caps, a median, and perhaps outliers.
    """
    outlines = [patch for patch in axes.patches if isinstance(patch, PathPatch)]
    lines = list(axes.lines)
    closed = [line for line in lines if not outlines and is_outline(line)]
    shapes = [patch.get_path().vertices for patch in outlines] or [line.get_xydata() for line in closed]
    others = [line for line in lines if line not in closed]
    elements = []
    for shape in shapes:
        box = Box(shape, others)
        if not box.is_one:
            return []
        element = box.describe()
        element["label"] = tick_label(axes.xaxis if box.upright else axes.yaxis, box.centre)
        elements.append(element)
    return elements


def is_outline(line: Line2D) -> bool:
    """A closed rectangle."""
    data = line.get_xydata()
    return len(data) >= 5 and tuple(data[0]) == tuple(data[4]) and len({tuple(point) for point in data}) >= 4


def tick_label(axis: Axis, position: float) -> str:
    """What is written under a position."""
    for tick, label in zip(axis.get_ticklocs(), axis.get_ticklabels()):
        if abs(float(tick) - position) < 1e-9:
            return label.get_text() or f"{position:g}"
    return f"{position:g}"


class Box:
    """One box and the lines that belong to it: those centred where it is."""

    def __init__(self, shape: Any, lines: list[Line2D]) -> None:
        xs, ys = [float(p[0]) for p in shape], [float(p[1]) for p in shape]
        for upright in (True, False):
            across, along = (xs, ys) if upright else (ys, xs)
            self.upright = upright
            self.centre = (min(across) + max(across)) / 2
            self.low, self.high = min(along), max(along)
            self._sort(lines, max(across) - min(across))
            if self.is_one:
                break

    def _sort(self, lines: list[Line2D], width: float) -> None:
        self.whiskers: list[float] = []
        self.medians: list[float] = []
        self.outliers: list[float] = []
        for line in lines:
            data = line.get_xydata()
            x, y = [float(point[0]) for point in data], [float(point[1]) for point in data]
            across, along = (x, y) if self.upright else (y, x)
            if not across or abs((min(across) + max(across)) / 2 - self.centre) > 1e-9:
                continue
            level = max(along) - min(along) == 0
            if line.get_linestyle() == "None":
                self.outliers += along
            elif max(across) == min(across):
                self.whiskers += along
            elif level and self.low <= along[0] <= self.high and max(across) - min(across) >= width * 0.99:
                self.medians.append(along[0])

    @property
    def is_one(self) -> bool:
        """Whether the parts of a box were found."""
        return bool(self.whiskers) and bool(self.medians)

    def describe(self) -> Chart:
        """The five numbers and what lies outside."""
        return {
            "label": "",
            "min": min(self.whiskers),
            "first_quartile": self.low,
            "median": self.medians[0],
            "third_quartile": self.high,
            "max": max(self.whiskers),
            "outliers": self.outliers,
        }
