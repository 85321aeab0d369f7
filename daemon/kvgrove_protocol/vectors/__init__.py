"""Published test vectors: what any other implementation of identity and keys must reproduce (I9).

``identity-v1.json`` holds inputs and results in hex. It is written once and only ever added to: a changed value means
that every cache in the field goes cold.
"""

import json
from importlib.resources import files
from typing import Any


def load(name: str = "identity-v1.json") -> dict[str, Any]:
    """The vectors as plain JSON values."""
    vectors: dict[str, Any] = json.loads(files(__name__).joinpath(name).read_text(encoding="utf-8"))
    return vectors
