"""Read-outs against their formulas in plain NumPy, and what becomes of them in maps changed, saved or exported."""

import copy
import gc
import pickle
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

import congruence
from congruence import Bridge, LinearMap, MLPMap, OrthogonalMap, Space, errors
from congruence.maps.card import shown
from congruence.maps.readout import Folded, Readout, find_lift, to_sphere
from congruence.upgrade.transform import map_digest

RNG = np.random.default_rng(0)
N, D, E = 80, 12, 16


def unit(X):
    return X / np.linalg.norm(X, axis=-1, keepdims=True)


TURN = np.linalg.qr(RNG.normal(size=(E, E)))[0][:D]
LATENT = {name: RNG.normal(size=(N, D)) for name in ("image", "text")}
OLD = {name: unit(Z + 6 * np.eye(D)[k]) for k, (name, Z) in enumerate(LATENT.items())}
NEW = {
    name: unit(Z @ TURN + 5 * np.eye(E)[k] + 0.3 * RNG.normal(size=(N, E)))
    for k, (name, Z) in enumerate(LATENT.items())
}


def fitted(readout, known=True, method=OrthogonalMap):
    """Return a map of texts that also has means of images."""
    mapping = method().fit(OLD["text"], NEW["text"], **({"modality": "text"} if method is OrthogonalMap else {}))
    if method is OrthogonalMap:
        mapping = mapping.recenter(OLD["image"], NEW["image"] if known else None, modality="image", use=False)
    mapping.readout_, mapping.role_ = readout, "store"
    return mapping


def by_hand(mapping, queries, modality, height, known=True, lift=0, slope=None):
    """Return the stored rows of a modality by the formulas, row by row."""
    z, R = OLD[modality], mapping.matrix
    mu, nu = z.mean(0), NEW[modality].mean(0) if known or modality == "text" else None
    asked = queries or (["image", "text"] if known else ["text"])
    if not known and tuple(asked) == ("image",):  # no query's mean is known
        return unit(mapping.transform(z, modality, "plain"))
    B = np.zeros((E, 1))
    if others := [unit(NEW[name].mean(0)) for name in asked if name != modality and (known or name == "text")]:
        B = np.stack(others, axis=1)
    guess = mapping.for_modality(modality).target_mean_
    searched = not queries or modality in queries
    u = (nu if nu is not None else guess if searched else np.zeros(E)) @ (np.eye(E) - B @ B.T)
    u = unit(u) if u.any() else u
    out = []
    for row in z - mu:
        r = row @ R
        p = unit(r - B @ (B.T @ r) - u * (u @ r))
        if nu is None:
            out.append(p)
            continue
        above = u @ r if slope is None else slope * (unit(mu) @ row)
        t = nu + (lift * (nu @ nu) / (u @ nu) * u if modality in asked else 0)
        t = t * min(1, 0.99 / np.sqrt(t @ t)) + (height if modality in asked else 0) * above * u
        t = t * min(1, 0.99 / np.sqrt(t @ t))
        out.append(t + np.sqrt(1 - t @ t) * p)
    return np.array(out)


@pytest.mark.parametrize("modality", ["image", "text"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("queries", [(), ("text",), ("image",), ("image", "text")])
@pytest.mark.parametrize(
    ("height", "lift", "slope"), [(0, 0, None), (0.4, 0, 0.7), (0.4, 0.1, None), (0.4, 0.9, 1.5), (0, -0.2, 0.7)]
)
def test_stored_rows_are_those_of_the_formula(queries, known, modality, height, lift, slope):
    both = ({"text": value, "image": value} for value in (height, 1, 1, lift))
    slopes = {} if slope is None else {"text": slope, "image": slope}
    mapping = fitted(Readout(queries, "cone", *both, slopes), known)
    expected = by_hand(mapping, queries, modality, height, known, max(lift, 0), slope)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1)
    for rows, atol in ((OLD[modality], 1e-12), (OLD[modality].astype(np.float32), 1e-5)):
        np.testing.assert_allclose(mapping.transform(rows, modality), expected, atol=atol)
        np.testing.assert_allclose(mapping.transform_embeddings(rows, modality=modality).vectors, expected, atol=atol)
    plain = mapping.transform(OLD[modality], modality, role="plain")
    there = mapping.for_modality(modality)
    np.testing.assert_array_equal(plain, OLD[modality] @ there.rotation_ + there.offset)


def noisy(X, amount, seed=1):
    """Return residuals turned away from those of unit rows X, as a bad map turns them."""
    Z = X - X.mean(0)
    return Z + amount * np.random.default_rng(seed).normal(size=X.shape) * np.linalg.norm(Z) / np.sqrt(X.size)


def test_the_lift_is_half_of_what_the_highest_scores_lack():
    X = NEW["text"]
    nu, own, mapped = X.mean(0), X - X.mean(0), noisy(NEW["text"], 2)
    u = unit(nu)
    above = (mapped @ u)[:, None] * u
    t = nu + 0.3 * above
    t *= np.minimum(1, 0.99 / np.linalg.norm(t, axis=1, keepdims=True))
    stored = t + np.sqrt(1 - (t * t).sum(1, keepdims=True)) * unit(mapped - above)
    other = ~np.eye(N, dtype=bool)
    native, ours = (np.quantile((X @ rows.T)[other], 0.97) for rows in (X, stored))
    assert find_lift(mapped, own, nu, 0.3) == pytest.approx((native - ours) / 2 / (nu @ nu))
    assert find_lift(own, own, nu, 1.0) == pytest.approx(0, abs=1e-12)  # rows mapped without an error
    assert find_lift(mapped[:3], own[:3], nu, 0.3) is None
    assert find_lift(mapped, own, 0.2 * u, 0.3) is None


def test_badly_mapped_rows_win_more_places_beside_native_ones_and_keep_their_own_order():
    rng = np.random.default_rng(3)
    new = unit(rng.normal(size=(400, E)) + 5 * np.eye(E)[0])
    old = unit(new - new.mean(0)) @ TURN.T + 6 * np.eye(D)[1]
    old = unit(old + 0.25 * rng.normal(size=old.shape))
    mapping = congruence.fit(old[:100], new[:100], modality="image", check=False)
    lift = mapping.readout_.lift["image"]
    assert lift > 0
    mapping.readout_ = Readout(store="cone", height={"image": 0}, lift={"image": lift})
    lifted = mapping.transform(old[100:])
    mapping.readout_ = Readout(store="cone", height={"image": 0})
    flat = mapping.transform(old[100:])
    queries, native = new[100:200], new[100:250]
    np.testing.assert_array_equal(np.argsort(queries @ lifted.T), np.argsort(queries @ flat.T))

    def won(rows):
        found = np.argsort(-(queries @ np.concatenate([native, rows[150:]]).T), axis=1)[:, :10]
        return (found >= len(native)).mean()

    assert won(flat) < won(lifted) < 0.5


@pytest.mark.parametrize("queries", ["image", "text", "all", ["image", "text"]])
def test_rows_without_pairs_are_read_by_the_rows_of_both_models(queries):
    means = {"image": (OLD["image"], NEW["image"])}
    mapping = congruence.fit(OLD["text"], NEW["text"], modality="text", means=means, queries=queries, check=False)
    there, read = mapping.for_modality("image"), mapping.readout_
    old, nu = OLD["image"] - there.source_mean_, there.target_mean_
    own, part = NEW["image"] - nu, old @ unit(there.source_mean_)
    correlation = mapping.scores_["choice"]["quality"]["means"]
    assert read.slope == {"image": pytest.approx(correlation * (own @ unit(nu)).std() / part.std())}
    mapped = old @ there.matrix
    mapped = mapped - np.outer(mapped @ unit(nu) - read.slope["image"] * part, unit(nu))
    assert read.lift["image"] == pytest.approx(find_lift(mapped, own, nu, read.height["image"]))


def test_the_part_along_the_mean_of_rows_without_pairs_comes_from_the_old_rows():
    rng = np.random.default_rng(4)
    apart = 6 + 2 * rng.normal(size=(1000, 1))  # how far along its mean an image is in either model
    images, texts = rng.normal(size=(2, 1000, E - 2)) @ np.eye(E)[:-2].reshape(1, E - 2, E)
    turn = np.linalg.qr(rng.normal(size=(E - 2, E - 2)))[0]
    turn = np.pad(turn, (0, 2))  # by text pairs, nothing is known of the images' direction
    old = {"image": unit(images + apart * np.eye(E)[-1]), "text": unit(texts + 6 * np.eye(E)[0])}
    new = {"image": unit(images @ turn + apart * np.eye(E)[-2]), "text": unit(texts @ turn + 6 * np.eye(E)[1])}
    means = {"image": (old["image"][:500], new["image"][:500])}
    mapping = congruence.fit(old["text"][:60], new["text"][:60], modality="text", means=means, check=False)
    stored, nu = mapping.transform(old["image"][500:], "image"), new["image"][:500].mean(0)
    assert np.corrcoef(stored @ nu, new["image"][500:] @ nu)[0, 1] > 0.9


def test_too_few_or_equal_rows_without_pairs_say_nothing_of_their_part_along_the_mean():
    for rows in (OLD["image"][:1], np.repeat(OLD["image"][:1], 20, axis=0)):
        means = {"image": (rows, NEW["image"])}
        mapping = congruence.fit(OLD["text"], NEW["text"], modality="text", means=means, check=False)
        assert mapping.readout_.slope.get("image", 0) == 0
        assert np.isfinite(mapping.transform(OLD["image"], "image")).all()


def test_what_is_added_to_the_mean_is_nothing_to_other_queries():
    for lift in (0, 0.1):
        mapping = fitted(Readout((), "cone", {"image": 0}, lift={"image": lift}))
        stored = mapping.transform(OLD["image"], "image")
        means = {name: X.mean(0) for name, X in NEW.items()}
        np.testing.assert_allclose(stored @ means["text"], means["image"] @ means["text"], atol=1e-12)
        assert (stored @ means["image"]).mean() == pytest.approx(
            (1 + lift) * (means["image"] @ means["image"]), rel=0.01
        )


def test_maps_composed_and_inverted_keep_the_lift_and_maps_saved_without_one_have_none():
    one, two = Readout(lift={"image": 0.2, "text": -0.1}), Readout(lift={"image": 0.3}, slope={"image": 2.0})
    assert one.then(two).lift == {"image": 0.3, "text": 0.0}
    assert one.then(two).slope == {}
    assert two.then(two).slope == {"image": 4.0}
    steep = replace(two, slope={"image": 30.0})
    assert Readout.from_dict(steep.then(steep).to_dict()).slope == {"image": 900.0}
    assert one.inverse().inverse() == one
    saved = one.to_dict()
    assert Readout.from_dict(saved) == one
    del saved["lift"]
    assert Readout.from_dict(saved) == Readout()
    for value in (-2, 1.5, float("nan")):
        with pytest.raises(ValueError, match="lift"):
            Readout.from_dict({**saved, "lift": {"image": value}})


@pytest.mark.parametrize("share", [0, 0.25, 1])
def test_queries_keep_a_share_of_their_mean(share):
    mapping = fitted(Readout(share={"image": share}))
    nu = NEW["image"].mean(0)
    expected = unit((OLD["image"] - OLD["image"].mean(0)) @ mapping.rotation_ + share * nu)
    np.testing.assert_allclose(mapping.transform(OLD["image"], "image", "query"), expected, atol=1e-12)
    np.testing.assert_allclose(Bridge(mapping).transform(OLD["image"], "image"), expected, atol=1e-12)
    np.testing.assert_allclose(Bridge(mapping).transform(OLD["image"][3], "image"), expected[3], atol=1e-12)
    texts = mapping.transform(OLD["text"], "text", "query")  # whose share is not given
    np.testing.assert_allclose(texts, unit(mapping.transform(OLD["text"], "text", "plain")), atol=1e-12)


def test_a_query_costs_one_product_with_the_maps_own_matrix(monkeypatch):
    mapping = fitted(Readout(share={"image": 0.25}))
    there = mapping.for_modality("image")
    query = there.for_role("query")
    assert query.matrix is there.matrix
    assert [layer["kind"] for layer in mapping.as_layers("image", role="query")] == ["linear", "normalize"]
    bridge, row = Bridge(mapping), OLD["image"][3]
    first = bridge.transform(row, "image")

    def fold(*_):
        raise AssertionError("folded again")

    monkeypatch.setattr(Readout, "fold", fold)
    np.testing.assert_array_equal(bridge.transform(row, "image"), first)
    np.testing.assert_array_equal(mapping.transform(row[None], "image", "query")[0], first)
    np.testing.assert_allclose(first, unit(row @ query.matrix + query.offset), rtol=1e-14)


def everything(mapping):
    """Return the rows of both modalities in every role, of few and of many rows and in both precisions."""
    given = [OLD["image"][:3].astype(np.float32), OLD["image"]]
    return [
        mapping.transform(X, name, role)
        for name in ("image", "text")
        for role in ("plain", "store", "query")
        for X in given
    ]


CHANGES = {
    "partial_fit": lambda m: m.partial_fit(OLD["text"][:9], NEW["text"][9:18], modality="text"),
    "fit": lambda m: m.fit(OLD["text"][:40], NEW["text"][:40]),
    "readout_": lambda m: setattr(m, "readout_", Readout(("text",), "cone", {"image": 0.1}, {"image": 0.9})),
    "role_": lambda m: setattr(m, "role_", "plain"),
    "rotation_": lambda m: setattr(m, "rotation_", -m.rotation_),
    "center": lambda m: m.set_params(center=False).partial_fit(OLD["text"][:9], NEW["text"][:9], modality="text"),
    "modality_means_": lambda m: setattr(
        m, "modality_means_", {name: (a, -b) for name, (a, b) in m.modality_means_.items()}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_map_keeps_ready_goes_when_it_changes(change):
    mapping = fitted(Readout(store="cone", height={"image": 0.3}, share={"image": 0.25, "text": 0.5}))
    before = everything(mapping)
    same = everything(pickle.loads(pickle.dumps(mapping)))
    assert all(np.array_equal(a, b) for a, b in zip(before, same, strict=True))
    CHANGES[change](mapping)
    after, fresh = everything(mapping), everything(pickle.loads(pickle.dumps(mapping)))
    for ours, theirs in zip(after, fresh, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    if change != "role_":
        assert not all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_what_a_map_keeps_ready_is_small_and_neither_copied_nor_saved(tmp_path):
    mapping = fitted(Readout(store="cone"))
    size = len(pickle.dumps(mapping))
    for _ in range(3):
        everything(mapping)
    assert len(pickle.dumps(mapping)) == size
    assert len(mapping._made) <= 6 + 2  # maps by modality and role, and matrices by type
    assert not copy.copy(mapping)._made
    mapping.in_use("image", "store").partial_fit(OLD["text"], NEW["text"], modality="text")  # even one that is changed
    there = mapping.for_modality("image").for_role("store")
    assert there is not mapping.for_modality("image").for_role("store")
    plain = OrthogonalMap().fit(OLD["text"], NEW["text"])
    gc.disable()
    try:
        for one in (mapping, plain):
            everything(one)
        held = [weakref.ref(one) for one in (mapping, plain)]
        del mapping, plain, one
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()


def test_threads_that_map_while_the_map_changes_see_the_one_or_the_other():
    forms = [Readout(share={"text": share}) for share in (0.0, 1.0)]
    mapping = fitted(forms[0])
    X = OLD["text"][:3]
    right = []
    for mapping.readout_ in forms:
        right.append(mapping.transform(X, "text", "query"))
    wrong = []
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            out = mapping.transform(X, "text", "query")
            if not any(np.array_equal(out, one) for one in right):
                wrong.append(out)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for k in range(300):
        mapping.readout_ = forms[k % 2]
        np.testing.assert_array_equal(mapping.transform(X, "text", "query"), right[k % 2])
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_map_built_by_hand_is_the_plain_one_in_every_role():
    mapping = OrthogonalMap().fit(OLD["text"], NEW["text"])
    plain = OLD["text"] @ mapping.rotation_ + mapping.offset
    np.testing.assert_array_equal(mapping.transform(OLD["text"]), plain)
    for role in ("store", "query"):
        np.testing.assert_allclose(mapping.transform(OLD["text"], role=role), unit(plain), atol=1e-12)
    raw = OrthogonalMap().fit(OLD["text"], 3 * NEW["text"])
    np.testing.assert_allclose(raw.transform(OLD["text"], role="store"), raw.transform(OLD["text"]))
    with pytest.raises(errors.ParameterError, match="role"):
        mapping.transform(OLD["text"], role="index")


def test_a_ridge_regression_has_roles_and_a_network_only_the_plain_one():
    mapping = fitted(Readout(store="cone", height={"": 0.2}), method=LinearMap)
    nu = NEW["text"].mean(0)
    residual = (OLD["text"] - OLD["text"].mean(0)) @ mapping.coef_
    above = (residual @ unit(nu))[:, None] * unit(nu)
    base = nu + 0.2 * above
    room = np.sqrt(1 - (base * base).sum(1, keepdims=True))
    np.testing.assert_allclose(mapping.transform(OLD["text"]), base + room * unit(residual - above), atol=1e-12)
    network = MLPMap(max_epochs=1, hidden=4).fit(OLD["text"], NEW["text"])
    if network is not None:
        rows = network.transform(OLD["text"])
        np.testing.assert_array_equal(network.transform(OLD["text"], role="store"), rows)


@pytest.mark.parametrize("height", [0, 0.3])
def test_a_row_that_equals_its_mean_becomes_the_mean(height):
    mapping = fitted(Readout(store="cone", height={"image": height}))
    for dtype in (np.float32, np.float64):
        rows = np.vstack([OLD["image"].mean(0), OLD["image"][0]]).astype(dtype)
        out = mapping.transform(rows, "image")
        np.testing.assert_allclose(out[0], unit(NEW["image"].mean(0)), atol=1e-5)
        np.testing.assert_allclose(out[1], mapping.transform(OLD["image"][:1], "image")[0], atol=1e-5)
        torch = pytest.importorskip("torch")
        exported = mapping.to_torch("image", trainable=True)(torch.tensor(rows, dtype=torch.float32))
        np.testing.assert_allclose(exported.detach(), out, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_any_length_and_direction_reach_the_sphere_along_themselves(dtype):
    rng = np.random.default_rng(5)
    u, b = unit(rng.normal(size=E)), 0.8 * unit(rng.normal(size=E))
    off = rng.normal(size=(60, E)) @ (np.eye(E) - np.outer(u, u))
    size = 10.0 ** rng.integers(-12, 1, 60)
    rows = (size[:, None] * (off + np.repeat([0, 1, 1e3], 20)[:, None] * u)).astype(dtype)
    out = to_sphere(rows, Folded(np.eye(E), np.zeros(E), b, u, 0.3))
    wide = rows.astype(np.float64)
    above = wide @ u
    t = b + 0.3 * above[:, None] * u
    t *= np.minimum(1, 0.99 / np.linalg.norm(t, axis=1, keepdims=True))
    along = unit(wide - above[:, None] * u)
    lift = np.einsum("ij,ij->i", along, t)
    far = np.sqrt(lift**2 + 1 - (t * t).sum(1)) - lift
    near = {np.float32: 2e-3, np.float64: 1e-9}[dtype]  # of rows a thousand times longer along u, little else is left
    np.testing.assert_allclose(out, t + far[:, None] * along, atol=near)
    np.testing.assert_allclose(out[:40], (t + far[:, None] * along)[:40], atol=near / 500)
    np.testing.assert_allclose(to_sphere(rows, Folded(np.eye(E), np.zeros(E))), unit(wide), atol=near)


@pytest.mark.parametrize("form", ["plain", "cone"])
def test_a_saved_map_keeps_its_roles(form, tmp_path):
    mapping = fitted(Readout(("text", "image"), form, {"image": 0.3}, {"text": 0.4}, {"text": 0.5}, {"image": 0.1}))
    mapping.save(tmp_path / "map")
    loaded = congruence.load(tmp_path / "map")
    assert (loaded.readout_, loaded.role_) == (mapping.readout_, "store")
    for role in (None, "plain", "store", "query"):
        ours, theirs = (one.transform(OLD["image"], "image", role) for one in (mapping, loaded))
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(ours, mapping.for_modality("image").for_role(role).transform(OLD["image"]))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("queries", [("text",), ("image", "text")])
def test_layers_and_tensors_give_the_same_rows(queries, known):
    torch = pytest.importorskip("torch")
    mapping = fitted(Readout(queries, "cone", {"image": 0.3}, {"image": 0.2}), known)
    X = torch.tensor(OLD["image"], requires_grad=True)
    for role in ("store", "query"):
        expected = mapping.transform(OLD["image"], "image", role)
        module = mapping.to_torch("image", role=role, dtype=torch.float64)
        np.testing.assert_allclose(module(X).detach(), expected, atol=1e-9)
        out = mapping.transform(X, "image", role)
        np.testing.assert_allclose(out.detach(), expected, atol=1e-12)
        out.sum().backward()


def test_the_space_of_mapped_rows_says_what_they_are_for(tmp_path):
    mapping = fitted(Readout(store="cone"))
    given = congruence.Embeddings(OLD["image"], space=Space("old", modality="image"))
    assert mapping.transform_embeddings(given).space.role == "store"
    assert mapping.transform_embeddings(given, role="query").space.role == "query"
    assert mapping.transform_embeddings(given, role="plain").space.role is None
    assert Bridge(mapping).transform(given).space.role == "query"
    np.savez(tmp_path / "in.npz", vectors=OLD["image"])
    congruence.transform_file(
        mapping, congruence.io.open_source(tmp_path / "in.npz"), tmp_path / "out.npz", modality="image"
    )
    out = congruence.read_embeddings(tmp_path / "out.npz")
    assert out.space.role == "store"
    np.testing.assert_allclose(out.vectors, mapping.transform(OLD["image"], "image"), atol=1e-6)


@pytest.mark.parametrize("form", ["plain", "cone"])
def test_the_inverse_gives_stored_rows_back_as_far_as_the_rotation_does(form):
    """On noise-free data nothing is lost except the part along the means' directions."""
    new = {name: unit(X @ TURN) for name, X in OLD.items()}
    mapping = OrthogonalMap(shrinkage="full").fit(OLD["text"], new["text"], modality="text")
    mapping = mapping.recenter(OLD["image"], new["image"], modality="image", use=False)
    mapping.readout_, mapping.role_ = Readout(store=form), "store"
    back = mapping.inverse().transform(mapping.transform(OLD["image"], "image"), "image")
    mu = OLD["image"].mean(0)
    H = np.linalg.qr(np.stack([OLD[name].mean(0) for name in OLD], axis=1))[0] * (form != "plain")
    kept = (OLD["image"] - mu) @ (np.eye(D) - H @ H.T)
    assert np.abs(np.linalg.norm(back, axis=1) - 1).max() < 1e-9
    assert np.einsum("ij,ij->i", unit(back - mu), unit(kept)).min() > 1 - 1e-9
    assert np.einsum("ij,ij->i", back, OLD["image"]).min() > (0.99 if form == "plain" else 0.9)
    mapping.readout_ = Readout(store=form, lift={"image": 0.1})  # what was added to the mean goes again
    lifted = mapping.inverse().transform(mapping.transform(OLD["image"], "image"), "image")
    np.testing.assert_allclose(lifted, back, atol=1e-9)
    native = mapping.inverse().transform(new["image"], "image")  # the model's own rows too
    np.testing.assert_allclose(native, back, atol=1e-9)


def test_of_few_pairs_the_inverse_gives_back_what_they_span_and_its_display_says_how_much():
    mapping = OrthogonalMap().fit(OLD["text"][:6], NEW["text"][:6], modality="text")
    mapping = mapping.recenter(OLD["image"], NEW["image"], modality="image", use=False)
    mapping.readout_, mapping.role_ = Readout(store="cone", height={"image": 0}), "store"
    inverse = mapping.inverse()
    back = inverse.transform(mapping.transform(OLD["image"], "image"), "image")
    R, mu = mapping.rotation_, OLD["image"].mean(0)
    H = np.linalg.qr(np.stack([NEW["text"][:6].mean(0), NEW["image"].mean(0)], axis=1))[0]
    kept = (OLD["image"] - mu) @ R @ (np.eye(E) - H @ H.T) @ R.T
    np.testing.assert_allclose(unit(back - mu), unit(kept), atol=1e-9)
    facts = mapping.facts_
    spanned = facts["rank"] + facts["mean_directions"]
    assert spanned < D
    assert shown(inverse)["lost"] == f"{D - spanned} of {D} directions, and the part along the means"
    assert "lost" not in shown(mapping)
    whole = OrthogonalMap(shrinkage="full").fit(OLD["text"], NEW["text"])
    whole.readout_ = Readout(store="cone")
    assert shown(whole.inverse())["lost"] == f"0 of {D} directions, and the part along the means"


def test_maps_of_one_rotation_and_two_read_outs_are_told_apart():
    maps = [fitted(Readout(("text",), form, {"text": 0.3})) for form in ("plain", "cone", "cone")]
    digests = [map_digest(mapping.for_modality("text").for_role("store")) for mapping in maps]
    assert digests[0] != digests[1] == digests[2]


def test_a_composed_map_without_names_reads_rows_about_its_own_mean():
    first = OrthogonalMap().fit(OLD["text"], OLD["image"])
    second = OrthogonalMap().fit(OLD["image"], NEW["text"])
    for one in (first, second):
        one.readout_, one.role_ = Readout(store="cone", height={"": 0.5}), "store"
    both = first.then(second)
    nu = both.target_mean_
    r = (OLD["text"] - both.source_mean_) @ both.rotation_
    above = (r @ unit(nu))[:, None] * unit(nu)
    t = nu + 0.25 * above
    t *= np.minimum(1, 0.99 / np.linalg.norm(t, axis=1, keepdims=True))
    expected = t + np.sqrt(1 - (t * t).sum(1, keepdims=True)) * unit(r - above)
    np.testing.assert_allclose(both.transform(OLD["text"]), expected, atol=1e-12)


def split(X, Y):
    return [(X[rows], Y[rows]) for rows in (slice(0, 30), slice(30, None))]


def test_more_pairs_measure_the_read_out_again_on_pairs_not_yet_seen():
    (A, B), (C, E) = split(OLD["text"], NEW["text"])
    mapping = congruence.fit(A, B, modality="text", check=False, holdout=5)
    before, first = mapping.for_modality("text"), mapping.readout_
    x, y = C - before.source_mean_, E - before.target_mean_
    mapped = x @ before.rotation_
    cosine = np.einsum("ij,ij->i", unit(mapped), unit(y)).mean()
    length = np.linalg.norm(mapped) / np.linalg.norm(y)
    above = mapped @ before.target_mean_
    slope = np.clip(above @ (y @ before.target_mean_) / (above @ above), 0, 1)
    share = len(C) / (len(C) + before.n_pairs_)
    mapping.partial_fit(C, E, modality="text")
    for name, new in (("height", cosine * slope), ("share", min(1, cosine**0.75 * length))):
        old = getattr(first, name)["text"]
        assert getattr(mapping.readout_, name)["text"] == pytest.approx((1 - share) * old + share * new)
    assert mapping.scores_ == {}  # what was held out, and how well it was found, is of another map
    assert (mapping.role_, mapping.n_pairs_) == ("store", before.n_pairs_ + len(C))


def test_a_merged_map_has_the_read_out_of_both():
    one, two = (congruence.fit(*part, modality="text", check=False) for part in split(OLD["text"], NEW["text"]))
    merged = one.merge(two)
    share = two.n_pairs_ / (one.n_pairs_ + two.n_pairs_)
    for name in ("height", "share", "back", "lift"):
        a, b = (getattr(each.readout_, name)["text"] for each in (one, two))
        assert getattr(merged.readout_, name)["text"] == pytest.approx((1 - share) * a + share * b)
    assert (merged.role_, merged.scores_) == ("store", {})
    with pytest.raises(errors.ParameterError, match="Only one of the two"):
        one.merge(OrthogonalMap().fit(OLD["text"], NEW["text"], modality="text"))
    other = congruence.fit(OLD["text"], NEW["text"], modality="text", queries="text", check=False)
    with pytest.raises(errors.ParameterError, match="two ways"):
        one.merge(other)
