"""What a Python kernel shows beyond what IPython does: data, charts, JSON, saved images."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from IPython.core.formatters import BaseFormatter, JSONFormatter
from IPython.display import display
from traitlets import ObjectName, Unicode

# Larger values are shown as text alone.
MAX_JSON = 4 * 1024 * 1024


def install(shell: Any) -> None:
    """Registers everything with an IPython shell."""
    formatters = shell.display_formatter.formatters
    for formatter in (DataFormatter, ChartFormatter, PlainJsonFormatter):
        made = formatter(parent=shell.display_formatter)
        formatters[made.format_type] = made
    variables = ExecutionVariables(shell)
    shell.events.register("pre_run_cell", variables.set)
    shell.events.register("post_run_cell", variables.restore)
    sys.meta_path.insert(0, ImageHook())


class ExecutionVariables:
    """Environment variables that hold for one execution; the request brings them in its metadata."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._before: dict[str, str | None] = {}

    def set(self, _info: Any = None) -> None:
        """Before the code runs."""
        self.restore()
        parent = self._shell.kernel.get_parent("shell")
        for name, value in (parent.get("metadata", {}).get("env_vars") or {}).items():
            self._before[name] = os.environ.get(name)
            os.environ[name] = value

    def restore(self, _result: Any = None) -> None:
        """After it."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}


class DataFormatter(BaseFormatter):
    """The columns of a pandas data frame."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = (dict, str)

    def __call__(self, obj: Any) -> Any:
        # Whoever has a data frame has imported pandas; nobody else pays for it.
        pandas = sys.modules.get("pandas")
        if pandas is None or not isinstance(obj, getattr(pandas, "DataFrame", ())):
            return super().__call__(obj)
        if obj.memory_usage(index=False).sum() > MAX_JSON:
            return None
        return {str(name): plain(values) for name, values in obj.to_dict(orient="list").items()}


class ChartFormatter(BaseFormatter):
    """The numbers behind a matplotlib figure."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, str)

    def __call__(self, obj: Any) -> Any:
        figure = sys.modules.get("matplotlib.figure")
        if figure is None or not isinstance(obj, figure.Figure):
            return super().__call__(obj)
        try:
            return plain(charts().describe_figure(obj))
        except Exception:  # noqa: BLE001: a figure that is not understood is still a picture
            return None


class PlainJsonFormatter(JSONFormatter):
    """Lists and dictionaries that JSON can hold."""

    def __call__(self, obj: Any) -> Any:
        if not isinstance(obj, (list, dict)):
            return super().__call__(obj)
        try:
            text = json.dumps(obj, default=from_numpy)
        except (TypeError, ValueError, RecursionError):
            return super().__call__(obj)
        return (plain(json.loads(text)), {"expanded": True}) if len(text) <= MAX_JSON else None


def plain(value: Any) -> Any:
    """The same value in what JSON has; what is not a number is null."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    try:
        return plain(from_numpy(value))
    except TypeError:
        return str(value)


def from_numpy(value: Any) -> Any:
    """A number, array or time of numpy or pandas as Python has it."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and value is getattr(pandas, "NaT", None):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__module__.split(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def charts() -> ModuleType:
    """Loaded when the first figure is shown: it needs matplotlib."""
    name = "sloplet_charts"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("sloplet_charts.py"))
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


class ImageHook(importlib.abc.MetaPathFinder):
    """Shows an image that is saved to a file, from the moment that Pillow is imported."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Finds Pillow where it is, and wraps its loader; leaves everything else alone."""
        if fullname != "PIL.Image":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            show_saved_images(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def show_saved_images(module: Any) -> None:
    """Patches `Image.save` so that saving under a name shows the image as well."""
    save = module.Image.save

    def save_and_show(self: Any, fp: Any, format: str | None = None, **params: Any) -> None:
        save(self, fp, format, **params)
        if isinstance(fp, str):
            display(self)

    module.Image.save = save_and_show
