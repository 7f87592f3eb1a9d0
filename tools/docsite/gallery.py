"""Reports of the gallery, which are generated from the bundled samples while the site is built, and not kept in the repository."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

#: Pages, and the commands that write them; all commands run in one folder, in this order.
REPORTS = {
    "demo.html": "demo",
    "map.html": "report old-to-new emoji -o map.html",
    "certificate.html": "certify photos --anchors 200 --report certificate.html",
    "migration.html": "report journal -o migration.html",
    "layers.svg": "similarity first.npz second.npz --layers --permutations 50 --plot layers.svg",
    "figure.svg": "reproduce fig11 -o fig11 --quick",
}

#: Path of a command's output, if it differs from the name of the page.
PLACES = {"figure.svg": "fig11/figure.svg"}


def make(folder: Path) -> None:
    """Run the commands, and write their pages and figures to a folder.

    Parameters
    ----------
    folder : Path
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        prepare(place)
        for page, line in REPORTS.items():
            program = [sys.executable, "-c", "from congruence.cli import main; main()", *line.split()]
            subprocess.run(program, cwd=place, check=True, stdout=subprocess.DEVNULL)
            text = (place / PLACES.get(page, page)).read_text(encoding="utf-8")
            # The report of a migration contains the absolute path of its table.
            (folder / page).write_text(text.replace(f"{place}/", ""), encoding="utf-8")


def prepare(folder: Path) -> None:
    """Write the input of the commands: a map of the sample, the journal of a migration, and two models with layers."""
    import lancedb
    import numpy as np
    import pyarrow as pa

    from congruence import Migration, fit
    from congruence.databases import open_database
    from congruence.datasets import load_sample

    sample = load_sample("emoji")
    old, new = sample.source, sample.target
    ids = np.random.default_rng(0).permutation(old["image"].ids)[:800]
    means = {"text": (old["text"].take(ids), new["text"].take(ids))}
    mapping = fit(old["image"].take(ids), new["image"].take(ids), means=means, holdout=0.2)
    mapping.save(folder / "old-to-new")

    rows = old["image"].vectors.astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(rows.ravel(), rows.shape[1])
    table = pa.table({"id": old["image"].ids.tolist(), "vector": vectors})
    lancedb.connect(folder / "shop").create_table("pictures", table)
    with contextlib.chdir(folder):  # the report shows the relative path of the table
        database = open_database("shop/pictures.lance")
        with Migration(database, mapping, journal="journal") as migration:
            migration.run()
            migration.verify()
            migration.switch()

    rng = np.random.default_rng(0)
    seen = rng.normal(size=(200, 16))
    for model, depth in (("first", 6), ("second", 8)):
        layers = {}
        for layer in range(depth):
            noise = 0.3 + 2.0 * abs(layer / (depth - 1) - 0.7)
            layers[f"layer_{layer}"] = seen @ rng.normal(size=(16, 48)) + noise * rng.normal(size=(200, 48)) * 4
        np.savez(folder / f"{model}.npz", **layers)
