"""Render the emoji of six vendors, one array per vendor: 128 × 128 RGBA, in Unicode's order."""

from __future__ import annotations

import argparse
import io
import json
import re
from pathlib import Path

import numpy as np
import resvg_py
from PIL import Image

SIZE = 128
BITMAPS = {"noto": "google", "twemoji": "twitter"}
DRAWINGS = ("noto-v1", "emojione", "openmoji", "fluent-emoji-flat")


def key(hexcode: str) -> str:
    """Vendors differ in leading zeros and in the variation selector."""
    return hexcode.upper().replace("-FE0F", "").lstrip("0")


def slug(name: str) -> str:
    return re.sub("[^a-z0-9]+", "-", name.lower().replace("’", "").replace("'", "")).strip("-")


def read_items(sources: Path) -> list[dict]:
    """Emoji that both bitmap vendors draw: code, name, tags, group and subgroup."""
    folder = sources / "emojibase-data"
    groups = json.loads((folder / "meta/groups.json").read_text(encoding="utf-8"))
    drawn = {key(e["unified"]) for e in json.loads((sources / "emoji-datasource-google/emoji.json").read_text())}
    items = []
    for entry in json.loads((folder / "en/data.json").read_text(encoding="utf-8")):
        if "group" in entry and key(entry["hexcode"]) in drawn:
            items.append(
                {
                    "id": key(entry["hexcode"]),
                    "hexcode": entry["hexcode"],
                    "name": entry["label"].replace("flag: ", "flag of "),
                    "label": entry["label"],
                    "tags": entry.get("tags", []),
                    "group": groups["groups"][str(entry["group"])],
                    "subgroup": groups["subgroups"][str(entry["subgroup"])],
                }
            )
    return items


def read_bitmaps(sources: Path, vendor: str, items: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    folder = sources / f"emoji-datasource-{vendor}"
    files = {key(e["unified"]): e["image"] for e in json.loads((folder / "emoji.json").read_text())}
    pictures, rows = [], []
    for row, item in enumerate(items):
        path = folder / f"img/{vendor}/64" / files[item["id"]]
        if path.exists():
            pictures.append(np.asarray(Image.open(path).convert("RGBA").resize((SIZE, SIZE), Image.Resampling.BICUBIC)))
            rows.append(row)
    return np.stack(pictures), np.array(rows)


def read_drawings(sources: Path, vendor: str, items: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    folder = sources / f"iconify-json-{vendor}"
    collection = json.loads((folder / "icons.json").read_text(encoding="utf-8"))
    by_code = {}
    if (folder / "chars.json").exists():
        by_code = {key(code): name for code, name in json.loads((folder / "chars.json").read_text()).items()}
    pictures, rows = [], []
    for row, item in enumerate(items):
        names = [by_code.get(item["id"], slug(item["label"]))]
        if item["label"].startswith("flag: "):
            names.append("flag-for-" + slug(item["label"][6:]))
        names = [collection.get("aliases", {}).get(name, {}).get("parent", name) for name in names]
        icon = next((collection["icons"][name] for name in names if name in collection["icons"]), None)
        if icon is None:
            continue
        width, height = (icon.get(side, collection.get(side, 16)) for side in ("width", "height"))
        svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="0 0 {width} {height}" width="{SIZE}" height="{SIZE}">{icon["body"]}</svg>'
        )
        png = bytes(resvg_py.svg_to_bytes(svg_string=svg, width=SIZE, height=SIZE))
        pictures.append(np.asarray(Image.open(io.BytesIO(png)).convert("RGBA").resize((SIZE, SIZE))))
        rows.append(row)
    return np.stack(pictures), np.array(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path, help="folder of the unpacked npm packages")
    parser.add_argument("build", type=Path, help="folder to write to")
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)
    items = read_items(options.sources)
    (options.build / "items.json").write_text(json.dumps(items, ensure_ascii=False), encoding="utf-8")
    for name in (*BITMAPS, *DRAWINGS):
        if name in BITMAPS:
            pictures, rows = read_bitmaps(options.sources, BITMAPS[name], items)
        else:
            pictures, rows = read_drawings(options.sources, name, items)
        np.savez(options.build / f"{name}.npz", pictures=pictures, rows=rows)
        print(f"{name}: {len(rows)} of {len(items)} emoji")


if __name__ == "__main__":
    main()
