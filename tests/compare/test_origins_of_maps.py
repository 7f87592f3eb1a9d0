"""A map knows the rows of its models: saved with it, used to judge stores, and no row is mapped by another modality's
mean.
"""

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import congruence
from congruence import Migration, errors, persist
from congruence.compare.origins import OriginDetector, judge
from congruence.databases import open_database
from congruence.io import open_source
from congruence.upgrade.transform import transform_file

D, N = 32, 200


def unit(X):
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


def model(seed, n=3 * N):
    """Rows of a dual encoder: its modalities vary along the same directions, about means of their own."""
    own, rng = np.random.default_rng(seed), np.random.default_rng(99)
    spread = np.diag(0.9 ** np.arange(D)) @ np.linalg.qr(own.normal(size=(D, D)))[0]
    common = 2 * own.normal(size=D) / D**0.5
    return {
        name: unit(rng.normal(size=(n, D)) @ spread / 2 + common + 2 * own.normal(size=D) / D**0.5)
        for name in ("image", "text")
    }


OLD, NEW, OTHER = model(1), model(2), model(3)


def first(rows, n=N):
    return {name: X[:n] for name, X in rows.items()}


@pytest.fixture(scope="module")
def mapping():
    old, new = first(OLD), first(NEW)
    return congruence.fit(old["text"], new["text"], modality="text", means={"image": (old["image"], new["image"])})


def test_a_saved_map_judges_as_before_and_an_older_one_not_at_all(mapping, tmp_path):
    mapping.save(tmp_path / "map")
    loaded = congruence.load(tmp_path / "map")
    assert sorted(loaded.origins_) == sorted(f"{s}.{m}" for s in ("old", "new", "mapped") for m in ("image", "text"))
    store = np.vstack([OLD["text"][N : 2 * N], NEW["image"][N : N + 50]])
    found = judge(loaded, store)
    assert (found.outcome, found.shares) == ("bad", judge(mapping, store).shares)
    assert found.shares["old model (text)"] == 0.8
    assert sum(array.nbytes for array in loaded.origins_["old.text"].state().values()) < 6_000
    hand_built = congruence.OrthogonalMap().fit(OLD["text"], NEW["text"])
    assert "origins." not in str(list(hand_built.state()))
    hand_built.save(tmp_path / "older")
    assert judge(congruence.load(tmp_path / "older"), store).outcome == "unknown"


def test_the_inverse_judges_the_other_way_round(mapping):
    assert judge(mapping.inverse(), NEW["text"][N:]).outcome == "good"
    assert judge(mapping.inverse(), OLD["text"][N:]).outcome == "bad"


def test_rows_of_a_modality_that_a_side_is_not_known_by_are_not_called_another(tmp_path):
    """The new images are unknown, so their likeness to new texts says nothing, and the inverse maps them as images."""
    old, new = first(OLD), first(NEW)
    mapping = congruence.fit(old["text"], new["text"], modality="text", means={"image": (old["image"], None)})
    mapped = mapping.transform(OLD["image"][N:], modality="image")
    for rows in (NEW["image"][N:], mapped):
        assert judge(mapping.inverse(), rows, "image").outcome in ("unknown", "unlike")
    assert judge(mapping.inverse(), OLD["image"][N:], "image").outcome == "bad"
    np.save(tmp_path / "mapped.npy", mapped)
    transform_file(mapping.inverse(), open_source(tmp_path / "mapped.npy"), tmp_path / "back.npy", modality="image")
    assert judge(mapping.for_modality("image"), OLD["image"][N:], "image").outcome == "good"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("old.text.scale", np.zeros(D, np.float32)),
        ("old.text.mean", np.full(D, np.nan, np.float32)),
        ("old.text.mean", np.zeros(D + 1, np.float32)),
        ("old.text.margins", np.zeros(1, np.float32)),
        ("old.text.surplus", np.zeros(1, np.float32)),
        ("elsewhere.text.mean", np.zeros(D, np.float32)),
        ("old.text.variances", None),
    ],
)
def test_a_damaged_description_is_refused(mapping, name, value, tmp_path):
    mapping.save(tmp_path / "map")
    arrays, config = persist.read_folder(tmp_path / "map")
    if value is None:
        del arrays[f"origins.{name}"]
    else:
        arrays[f"origins.{name}"] = value
    config = {key: config[key] for key in config if key not in ("weights_sha256", "numbers_sha256")}
    persist.write_folder(tmp_path / "map", arrays, config, "", force=True)
    assert safetensors.numpy.load_file(tmp_path / "map" / "model.safetensors")
    with pytest.raises(errors.CorruptFileError):
        congruence.load(tmp_path / "map")


def test_the_doctor_counts_the_same_shares(mapping):
    store = np.vstack([OLD["text"][N : 2 * N], OTHER["text"][:N]])
    report = OriginDetector().fit(maps={"m": mapping}).examine(store)
    shares = judge(mapping, store, "text").shares
    assert shares["unknown"] == len(report.odd) / len(store)
    assert sum(shares.values()) == pytest.approx(1)


def test_repeated_rows_count_once(mapping):
    """A text that was embedded a thousand times is one row, whatever it looks like."""
    store = np.vstack([OLD["text"][N:], np.repeat(OTHER["text"][:1], 1000, axis=0)])
    assert judge(mapping, store, "text").outcome == "good"


@pytest.mark.parametrize("n", [1, 2, 3, 20, 40])
@pytest.mark.parametrize("strangers", [0, 1, 2, 20])
def test_few_rows_are_not_called_good_with_one_stranger_nor_accused_by_one(mapping, n, strangers):
    wrong = min(n, strangers)
    store = np.vstack([OLD["text"][N : 2 * N - wrong][: n - wrong], OTHER["text"][:wrong]])
    outcome = judge(mapping, store, "text").outcome
    assert outcome == ("good" if not wrong and n >= 3 else "unrelated" if wrong >= 3 else "unknown")


@pytest.mark.parametrize(("old", "new"), [(OTHER, NEW), (OTHER, None), (OLD, OTHER), (NEW, OLD)])
def test_means_of_another_model_are_refused(old, new):
    rows = old["image"], None if new is None else new["image"]
    pairs = first(OLD)["text"], first(NEW)["text"]
    with pytest.raises(errors.SpaceMismatchError, match="image rows passed as means"):
        congruence.fit(*pairs, modality="text", means={"image": rows})
    assert congruence.fit(*pairs, modality="text", means={"image": rows}, check=False)


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    share=st.sampled_from([0, 0.05, 0.3, 0.5, 0.95, 1]),
    n=st.integers(60, 300),
    modality=st.sampled_from([None, "image", "text"]),
    ordered=st.booleans(),
    migrated=st.booleans(),
    seed=st.integers(0, 99),
)
def test_no_row_is_mapped_by_another_modalitys_mean(
    mapping, tmp_path_factory, share, n, modality, ordered, migrated, seed
):
    folder, rng = tmp_path_factory.mktemp("store"), np.random.default_rng(seed)
    kinds = np.array(["image"] * round(share * n) + ["text"] * (n - round(share * n)))
    rows = np.array([OLD[kind][N + k] for k, kind in enumerate(kinds)])
    if not ordered:
        order = rng.permutation(n)
        kinds, rows = kinds[order], rows[order]
    np.save(folder / "rows.npy", rows)
    try:
        if migrated:
            with Migration(
                open_database(str(folder / "rows.npy")), mapping, journal=folder / "journal", modality=modality
            ) as migration:
                assert migration.run().modality == kinds[0]
        else:
            transform_file(mapping, open_source(folder / "rows.npy"), folder / "out.npy", modality=modality)
            expected = mapping.transform_embeddings(rows, modality=kinds[0]).vectors
            np.testing.assert_allclose(np.load(folder / "out.npy"), expected, atol=1e-5)
    except (errors.ModalityError, errors.SpaceMismatchError):
        assert len(set(kinds)) == 2 or modality not in (None, kinds[0])
        assert not (folder / "out.npy").exists()
    else:
        assert len(set(kinds)) == 1
        assert modality in (None, kinds[0])


@pytest.fixture(scope="module")
def clips(shared):
    """A map fitted on names in two CLIP towers, which knows images too; stores that it is for, others, and photos."""

    def read(name, *keys):
        with np.load(shared(name), allow_pickle=False) as file:
            return [unit(file[key].astype(np.float64)) for key in keys]

    names = "text_openai_vitb32", "text_openai_vitb16", "text_eva02_b16", "image_openai_vitb32_avg5"
    b32, b16, eva, images = read("lvis1203_clip.npz", *names)
    (imagenet,) = read("imagenet1000_openai_vitb32.npz", "text_second_prompt")
    (photos,) = read("imagenet4000_openai_vitb32_photos.npz", "image_4shot")
    fitted = congruence.fit(b32[:300], b16[:300], modality="text", means={"image": (images[:300], None)})
    mapped = fitted.transform_embeddings(b32[300:], modality="text").vectors
    wrong = {"new model": b16[300:], "mapped": mapped, "other model": eva[300:], "images": images[300:]}
    right = {"held out": b32[300:], "sorted": b32[300:][np.argsort(b32[300:, 0])], "new names": imagenet}
    right |= {"repeated": np.repeat(b32[300:400], 5, axis=0), "mixed topics": np.vstack([b32[300:], imagenet])}
    return fitted, right, wrong, photos


@pytest.mark.parametrize("modality", ["text", None])
def test_real_stores_that_fit_are_not_accused(clips, modality):
    fitted, right, _, photos = clips
    found = {name: judge(fitted, rows, modality) for name, rows in right.items()}
    assert {name: one.outcome for name, one in found.items()} == dict.fromkeys(right, "good")
    assert {one.modality for one in found.values()} == {"text"}
    of_photos = judge(fitted, photos, None if modality is None else "image")
    assert (of_photos.outcome, of_photos.modality) == ("good", "image")


@pytest.mark.parametrize("modality", ["text", None])
@pytest.mark.parametrize("share", [1, 0.5, 0.2, 0.05])
def test_real_stores_that_do_not_fit_are_found(clips, modality, share):
    fitted, right, wrong, _ = clips
    n = int(share * 900)
    found = {
        name: judge(fitted, np.vstack([right["held out"][n:900], rows[:n]]), modality) for name, rows in wrong.items()
    }
    if modality is None and share == 1:
        assert found.pop("images").modality == "image"
    assert {one.outcome for one in found.values()} <= {"bad", "unrelated", "ask"}
