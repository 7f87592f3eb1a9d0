"""The option ``--json FILE`` of the benchmarks, which writes their results in machine-readable form."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")


def write_json(options: argparse.Namespace, results: Any) -> None:
    """Write the arguments and the results to the file of ``--json``, if given, with infinities and NaN as null."""
    if options.json is None:
        return
    arguments = {
        name: value for name, value in vars(options).items() if name not in ("json", "child", "folder", "python")
    }
    text = json.dumps(
        _plain({"arguments": arguments, "results": results}), indent=1, ensure_ascii=False, allow_nan=False
    )
    options.json.write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
