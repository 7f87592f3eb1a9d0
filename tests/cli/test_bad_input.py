"""Bad input of every command is answered in the words of the command line, and with what to type."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import congruence
from congruence import Space
from congruence.errors import PairingWarning
from congruence.synthetic import rigid_problem
from tree import walk

P = rigid_problem(300, 16, 16, noise=0.1, random_state=0)
OLD, NEW = P.X + 2, P.Y - 2
LONG = "n" * 300


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
    broken = {"nan": OLD.copy(), "zero": OLD.copy()}
    broken["nan"][5, 2], broken["zero"][7] = np.nan, 0
    np.save(folder / "nan.npy", broken["nan"])
    np.savez(folder / "zero.npz", v=broken["zero"], ids=np.array(ids))
    np.save(folder / "unit.npy", OLD / np.linalg.norm(OLD, axis=1, keepdims=True))
    (folder / "corrupt.npy").write_bytes((folder / "old.npy").read_bytes()[:-100])
    for name in ("dir", "dir.npz", "saved"):
        (folder / name).mkdir()
    (folder / "saved" / "dataset_info.json").write_text("{}")
    for name in ("file", "taken.checkpoint"):
        (folder / name).write_text("x")
    pairs = OLD, NEW
    named = [congruence.Embeddings(OLD, space=Space("A")), congruence.Embeddings(NEW, space=Space("B"))]
    congruence.fit(*named, modality="image", means={"text": OLD[:50] - 4}, check=False).save(folder / "map")
    shutil.copytree(folder / "map", folder / "kept" / "map")
    for name, part in {"broken": "config.json", "hollow": "model.safetensors"}.items():
        shutil.copytree(folder / "map", folder / name)
        (folder / name / part).unlink()
        (folder / name / part).mkdir()
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
    "check old.npy new.npy --labels zz": "--labels zz: ",
    "check old.npy new.npy --test old.npy,new.npy": "",
    "check few.npy few.npy": "the same file as",
    "check old.npy short.npy": "Pass --ids",
    "check one.npy new.npy": "1 rows in one.npy",
    "fit old.npy new.npy -o m --set groups=zz --holdout 9": "--set groups zz: ",
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
    "inspect corrupt.npy": "truncated or damaged",
    "inspect old.npy:v": "expected none",
    "report map o.parquet -o r.html": "Pass a sample: photos or emoji.",
    "lab shift old.npy wide.npy": "Pass vectors of one model.",
    "report map old.npy -o r.html": "old.npy is no bundle",
    "embed old.npy hf:zz -o e.npy": "congruence embed hf:zz old.npy -o e.npy",
    "fit old.npy new.npy -o m --set shrinkge=full": "Pass --set shrinkage=VALUE",
    "fit old.npy new.npy -o m --set new_modality=zz": "--set new_modality",
    "bridge evaluate back --queries x.parquet --index o.parquet": "Pass --labels",
    "report old.npy photos -o r.html": "not a file of vectors",
    "report heads --pairs old.npy -o r.html": "Pass --pairs FIRST,SECOND",
    "search back --queries new.npy --old old.npy --new link.npy": "",
    "search back --queries new.npy --old old.npy --new old.npy": "the same file as",
    "search back --queries new.npy --old old.npy --new copy.npy": "the same vectors as",
    "bridge evaluate back --queries copy.npy --index old.npy": "the same vectors as",
    "search heads --queries new.npy --old old.npy --new new.npy": "a rotation or a linear map",
    "search back --queries wide.npy --old old.npy --new new.npy": "32",
    "bridge search back --queries old.npy --index old.npy": "the same file as",
    "bridge search back --queries narrow.npy --index old.npy": "8",
    "bridge search old.npy --queries new.npy --index old.npy": "not a file of vectors",
    "bridge evaluate back --queries new.npy --index new.npy": "the same file as",
    "bridge evaluate back --queries new.npy --index old.npy": "Pass both with --ids, or --labels",
    "bridge evaluate back --queries n.parquet --index o.parquet --old-queries wide.npy": "",
    "bridge evaluate back --queries n.parquet --index o.parquet --old-queries n.parquet": "the same file as",
    "bridge evaluate back --queries n.parquet --index o.parquet --labels zz,zz": "--labels zz: ",
    "bridge export mlp -o y.index": "an orthogonal or a linear map",
    "bridge export map -o y.onnx --side second --to onnx": "",
    "lab similarity old.npy short.npy": "Pass --ids for both",
    "lab similarity one.npy one.npy": "Got 1 paired rows; expected at least 8.",
    "lab similarity old.npy new.npy --metric linear_cca": "",
    "lab match old.npy short.npy": "",
    "lab evaluate mlp --old-image wide.npy --new-image new.npy": "",
    "lab evaluate map --old-image old.npy --new-image new.npy --labels zz": "--labels zz: ",
    "lab anchors old.npy -n 900 -o c.txt": "Pass --count 300",
    "lab anchors postgresql://me@h:5432/d -n 9 -o c.txt": "Got a database's address; expected a file of vectors",
    "lab anchors qdrant:///folder -n 9 -o c.txt": "Got a database's address; expected a file of vectors",
    "lab anchors old.npy -n 9 -o c.txt --method balanced --labels zz": "--labels zz: ",
    "lab frame fit a=old.npy b=short.npy -o f": "",
    "lab drift old.npy wide.npy": "",
    "lab doctor old.npy --known a=wide.npy --known a=old.npy": "Pass another name.",
    "lab exposure old.npy --texts short.npy": "",
    "migrate old.npy plan --map heads": "",
    "migrate old.npy plan --map map --modality audio": "--means audio=…",
    "migrate wide.npy plan --map map --modality image": "",
    "transform map old.npy -o y.npy --modality smell": "smell",
    "migrate old.npy plan --from map": "Pass --map map",
    "inspect kept": "Pass kept/map",
    "fit saved new.npy -o m": "parts in saved",
    "inspect dir": "Got no config.json in dir",
    f"inspect {LONG}": "File name too long",
    "inspect broken": "Is a directory",
    "inspect hollow": "Is a directory",
    "transform map dir -o x.npy": "parts in dir",
    "transform map file/a.npy -o x.npy": "Not a directory",
    f"transform map {LONG}.npy -o x.npy": "File name too long",
    "fit dir new.npy -o m": "parts in dir",
    "fit old.npy dir.npz -o m": "dir.npz",
    "train csa --pairs old.npy,new.npy -o h --checkpoint file": "Got a file at file for checkpoints",
    "train csa --pairs old.npy,new.npy -o h --checkpoint file/c": "Got a file at file/c for checkpoints",
    "train csa --pairs old.npy,new.npy -o taken": "Got something at taken.checkpoint",
    "train csa --pairs old.npy,new.npy -o h --config dir": "Is a directory",
    "lab negatives dir -o x.csv": "dir",
    "lab match dir new.npy": "dir",
    "lab shift old.npy file": "file",
    "lab evaluate dir": "Got no config.json",
    "report dir sample": "Got no config.json",
    "check dir": "dir",
    "fit old.npy new.npy -o m --method pca": "--method pca",
    "fit old.npy new.npy -o m --method cca --set n_components=0": "--set n_components=0",
    "lab similarity old.npy new.npy --permutations -1": "--permutations -1",
    "lab similarity old.npy new.npy --metric nonsense": "--metric nonsense",
    "lab match old.npy new.npy --set rows=900": "--set rows=900",
    "train csa --pairs old.npy,new.npy -o h --set n_components=0": "--set n_components=0",
    "train nonsense --pairs old.npy,new.npy -o h": "nonsense",
    "embed hf:x caltech101 -o m": "--root",
    "fit none.npz:v new.npy -o m": "No file at none.npz",
    "fit old.npy short.npy -o m": "300 rows in old.npy and 200 in short.npy, and no ids on both sides",
    "fit nan.npy new.npy -o m": "NaN or inf",
    "fit zero.npz:v n.parquet -o m": "'i7'",
    "fit corrupt.npy new.npy -o m": "truncated",
    "fit old.npy new.npy -o m --method magic": "'orthogonal', 'linear', 'mlp'",
    "fit old.npy new.npy -o m --set ridge=1": "no such option",
    "fit old.npy new.npy -o m --method linear --set allow_reflection=false": "--set allow_reflection for",
    "fit old.npy new.npy -o m --method mlp --set center=false": "--set center for",
    "fit old.npy new.npy -o m --method linear --set ridge=big": "a number or cv",
    "fit old.npy new.npy -o m --modality image --means text": "MODALITY=OLD",
    "transform map old.npy -o o.parquet": "--force",
    "transform map o.parquet:v -o o.parquet --modality image --force": "the source",
    "transform map old.npy -o y.npy --normalize=maybe": "'auto', 'yes', 'no'",
    "transform map old.npy --modality image -o y.npy --set column_out=x": "named columns",
    "transform map old.npy --set model=C -o y.npy": "vectors of 'C'",
    "transform map old.npy --set model=B -o y.npy": "inverse",
    "transform map old.npy -o y.npy --set dtype=int8": "float16",
    "transform map old.npy --modality image -o y.pkl": "one of .npy",
    "transform map unit.npy --modality image -o y.npy": "raw rows",
    "transform nowhere old.npy -o y.npy": "no folder at nowhere",
    "transform linear new.npy --inverse -o y.npy": "orthogonal",
    "bridge export linear --inverse -o y.npy": "orthogonal",
    "lab frame fit old.npy -o f": "at least two",
    "lab frame fit a=old.npy a=new.npy -o f": "Got two files of vectors for 'a'",
    "lab frame fit a=old.npy a:text=new.npy -o f": "files of 'a' both with and without a modality",
    "lab frame fit =old.npy new.npy -o f": "expected NAME=FILE",
    "lab frame fit old.npy short.npy --ids none -o f": "ids to match them by",
    "lab frame fit old.npy new.npy --modality smell -o f": "smell",
    "lab frame fit old.npy new.npy -o one.npy": "one.npy",
    "lab frame map file a b -o f": "saved map",
    # words that are wrong, old or in the wrong place
    "certify a.npz b.npz": "Type: congruence check a.npz b.npz",
    "serve map --encoder x": "Type: congruence bridge serve map --encoder x",
    "export map -o x.onnx": "Type: congruence bridge export map -o x.onnx",
    "doctor a.npz": "Type: congruence lab doctor a.npz",
    "frame fit a.npz": "Type: congruence lab frame fit a.npz",
    "lab doctr a.npz": "Type: congruence lab doctor a.npz",
    "insect map": "Type: congruence inspect map",
    "nonsense": "Type: congruence --help",
    "bridge nonsense": "Type: congruence bridge --help",
    "migrate photos.lance": "Type: congruence migrate photos.lance plan (or run, status",
    "migrate photos.lance rollbak --json": "Type: congruence migrate photos.lance rollback --json",
    "migrate photos.lance run --nonsense": "Type: congruence migrate photos.lance run --help",
    "fit a.npz": "Type, for example: congruence fit library/old-texts.parquet",
    "fit old.npy new.npy": "Missing option '--out'",
    "fit old.npy new.npy -o m --seed x": "Type: congruence fit --help",
    "fit old.npy new.npy -o m --strict": "Type: --set strict=true",
    "check old.npy new.npy --retention 0.9": "Type: --set retention=0.9",
    "check old.npy new.npy --retention=.9": "Type: --set retention=.9",
    "check old.npy new.npy --must-move": "Type: --set must_move=true",
    "fit old.npy new.npy -o m --no-check": "Type: --set check=false",
    "fit old.npy new.npy -o m --old-model A": "Type: --set old_model=A",
    "train jam --groups g.csv:image -o m": "Type: --set groups=g.csv:image",
    "migrate run photos.parquet": "congruence migrate photos.parquet run",
    "fit old.npy new.npy -o m --set chek=false": "expected NAME=VALUE with one of the names center",
    "fit old.npy new.npy -o m --set check=maybe": "expected true or false",
}


@pytest.mark.parametrize("typed", ANSWERS)
def test_the_answer_is_one_sentence_with_what_to_type_and_nothing_is_written(here, files, typed):
    before = set(files.rglob("*"))
    here(typed, cwd=files).refused(ANSWERS[typed])
    assert set(files.rglob("*")) == before


def test_the_same_rows_twice_are_told_in_python():
    with pytest.warns(PairingWarning, match="the same vectors"):
        congruence.fit(OLD, OLD)


def test_no_command_has_more_options_than_a_reader_can_take():
    """Own ones: without those that mean the same in every command."""
    common = {"--json", "--force", "--seed", "--ids", "--set", "--engine"}
    own = [
        len([option for option in command.params if option.param_type_name == "option" and not common & {*option.opts}])
        for _, command in walk()
    ]
    assert max(own) <= 16
    assert sum(own) <= 230
