"""Files of the old and of the new model that are swapped are noticed wherever it can be known."""

import numpy as np
import pytest

from congruence import Space
from congruence.io import open_sink
from congruence.synthetic import rigid_problem

P = rigid_problem(400, 6, noise=0.1, random_state=0)
OLD, NEW = P.X + 2, P.Y - 2  # rows of two models in different places, which can be told apart
WIDE = np.hstack([NEW, NEW])


@pytest.fixture
def files(tmp_path):
    for name, rows in (("old", OLD), ("new", NEW), ("wide", WIDE)):
        np.save(tmp_path / f"{name}.npy", rows)
    named = {"o": ("old", OLD), "n": ("new", NEW), "to": ("old", OLD), "tn": ("new", NEW), "x": ("third", NEW)}
    for name, (model, rows) in named.items():
        space = Space(model, modality="text" if name[0] == "t" else "image")
        with open_sink(tmp_path / f"{name}.parquet", n=len(rows), dim=rows.shape[1], space=space) as sink:
            sink.write(None, rows)


#: By what was typed, what is to be typed instead.
SWAPPED = {
    "check new.npy old.npy --store old.npy -o c": "congruence check old.npy new.npy --store old.npy -o c",
    "check wide.npy old.npy --store old.npy": "congruence check old.npy wide.npy --store old.npy",
    "check n.parquet o.parquet --store o.parquet": "check o.parquet n.parquet --store o.parquet",
    "check o.parquet n.parquet --queries to.parquet --old-queries tn.parquet": "--queries tn.parquet --old",
    "check o.parquet n.parquet --queries to.parquet": "other model's vectors instead of to.parquet",
    "check o.parquet n.parquet --also text=tn.parquet,to.parquet": "--also text=to.parquet,tn.parquet",
    "check o.parquet n.parquet --test n.parquet,o.parquet": "--test o.parquet,n.parquet",
    "check o.parquet new.npy --modality image --set old_model=new --set new_model=old": "check new.npy o.parquet",
    "check new.npy o.parquet --modality image --set old_model=old": "congruence check o.parquet new.npy",
    "check o.parquet n.parquet --queries x.parquet": "given for one model",
    "fit n.parquet o.parquet -o m --set old_model=old": "congruence fit o.parquet n.parquet -o m",
    "fit n.parquet o.parquet -o m --means text=to.parquet": "instead of to.parquet",
    "fit o.parquet n.parquet -o m --means text=tn.parquet,to.parquet": "--means text=to.parquet,tn.",
    "fit o.parquet n.parquet -o m --unpaired new.npy,wide.npy": "given for one model",
    "fit old.npy wide.npy -o m --unpaired wide.npy,old.npy": "--unpaired old.npy,wide.npy",
    "transform map n.parquet -o x.npy": "congruence transform map n.parquet -o x.npy --inverse",
    "transform map new.npy -o x.npy": "congruence transform map new.npy -o x.npy --inverse",
    "transform map wide.npy --modality image -o x.npy": "12",
    "migrate n.parquet plan --map map": "congruence check OLD NEW -o FOLDER",
    "migrate new.npy plan --map map --modality image": "the inverse map leads back",
    "migrate wide.npy plan --map map --modality image": "12",
}


@pytest.mark.parametrize("typed", SWAPPED)
def test_swapped_files_are_answered_with_what_to_type(here, files, tmp_path, typed):
    if " map" in typed:
        here("fit o.parquet n.parquet -o map").ends(0)
    before = set(tmp_path.iterdir())
    done = here(typed).ends(2)
    assert SWAPPED[typed] in done.err.splitlines()[-1], done.err
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("typed", ["check old.npy new.npy --store old.npy -o {}", "fit old.npy new.npy -o {}"])
def test_files_that_name_no_model_are_named(here, files, typed):
    said = " ".join(here(typed.format("out")).ends(0).out.split())
    assert "old.npy" in said.lower()
    assert "new.npy" in said
