"""Words that are wrong, old or swapped are answered with what to type, with exit code 2."""

import shutil

import numpy as np
import pytest

from congruence.synthetic import rigid_problem
from tree import walk

P = rigid_problem(60, 6, 8, noise=0.1, random_state=0)

#: By what was typed, what the answer says.
ANSWERS = {
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
    "fit a.npz b.npz": "Missing option '--out'",
    "fit a.npz b.npz -o m --seed x": "Type: congruence fit --help",
    "fit a.npz b.npz -o m --strict": "Type: --set strict=true",
    "check a.npz b.npz --retention 0.9": "Type: --set retention=0.9",
    "check a.npz b.npz --retention=.9": "Type: --set retention=.9",
    "check a.npz b.npz --must-move": "Type: --set must_move=true",
    "fit a.npz b.npz -o m --no-check": "Type: --set check=false",
    "fit a.npz b.npz -o m --old-model A": "Type: --set old_model=A",
    "train jam --groups g.csv:image -o m": "Type: --set groups=g.csv:image",
    "migrate run photos.parquet": "congruence migrate photos.parquet run",
    "fit a.npz b.npz -o m --set chek=false": "expected NAME=VALUE with one of the names center",
    "fit a.npz b.npz -o m --set check=maybe": "expected true or false",
    "fit a.npz other.npz -o m": "expected the same items on both sides",
    "check a.npz other.npz": "expected the same items on both sides",
    "transform map b.npz -o x.npy": "congruence transform map b.npz -o x.npy --inverse",
    "transform map a.npz -o x.npy --modality smell": "smell",
    "migrate b.npy plan --map map --modality image": "6",
    "migrate b.npy plan --from map": "Pass --map map",
    "inspect kept": "Pass kept/map",
    "fit saved b.npz -o m": "to_parquet",
}


@pytest.fixture
def files(here, tmp_path):
    ids = np.array([f"i{k}" for k in range(60)])
    np.savez(tmp_path / "a.npz", vectors=P.X, ids=ids)
    np.savez(tmp_path / "b.npz", vectors=P.Y, ids=ids)
    np.savez(tmp_path / "other.npz", vectors=P.Y, ids=np.arange(1000, 1060))
    np.save(tmp_path / "b.npy", P.Y)
    here("fit a.npz b.npz -o map --modality image").ends(0)
    shutil.copytree(tmp_path / "map", tmp_path / "kept/map")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/dataset_info.json").write_text("{}")


@pytest.mark.parametrize("typed", ANSWERS)
def test_the_answer_is_what_to_type(here, files, typed):
    done = here(typed).ends(2)
    assert done.err.splitlines()[-1].startswith("error: "), done.err
    assert ANSWERS[typed] in done.err
    assert done.out == ""


def test_no_command_has_more_options_than_a_reader_can_take():
    """Own ones: without those that mean the same in every command."""
    common = {"--json", "--force", "--seed", "--ids", "--set", "--engine"}
    own = [
        len([option for option in command.params if option.param_type_name == "option" and not common & {*option.opts}])
        for _, command in walk()
    ]
    assert max(own) <= 16
    assert sum(own) <= 230
