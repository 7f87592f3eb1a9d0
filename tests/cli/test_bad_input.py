"""Bad input of every command is answered in the words of the command line, and with what to type."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import congruence
from congruence.errors import PairingWarning
from congruence.synthetic import rigid_problem

P = rigid_problem(300, 16, 16, noise=0.1, random_state=0)
OLD, NEW = P.X + 2, P.Y - 2


def table(path, rows, ids):
    columns = {"id": ids, "v": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])}
    pq.write_table(pa.table(columns), path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    arrays = {"old": OLD, "new": NEW, "short": NEW[:200], "one": OLD[:1], "few": OLD[:3], "narrow": NEW[:, :8]}
    for name, rows in (arrays | {"wide": np.hstack([NEW, NEW]), "copy": OLD, "text": OLD[:50] - 4}).items():
        np.save(folder / f"{name}.npy", rows)
    ids = [f"i{k}" for k in range(300)]
    for name, rows, named in (("o", OLD, ids), ("n", NEW, ids), ("x", NEW, [f"q{k}" for k in range(300)])):
        table(folder / f"{name}.parquet", rows, named)
    (folder / "link.npy").symlink_to("old.npy")
    pairs = OLD, NEW
    congruence.fit(*pairs, modality="image", means={"text": OLD[:50] - 4}, check=False).save(folder / "map")
    congruence.fit(*pairs[::-1]).save(folder / "back")
    congruence.LinearMap().fit(*pairs).save(folder / "linear")
    congruence.MLPMap(max_epochs=1).fit(*pairs).save(folder / "mlp")
    congruence.CCAMap().fit(*pairs).save(folder / "heads")
    return folder


#: By what is typed, what the answer says; a test of the kind as much as of these: the fixture ``here`` refuses every
#: answer with arguments, modules or classes of Python.
ANSWERS = {
    "check old.npy": "congruence check old.npy NEW",
    "check o.parquet": "congruence check o.parquet NEW",
    "check old.npy --queries new.npy": "congruence check old.npy NEW",
    "check map old.npy": "map is the folder of a saved map",
    "check old.npy new.npy --method mlp": "Pass --method auto.",
    "check old.npy new.npy --test old.npy": "Pass --test OLD,NEW",
    "check old.npy new.npy --labels zz": "Got --labels zz.",
    "check old.npy new.npy --test old.npy,new.npy": "",
    "check few.npy few.npy": "the same file as",
    "check old.npy short.npy": "Pass --ids",
    "check one.npy new.npy": "1 rows in one.npy",
    "fit old.npy new.npy -o m --set groups=zz --holdout 9": "Got --set groups zz.",
    "fit old.npy new.npy -o m --means image=text.npy": "Pass --modality",
    "fit old.npy new.npy -o m --unpaired old.npy": "Pass --unpaired OLD,NEW",
    "fit old.npy new.npy -o m --method orthagonal": "Pass --method orthogonal.",
    "fit map new.npy -o m": "map is the folder of a saved map",
    "fit one.npy one.npy -o m": "the same file as",
    "fit old.npy new.npy -o m --holdout 299": "Pass a smaller --holdout",
    "fit o.parquet x.parquet -o m": "expected the same items on both sides",
    "fit o.parquet n.parquet -o m --method mlp --modality image --means text=text.npy": "",
    "fit old.npy new.npy -o m --queries smell": "",
    "train --pairs o.parquet,x.parquet -o h": "Give each item one id in both files.",
    "train --pairs old.npy,new.npy --validation 900 -o h": "Pass a smaller --validation",
    "train --pairs old.npy -o h": "Pass --pairs FIRST,SECOND",
    "train --pairs old.npy,short.npy -o h": "300 rows in old.npy and 200 in short.npy",
    "train --pairs old.npy,link.npy -o h": "the same file as",
    "train cca --pairs old.npy,new.npy --unpaired new.npy,new.npy -o h": "the same file as",
    "train cca --pairs old.npy,new.npy --test old.npy,old.npy -o h": "the same file as",
    "train sotaling --pairs old.npy,new.npy -o h": "Pass METHOD sotalign",
    "train sotalign --pairs old.npy,new.npy --set max_step=3 -o h": "max_steps",
    "train jam --pairs old.npy,new.npy -o h --set groups=zz": "zz",
    "train cca --pairs few.npy,new.npy -o h": "3 rows in few.npy",
    "transform old.npy map -o y.npy": "Type: congruence transform map old.npy -o y.npy",
    "transform old.npy new.npy -o y.npy": "Got a file at old.npy",
    "transform map wide.npy -o y.npy": "32-d vectors",
    "transform map old.npy --modality audio -o y.npy": "--means audio=…",
    "transform map old.npy -o y.npy --side second": "Leave out --side",
    "transform mlp new.npy -o y.npy --inverse": "an orthogonal map",
    "transform heads wide.npy -o y.npy": "32-d",
    "inspect old.npy": "not a file of vectors",
    "report map o.parquet -o r.html": "Pass a sample: photos or emoji.",
    "report old.npy photos -o r.html": "not a file of vectors",
    "report heads --pairs old.npy -o r.html": "Pass --pairs FIRST,SECOND",
    "search back --queries new.npy --old old.npy --new link.npy": "",
    "search back --queries new.npy --old old.npy --new old.npy": "the same file as",
    "search heads --queries new.npy --old old.npy --new new.npy": "a rotation or a linear map",
    "search back --queries wide.npy --old old.npy --new new.npy": "32",
    "bridge search back --queries old.npy --index old.npy": "the same file as",
    "bridge search back --queries narrow.npy --index old.npy": "8",
    "bridge search old.npy --queries new.npy --index old.npy": "not a file of vectors",
    "bridge evaluate back --queries new.npy --index new.npy": "the same file as",
    "bridge evaluate back --queries new.npy --index old.npy": "Pass both with --ids, or --labels",
    "bridge evaluate back --queries n.parquet --index o.parquet --old-queries wide.npy": "",
    "bridge evaluate back --queries n.parquet --index o.parquet --old-queries n.parquet": "the same file as",
    "bridge evaluate back --queries n.parquet --index o.parquet --labels zz,zz": "Got --labels zz.",
    "bridge export mlp -o y.index": "an orthogonal or a linear map",
    "bridge export map -o y.index --side second --to onnx": "",
    "lab similarity old.npy short.npy": "Pass --ids for both",
    "lab similarity one.npy one.npy": "at least 8",
    "lab similarity old.npy new.npy --metric linear_cca": "",
    "lab match old.npy short.npy": "",
    "lab shift old.npy wide.npy": "",
    "lab evaluate mlp --old-image wide.npy --new-image new.npy": "",
    "lab evaluate map --old-image old.npy --new-image new.npy --labels zz": "Got --labels zz.",
    "lab anchors old.npy -n 900 -o c.txt": "Pass --count 300",
    "lab anchors old.npy -n 9 -o c.txt --method balanced --labels zz": "Got --labels zz.",
    "lab frame fit a=old.npy b=short.npy -o f": "",
    "lab drift old.npy wide.npy": "",
    "lab doctor old.npy --known a=wide.npy --known a=old.npy": "Pass another name.",
    "lab exposure old.npy --texts short.npy": "",
    "migrate old.npy plan --map heads": "",
    "migrate old.npy plan --map map --modality audio": "--means audio=…",
    "migrate wide.npy plan --map map --modality image": "",
}


@pytest.mark.parametrize("typed", ANSWERS)
def test_the_answer_names_what_was_typed_and_what_to_type(here, files, monkeypatch, typed):
    monkeypatch.chdir(files)
    done = here(typed, cwd=files)
    assert ANSWERS[typed] in done.err, done.err
    assert done.code == 2, done.err


def test_the_same_rows_twice_are_told_in_python():
    with pytest.warns(PairingWarning, match="the same vectors"):
        congruence.fit(OLD, OLD)


@pytest.mark.parametrize("means", [OLD - 4, (OLD - 4, None), {"old": OLD - 4}, {"source": OLD - 4}, OLD.mean(axis=0)])
def test_means_are_rows_of_the_old_model_or_of_both(means):
    mapping = congruence.fit(OLD, NEW, modality="text", means={"image": means}, check=False)
    assert mapping.modalities_ == ["image", "text"] if hasattr(mapping, "modalities_") else mapping.modality_means_
