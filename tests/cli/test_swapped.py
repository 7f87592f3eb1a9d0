"""Files of the old and of the new model that are swapped are noticed wherever it can be known."""

import numpy as np
import pytest

import congruence
from congruence import Embeddings, Space
from congruence.errors import DirectionError, SpaceMismatchError
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


@pytest.mark.parametrize(
    "typed",
    [
        "fit old.npy old.npy -o m", "check old.npy same.npy", "check old.npy link.npy",
        "fit old.npy same.npy -o m --no-pairs", "fit o.parquet n.parquet -o m --means text=to.parquet,to.parquet",
        "check o.parquet n.parquet --also text=to.parquet,to.parquet",
        "fit o.parquet n.parquet -o m --unpaired x.parquet,n.parquet",
        "lab evaluate map --old-image old.npy --new-image link.npy",
    ],
)  # fmt: skip
def test_one_file_is_not_of_two_models(here, files, tmp_path, typed):
    np.save(tmp_path / "same.npy", OLD)
    (tmp_path / "link.npy").symlink_to("old.npy")
    if " map" in typed:
        here("fit old.npy new.npy -o map --modality image").ends(0)
    here(typed).refused("Pass the same items, encoded by the other model.")


def test_python_refuses_recorded_rows_of_the_wrong_model_as_the_command_line_does():
    def rows(model, vectors, modality="image", ids="a"):
        return Embeddings(vectors, ids=[f"{ids}{k}" for k in range(400)], space=Space(model, modality=modality))

    old, new, texts = rows("old", OLD), rows("new", NEW), (rows("old", OLD, "text"), rows("new", NEW, "text"))
    assert congruence.fit(old, new, means={"text": texts})
    for call in (
        lambda: congruence.fit(old, new, means={"text": texts[::-1]}),
        lambda: congruence.fit(old, new, means={"text": (texts[1], None)}),
        lambda: congruence.fit(old, new, unpaired=(new, old)),
        lambda: congruence.certify(old, new, queries=(rows("new", NEW, ids="q"), rows("old", OLD, ids="q"))),
        lambda: congruence.certify(old, new, text_queries=texts[::-1]),
        lambda: congruence.certify({"image": old, "text": texts[1]}, {"image": new, "text": texts[0]}),
    ):
        with pytest.raises(DirectionError, match=r"The old and the new model are swapped: .* holds vectors of new"):
            call()
    with pytest.raises(SpaceMismatchError, match="given for one model"):
        congruence.fit(old, new, means={"text": (texts[0], rows("old", NEW, "text"))} | {"audio": (texts[1], texts[1])})


@pytest.mark.parametrize(
    "typed",
    [pytest.param("check old.npy new.npy --store old.npy -o {}", marks=pytest.mark.long), "fit old.npy new.npy -o {}"],
)
def test_files_that_name_no_model_are_named(here, files, typed):
    said = " ".join(here(typed.format("out")).ends(0).out.split())
    assert "old.npy" in said.lower()
    assert "new.npy" in said
