"""``congruence datasets``: list the known image data sets, which of them are present, and how to get the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

if TYPE_CHECKING:
    from congruence_papers.image_sets import Entry
    from congruence_papers.image_sets.download import Resource

__all__ = ["command"]


def command(
    name: Annotated[str | None, typer.Argument(help="Name of a data set; all by default.")] = None,
    root: Annotated[str, typer.Option(help="Folder that contains the data sets, each in a subfolder.")] = "data",
    download: Annotated[
        bool, typer.Option("--download", help="Download missing files, verify their checksums, and unpack them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """List the known image data sets, or describe and download one."""
    from congruence._utils.validation import check_choice
    from congruence.cli._base import print_json, print_table, progress
    from congruence.errors import ParameterError
    from congruence_papers.image_sets import DATASETS, download_dataset

    if name is None:
        if download:
            raise ParameterError(
                "Got --download without a data set; expected one. Write congruence datasets NAME --download."
            )
        facts = [_facts(entry, root) for entry in DATASETS.values()]
        if as_json:
            print_json({"root": root, "datasets": facts})
            return
        print_table(
            f"image data sets, looked for in {root}",
            ["name", "data set", "classes", "templates", "images by split", "download", "found"],
            [_row(entry, entry_facts) for entry, entry_facts in zip(DATASETS.values(), facts, strict=True)],
        )
        return
    entry = DATASETS[check_choice(name, DATASETS, "data set")]
    written: list[str] = []
    if download:
        with progress(f"downloading {name}", sum(r.size or 0 for r in entry.resources), as_json) as callback:
            written = download_dataset(name, root, callback)
    details: _Details = {**_facts(entry, root), "made": written}
    if as_json:
        print_json({"root": root, **details})
        return
    print_table(entry.title, ["", ""], [[key, text] for key, text in _description(entry, details) if text])


class _Download(TypedDict):
    url: str | None
    path: str
    bytes: int | None
    sha256: str | None
    md5: str | None


class _Facts(TypedDict):
    name: str
    title: str
    classes: int | None
    templates: list[str]
    splits: dict[str, int]
    splits_from: str
    download: list[_Download]
    bytes: int
    found: str | None


class _Details(_Facts):
    made: list[str]


def _facts(entry: Entry, root: str) -> _Facts:
    """Describe a data set as plain data."""
    folder = entry.locate(root) if entry.resources else None
    return {
        "name": entry.name,
        "title": entry.title,
        "classes": entry.classes,
        "templates": list(entry.templates),
        "splits": dict(entry.splits),
        "splits_from": entry.splits_from,
        "download": [_source(resource) for resource in entry.resources],
        "bytes": sum(resource.size or 0 for resource in entry.resources),
        "found": None if folder is None else str(folder),
    }


def _source(resource: Resource) -> _Download:
    return {
        "url": resource.url,
        "path": resource.path,
        "bytes": resource.size,
        "sha256": resource.sha256,
        "md5": resource.md5,
    }


def _named_splits(entry: Entry) -> list[str]:
    """Return name and size of each split, except numbered ones: DTD's ten official partitions would not fit on a line."""
    return [f"{split} {count:,}" for split, count in entry.splits.items() if not split[-1].isdigit()]


def _row(entry: Entry, facts: _Facts) -> list[str]:
    return [
        entry.name,
        entry.title,
        "" if entry.classes is None else str(entry.classes),
        str(len(entry.templates)),
        ", ".join(_named_splits(entry)) or "any",
        f"{facts['bytes'] / 1e6:,.0f} MB" if facts["bytes"] else "",
        facts["found"] or ("no" if entry.resources else ""),
    ]


def _description(entry: Entry, details: _Details) -> list[tuple[str, str]]:
    numbered = [split for split in entry.splits if split[-1].isdigit()]
    rows = [
        ("name", entry.name),
        ("classes", "" if entry.classes is None else str(entry.classes)),
        ("splits", ", ".join(_named_splits(entry)) or "one per folder, or all"),
        ("", f"{numbered[0]} … {numbered[-1]}, {entry.splits[numbered[0]]:,} each" if numbered else ""),
        ("splits by", entry.splits_from),
        ("first template", entry.templates[0]),
        ("templates", str(len(entry.templates))),
        ("found", details["found"] or ("no" if entry.resources else "")),
        ("written", ", ".join(details["made"])),
    ]
    for source in details["download"]:
        checksum = source["sha256"] or source["md5"]
        rows += [
            ("download", source["url"] or ""),
            ("  to", source["path"]),
            ("  bytes", "not published" if source["bytes"] is None else str(source["bytes"])),
            ("  checksum", checksum or "not published; the checksum of the first download is recorded"),
        ]
    return rows
