"""Python values as JSON and back, exactly. This file is also sent into sandboxes, so it uses nothing else.

Not pickle: what comes back was written inside a sandbox, and loading a pickle runs what its writer wants.
"""

import base64
import json
import math
from typing import Any


def encode(value: Any) -> Any:
    """A value as something that JSON has. Raises TypeError where there is none."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind in (bytes, bytearray):
        return {kind.__name__: base64.b64encode(value).decode()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is list:
        return [encode(one) for one in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [encode(one) for one in value]}
    if kind is dict:
        return {"dict": [[encode(key), encode(one)] for key, one in value.items()]}
    advice = "use numbers, text, bytes, lists, tuples, sets and dicts"
    raise TypeError("a %s cannot be passed between a sandbox and its host: %s" % (kind.__name__, advice))


def decode(value: Any) -> Any:
    """The value again."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError("this is no value")
    ((kind, content),) = value.items()
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "bytearray":
        return bytearray(base64.b64decode(content))
    if kind == "complex":
        return complex(*content)
    if kind == "dict":
        return {decode(key): decode(one) for key, one in content}
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](decode(content))
    raise ValueError("this is no value")


def dumps(value: Any) -> str:
    """A value as text."""
    return json.dumps(encode(value))


def loads(text: str) -> Any:
    """The value of a text."""
    return decode(json.loads(text))
