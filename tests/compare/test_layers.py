"""Similarity of layers: the right pair is found, and p-values are corrected for the search."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from congruence import errors
from congruence.compare.spaces import compare_layers, compare_spaces
from congruence.metrics import BETWEEN_SPACES, METRICS
from congruence.plotting import MIDDLE, STRONG
from congruence.plotting.look import COLORS
from congruence.report import write_layers


def stacks(n=80, widths=((6, 9, 7), (5, 8)), seed=0):
    rng = np.random.default_rng(seed)
    return tuple([rng.standard_normal((n, d)) for d in side] for side in widths)


def planted(noise=0.3, seed=0):
    """Layer 1 of Y is layer 2 of X turned, with noise."""
    X, Y = stacks(seed=seed)
    rng = np.random.default_rng(seed + 1)
    turn, _ = np.linalg.qr(rng.standard_normal((8, 8)))
    Y[1] = X[2] @ turn[:7] + noise * rng.standard_normal(Y[1].shape)
    return X, Y


@pytest.mark.parametrize("metric", ["linear_cka", "cknna", "mutual_knn", "cca", "procrustes_distance"])
def test_the_planted_pair_is_found(metric):
    found = compare_layers(*planted(), metric, permutations=99)
    assert found.best == ("2", "1")
    assert found.best_adjusted_p_value == found.best_p_value == 0.01
    assert found.z_scores.argmax() == 2 * 2 + 1
    others = np.delete(found.adjusted_p_values.ravel(), 5)
    assert (others > 0.01).all()


@pytest.mark.parametrize("metric", BETWEEN_SPACES)
def test_every_cell_is_what_similarity_says(metric):
    X, Y = planted()
    found = compare_layers({"a": X[0], "b": X[2]}, Y, metric, permutations=12, random_state=3)
    assert (found.x_layers, found.y_layers) == (("a", "b"), ("0", "1"))
    for i, A in enumerate((X[0], X[2])):
        for j, B in enumerate(Y):
            (cell,) = compare_spaces(A, B, [metric], permutations=12, halves=1, random_state=3)
            got = (found.values, found.null_mean, found.null_sd, found.p_values)
            expected = (cell.value, cell.null_mean, cell.null_sd, cell.p_value)
            assert [array[i, j] for array in got] == pytest.approx(expected, abs=1e-12)
            assert found.adjusted_p_values[i, j] >= found.p_values[i, j]
            assert found.values[i, j] == pytest.approx(METRICS[metric].fn(A, B), abs=1e-7)


def test_kernels_and_features_may_meet():
    """With n ≤ 4d linear CKA keeps the kernel, beyond it the features: wide and narrow layers in one comparison."""
    rng = np.random.default_rng(0)
    layers = [rng.standard_normal((60, d)) for d in (5, 20, 90)]
    layers += [layers[0] @ rng.standard_normal((5, d)) for d in (4, 30, 70)]
    found = compare_layers(layers, layers, permutations=2)
    np.testing.assert_allclose(found.values, found.values.T, atol=1e-13)
    np.testing.assert_allclose(np.diag(found.values), 1, atol=1e-12)


@pytest.mark.long
def test_unrelated_layers_fool_the_plain_p_value_and_not_the_corrected_one():
    """Of 60 searches over 12 unrelated pairs the corrected p is ≤ .1 about 6 times (sd 2.3), the plain one far more
    often.
    """
    plain, corrected = [], []
    for seed in range(60):
        found = compare_layers(*stacks(30, ((4,) * 4, (4,) * 3), seed), permutations=49, random_state=seed)
        plain.append(found.best_p_value)
        corrected.append(found.best_adjusted_p_value)
    assert np.sum(np.array(plain) <= 0.1) > 30
    assert np.sum(np.array(corrected) <= 0.1) <= 14
    assert 17 <= np.sum(np.array(corrected) <= 0.5) <= 43  # 30 expected, sd 3.9


@pytest.mark.long
def test_the_null_of_the_best_is_above_that_of_any_pair():
    found = compare_layers(*stacks(40, ((5,) * 4, (5,) * 4)), permutations=100)
    assert found.best_null_mean > found.null_mean.max() + found.null_sd.mean()
    # By brute force: the best of the scores of rows shuffled by hand.
    X, Y = stacks(40, ((5,) * 4, (5,) * 4))
    best = []
    for seed in range(100):
        order = np.random.default_rng(1000 + seed).permutation(40)
        best.append(max(METRICS["linear_cka"].fn(A, B[order]) for A in X for B in Y))
    assert found.best_null_mean == pytest.approx(np.mean(best), abs=4 * np.std(best) / 10 * 2**0.5)
    nearest = compare_layers(*stacks(40, ((5,) * 4, (5,) * 4)), "procrustes_distance", permutations=30)
    assert nearest.best_null_mean < nearest.null_mean.min()
    assert nearest.best_value == nearest.values.min()


def test_a_score_that_cannot_vary_stands_nowhere():
    X, Y = stacks(20, ((40,), (40,)))
    found = compare_layers(X, Y, "pwcca", permutations=9)
    assert found.values[0, 0] == pytest.approx(1)
    assert found.z_scores[0, 0] == 0
    assert found.best_adjusted_p_value == 1


def test_rows_are_drawn_repeats_are_exact_and_arrays_are_left_alone():
    X, Y = planted()
    before = [A.copy() for A in (*X, *Y)]
    ticks = []
    found = compare_layers(X, Y, permutations=5, max_rows=50, callback=ticks.append)
    assert (found.n, ticks) == (50, [1] * 5)
    assert found.to_dict() == compare_layers(X, Y, permutations=5, max_rows=50).to_dict()
    assert found.to_dict() != compare_layers(X, Y, permutations=5, max_rows=50, random_state=1).to_dict()
    for A, old in zip((*X, *Y), before, strict=True):
        np.testing.assert_array_equal(A, old)
    half = compare_layers([A.astype(np.float16) for A in X], Y, permutations=2)
    np.testing.assert_allclose(half.values, compare_layers(X, Y, permutations=2).values, atol=0.01)


def test_bad_input_names_the_layer():
    X, Y = stacks()
    broken = X[1].copy()
    broken[3, 0] = np.nan
    with pytest.raises(errors.NotFiniteError, match=r"layer 'middle' of X.*3"):
        compare_layers({"first": X[0], "middle": broken}, Y)
    with pytest.raises(errors.ShapeError, match=r"80 rows of layer '0' of X and 79 rows of layer '1' of Y"):
        compare_layers(X, [Y[0], Y[1][:-1]])
    with pytest.raises(errors.InputError, match=r"layer '1' of Y"):
        compare_layers(X, [Y[0], np.ones((80, 3))], permutations=1)
    with pytest.raises(errors.ShapeError, match=r"layer '0' of X"):
        compare_layers([np.arange(80.0)], Y)
    with pytest.raises(errors.DtypeError, match=r"layer 'names' of X"):
        compare_layers({"names": np.full((80, 2), "a")}, Y)
    with pytest.raises(errors.TooFewAnchorsError, match=r"layer '0' of X"):
        compare_layers([X[0][:7]], [Y[0][:7]])
    for empty in ({}, []):
        with pytest.raises(errors.ParameterError, match="No layers of Y"):
            compare_layers(X, empty)
    with pytest.raises(errors.ParameterError, match="share a name"):
        compare_layers({1: X[0], "1": X[1]}, Y)
    for metric in ("paired_cosine", "magic", None):
        with pytest.raises(errors.ParameterError, match="compares two spaces"):
            compare_layers(X, Y, metric)
    for options in ({"permutations": 0}, {"max_rows": -1}, {"max_rows": 7}):
        with pytest.raises(errors.ParameterError):
            compare_layers(X, Y, **options)


@pytest.mark.parametrize("metric", BETWEEN_SPACES)
def test_a_constant_layer_is_named_by_every_metric(metric):
    X, Y = stacks()
    with pytest.raises(errors.InputError, match="layer '0' of Y"):
        compare_layers(X, [np.ones((80, 3)), Y[1]], metric, permutations=1)


def drawn(path, **change):
    found = replace(compare_layers(*planted(), permutations=20), **change)
    write_layers(path / "map.svg", found, "a <b> & c", force=True)
    return found, (path / "map.svg").read_text(encoding="utf-8")


def test_the_file_says_every_value(tmp_path):
    found, text = drawn(tmp_path)
    svg = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    words = [text.text for text in svg.iter(f"{space}text")]
    for value in found.values.ravel():
        assert f"{value:.2f}".replace("-", "−") in words
    assert {"a <b> & c", *found.x_layers, *found.y_layers} <= set(words)
    cells = [path for path in svg.iter(f"{space}path") if path.find(f"{space}title") is not None]
    looks = [dict(part.split(": ", 1) for part in cell.get("style").split("; ")) for cell in cells]
    shade = np.array([float(look.get("fill-opacity", 1)) for look in looks])
    assert (len(shade), shade.max(), shade.argmax()) == (6, 1.0, 5)
    tips = [cell.find(f"{space}title").text for cell in cells]
    by_chance = f"by chance {found.null_mean[2, 1]:.3f} ± {found.null_sd[2, 1]:.3f}"
    assert tips[5] == f"2 and 1: {found.values[2, 1]:.3f}, {by_chance}"
    (frame,) = (style for path in svg.iter(f"{space}path") if "stroke-width: 2.5" in (style := path.get("style", "")))
    assert "fill: none" in frame
    assert svg.find(f"{space}title").text == "a <b> & c"
    assert "corrected for the search" in svg.find(f"{space}desc").text
    assert "prefers-color-scheme:dark" in text
    assert text.count("http") == 1  # the name space: nothing outside the file is needed
    assert "<script" not in text


def test_the_suffix_is_the_format(tmp_path):
    found, text = drawn(tmp_path)
    for suffix, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("SVG", b"<svg")):
        for name in ("a", "b"):
            write_layers(tmp_path / f"{name}.{suffix}", found, "a <b> & c")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (
            tmp_path / f"b.{suffix}"
        ).read_bytes()  # no date or random id
        assert (tmp_path / f"a.{suffix}").read_bytes().startswith(start)
    write_layers(tmp_path / "bare", found, "a <b> & c")
    assert (tmp_path / "a.SVG").read_text(encoding="utf-8") == (tmp_path / "bare").read_text(encoding="utf-8") == text
    with pytest.raises(errors.ParameterError, match=r"\.svg, \.png or \.pdf"):
        write_layers(tmp_path / "x.jpg", found, "t")
    with pytest.raises(errors.OutputExistsError):
        write_layers(tmp_path / "a.png", found, "t")


def test_words_stay_readable_on_every_shade():
    """WCAG contrast of at least 4.5 in light and dark, by the definition of relative luminance."""

    def luminance(colour):
        part = np.asarray(colour) / 255
        return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)

    def hexed(word):
        return np.array([int(word[k : k + 2], 16) for k in (1, 3, 5)])

    for scheme in (0, 1):
        colour = {name: hexed(values[scheme]) for name, values in COLORS.items()}
        for shade in np.linspace(0, 1, 101):
            ground = luminance(colour["paper"] + shade * (colour["after"] - colour["paper"]))
            words = luminance(colour["on-strong" if shade > STRONG else "on-middle" if shade > MIDDLE else "on-weak"])
            assert (max(ground, words) + 0.05) / (min(ground, words) + 0.05) >= 4.49, shade


@pytest.fixture
def files(tmp_path):
    X, Y = planted()
    names = np.array([f"i{k}" for k in range(80)])
    order = np.random.default_rng(0).permutation(80)
    np.savez(tmp_path / "a.npz", **{f"layer_{k}": A for k, A in zip((1, 2, 10), X, strict=True)}, ids=names)
    np.savez(tmp_path / "b.npz", first=Y[0][order], second=Y[1][order], ids=names[order], label=np.arange(80))
    return X, Y


def test_the_command(here, files, tmp_path):
    X, Y = files
    command = ["lab similarity", "a.npz", "b.npz", "--layers", "--plot", "map.svg"]
    result = here(*command, "--permutations", 20, "--seed", 4, "--json").ends(0)
    data = json.loads(result.out)["layers"]
    layers = dict(zip(("layer_1", "layer_2", "layer_10"), X, strict=True)), {"first": Y[0], "second": Y[1]}
    assert data == compare_layers(*layers, permutations=20, random_state=4).to_dict()
    assert ET.parse(tmp_path / "map.svg").getroot().tag.endswith("svg")
    here(*command, "--permutations", 2).refused("exists")
    assert here(*command, "--permutations", 2, "--force").code == 0


def test_patterns_folders_and_single_matrices(here, files, tmp_path):
    X, Y = files
    (tmp_path / "side").mkdir()
    for k in (0, 1):
        np.save(tmp_path / "side" / f"part{10 - k}.npy", Y[k])
    (tmp_path / "side" / "notes.md").write_text("no vectors")
    result = here("lab similarity", "a.npz:layer_1*", "side", "--layers", "--permutations", 2, "--json")
    data = json.loads(result.out)["layers"]
    assert (data["x_layers"], data["y_layers"]) == (["layer_1", "layer_10"], ["part9", "part10"])
    assert data["values"][1][0] == pytest.approx(METRICS["linear_cka"].fn(X[2], Y[1]))
    one = here("lab similarity", "a.npz:layer_2", "side/part9.npy", "--layers", "--permutations", 2, "--json")
    assert json.loads(one.out)["layers"]["x_layers"] == ["layer_2"]


def test_the_command_refuses(here, files, tmp_path):
    X, _ = files
    broken = X[0].copy()
    broken[5] = np.inf
    np.savez(tmp_path / "broken.npz", good=X[1], bad=broken)
    np.savez(tmp_path / "odd.npz", good=X[1], short=X[0][:-1])
    np.savez(tmp_path / "flat.npz", names=np.arange(80), more=np.arange(3))
    for arguments, words in (
        (("a.npz", "b.npz", "--metric", "cca", "--metric", "rsa"), "one metric"),
        (("a.npz", "b.npz", "--metric", "all"), "one metric"),
        (("a.npz", "b.npz", "--metric", "magic"), "magic"),
        (("broken.npz", "b.npz"), "Layer bad of broken.npz"),
        (("odd.npz", "b.npz"), "Layer short of odd.npz"),
        (("flat.npz", "b.npz"), "no matrix"),
        (("a.npz:deep*", "b.npz"), "matches 'deep*'"),
        (("none.npz", "b.npz"), "No file"),
    ):
        here("lab similarity", *arguments, "--layers", "--permutations", 2).refused(words)
    odd = here("lab similarity", "a.npz", "b.npz", "--layers", "--permutations", 2, "--plot", "x.jpg")
    assert (odd.code, ".svg, .png or .pdf" in odd.err) == (2, True)
    assert not (tmp_path / "x.jpg").exists()
