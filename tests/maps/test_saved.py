"""What may be in a saved map: digests apart from names, and contents that their checksums do not vouch for."""

import functools
import hashlib
import json

import numpy as np
import pytest
import safetensors.numpy

import congruence
from congruence import LinearMap, OrthogonalMap, ProcrustesHeads, Space
from congruence.errors import CorruptFileError
from congruence.persist import numbers_digest
from congruence.synthetic import rigid_problem

P = rigid_problem(60, 5, 6, noise=0.1, random_state=3)


@pytest.fixture
def saved(tmp_path):
    mapping = LinearMap().fit(P.X, P.Y)
    mapping.source_space_ = Space("a", "1", "image", 5, False)
    mapping.scores_ = {"held_out_pairs": 6, "held_out_retrieval_at_1": 0.5, "pairing": None}
    return mapping.save(tmp_path / "map")


def write(folder, config, arrays):
    weights = safetensors.numpy.save(arrays)
    (folder / "model.safetensors").write_bytes(weights)
    config["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    config["numbers_sha256"] = numbers_digest(config)
    (folder / "config.json").write_text(json.dumps(config))


def read(folder):
    return json.loads((folder / "config.json").read_text()), safetensors.numpy.load_file(folder / "model.safetensors")


def test_a_name_edited_by_hand_is_no_damage(saved):
    config = json.loads((saved / "config.json").read_text())
    config["source_space"] |= {"model": "openai/clip-b32", "revision": "main"}
    config["note"] = "fitted by me"
    (saved / "config.json").write_text(json.dumps(config))
    mapping = congruence.load(saved)
    assert (mapping.source_space_.model, mapping.source_space_.revision) == ("openai/clip-b32", "main")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("facts.n_pairs", 61), ("scores.held_out_retrieval_at_1", 0.99), ("parameters.center", False), ("kind", "cca"),
        ("target_space.normalized", True), ("source_space.modality", "text"), ("weights_sha256", "0" * 64),
        ("role", "query"), ("readout", {}),
    ],
)  # fmt: skip
def test_numbers_edited_by_hand_are_refused(saved, where, value):
    config = json.loads((saved / "config.json").read_text())
    *way, last = where.split(".")
    functools.reduce(dict.__getitem__, way, config)[last] = value
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptFileError, match=r"edited"):
        congruence.load(saved)


@pytest.mark.parametrize("text", ['{"format": "\\ud800"}', "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, "1" * 9999])
def test_odd_json_is_one_error(saved, text):
    (saved / "config.json").write_text(text)
    with pytest.raises(CorruptFileError):
        congruence.load(saved)


def orthogonal_with(**changed):
    return lambda config, arrays: arrays.update({k: v(arrays[k]) for k, v in changed.items()})


CLAIMS = {
    "rotation scaled": orthogonal_with(rotation=lambda R: 1.01 * R),
    "rotation sheared": orthogonal_with(rotation=lambda R: R @ np.diag([1.2, 0.8, 1, 1, 1, 1])),
    "gains above 1": orthogonal_with(gains=lambda g: g + 0.5),
    "isometry": lambda config, arrays: config["facts"].update(is_isometry=not config["facts"]["is_isometry"]),
    "mean gain": lambda config, arrays: config["facts"].update(mean_gain=0.5),
    "rank": lambda config, arrays: config["facts"].update(rank=7),
    "modality": lambda _, arrays: arrays.update({"means.smell.source": np.ones(5), "means.smell.target": np.ones(6)}),
    "half a modality": lambda config, arrays: arrays.pop("means.text.target"),
    "moments": orthogonal_with(**{"moments.image.totals": lambda t: -t}),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_a_rigid_map_that_is_not_what_it_claims_is_refused(tmp_path, case):
    mapping = OrthogonalMap(shrinkage="full").fit(P.X, P.Y, modality="image").recenter(P.X[:9], modality="text")
    path = mapping.save(tmp_path / "map")
    congruence.load(path)
    config, arrays = read(path)
    CLAIMS[case](config, arrays)
    write(path, config, arrays)
    with pytest.raises(CorruptFileError, match="Got a saved map"):
        congruence.load(path)


def test_frames_that_are_not_orthonormal_are_refused(tmp_path):
    path = ProcrustesHeads().fit(P.X, P.Y).save(tmp_path / "map")
    config, arrays = read(path)
    name = next(name for name in arrays if name.startswith("source.") and name.endswith(".weight"))
    write(path, config, {**arrays, name: arrays[name] * [1, 1, 1, 1, 1.001]})
    with pytest.raises(CorruptFileError, match="orthonormal"):
        congruence.load(path)


@pytest.mark.filterwarnings("ignore::congruence.errors.CongruenceWarning")
@pytest.mark.parametrize("shrinkage", ["full", "covered", "wiener", "soft", "cv"])
@pytest.mark.parametrize(("n", "center"), [(10, True), (60, True), (60, False)])
def test_every_rigid_map_of_ours_is_what_it_claims(tmp_path, shrinkage, n, center):
    """Few anchors, projections, inverses and chains: what is refused is never a map that was fitted here."""
    wide = rigid_problem(60, 12, 14, noise=0.1, random_state=3)
    fitted = OrthogonalMap(shrinkage=shrinkage, center=center).fit(wide.X[:n] + 3, wide.Y[:n] + 2)
    back = fitted.inverse()
    for k, mapping in enumerate((fitted, back, fitted.then(back), back.then(fitted), fitted.recenter(wide.X[:5]))):
        rows = np.random.default_rng(k).standard_normal((5, mapping.n_features_in_))
        again = congruence.load(mapping.save(tmp_path / str(k)))
        np.testing.assert_array_equal(again.transform(rows), mapping.transform(rows))
