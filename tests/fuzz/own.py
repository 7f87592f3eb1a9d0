"""What congruence writes itself and reads again: maps, checkpoints, parts and caches of ``embed``, recipes."""

import hashlib
import json
import random
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
from hostile import numbers
from mutators import mutate_data
from targets import Target, refusing, write_vectors

import congruence
from congruence._utils.atomic import has_marker
from congruence._utils.records import from_record, to_record
from congruence.databases import open_database
from congruence.embed import embed, open_items
from congruence.embeddings import Embeddings, Space
from congruence.encoders import Encoder
from congruence.engines import open_dataset, open_itemset
from congruence.errors import CorruptFileError, StorageError
from congruence.io.dataset import Fragment
from congruence.io.jobs import FragmentJournal, Receipt
from congruence.io.locations import Location
from congruence.maps import MAPS, make_map
from congruence.persist import numbers_digest
from congruence.recipe import make_recipe, read_recipe
from congruence.synthetic import rigid_problem
from congruence.train import History
from congruence.upgrade.migrate.journal import SEEN, Journal
from congruence.upgrade.migrate.native import read_native, save_plan
from congruence.upgrade.migrate.plan import read_verdict
from congruence.upgrade.progressive import Progressive

D_SOURCE, D_TARGET = 5, 6
_MAPS: dict[str, Any] = {}


def _fitted(kind: str) -> Any:
    if kind not in _MAPS:
        problem = rigid_problem(40, D_SOURCE, D_TARGET, noise=0.1, random_state=3)
        if kind == "heads":
            draw = np.random.default_rng(0)
            inner = [{"kind": "layernorm", "weight": np.ones(4)}, {"kind": "linear", "weight": np.eye(4)}]
            source = [
                {"kind": "center", "mean": np.ones(D_SOURCE)},
                {"kind": "linear", "weight": draw.standard_normal((D_SOURCE, 4)), "bias": np.zeros(4)},
                {"kind": "residual", "layers": inner},
                {"kind": "gelu"},
            ]
            target = [{"kind": "linear", "weight": draw.standard_normal((D_TARGET, 4))}, {"kind": "normalize"}]
            facts = {"n_pairs": 9, "training": {"n_components": 4}}
            mapping = congruence.HeadsMap.from_layers(source, target, facts=facts)
        else:
            quick = {"mlp": {"max_epochs": 2, "hidden": 4}}.get(kind, {})
            mapping = make_map(kind, **quick).fit(problem.X, problem.Y)
        mapping.source_space_ = Space("a", "1", "image", D_SOURCE, False)
        mapping.scores_ = {"held_out_pairs": 6, "held_out_retrieval_at_1": 0.5, "pairing": None}
        _MAPS[kind] = mapping
    return _MAPS[kind]


def write_map(kind: str, rng: random.Random, folder: Path) -> Path:
    return _fitted(kind).save(folder / "map")


def save_again(result: Any, path: Path, load: Callable[[Path], Any] = congruence.load) -> None:
    """Save beside the input what was read from it, and read it again."""
    again = path.parent / f"again-{path.name}"
    try:
        with refusing():
            result.save(again)
            load(again)
    finally:
        shutil.rmtree(again, ignore_errors=True)


def read_map(path: Path) -> None:
    mapping = congruence.load(path)
    rows = np.random.default_rng(0).standard_normal((3, mapping.n_features_in_))
    repr(mapping), mapping.describe()
    for dtype in (np.float64, np.float32):
        with refusing():
            out = mapping.transform(rows.astype(dtype))
            assert out.shape == (3, mapping.d_out)
            assert np.isfinite(out).all(), "a map gave numbers that are not finite"
        with refusing():
            assert np.isfinite(mapping.transform_target(np.ones((2, mapping.d_target), dtype))).all()
    save_again(mapping, path)


def write_bridge(rng: random.Random, folder: Path) -> Path:
    """Write a bridge of each kind of map that makes one, with and without means of two modalities and thresholds."""
    draw = np.random.default_rng(0)
    mapping = _fitted(rng.choice(("orthogonal", "linear", "mlp")))
    modality = None
    if mapping.kind == "orthogonal" and rng.random() < 0.5:
        for name in ("image", "text"):
            means = draw.standard_normal((9, D_SOURCE)), draw.standard_normal((9, D_TARGET))
            mapping = mapping.recenter(*means, modality=name)
        modality = rng.choice(("image", "text"))
    bridge = congruence.Bridge(mapping, normalize=rng.choice((True, False)), modality=modality)
    if rng.random() < 0.7:
        shapes = (30, D_SOURCE), (30, D_TARGET), (40, D_TARGET)
        bridge.fit_thresholds(*(draw.standard_normal(shape) for shape in shapes))
    return bridge.save(folder / "map")


def read_bridge(path: Path) -> None:
    found = congruence.load(path)
    bridge = congruence.Bridge.load(path)
    assert isinstance(found, (congruence.Bridge, congruence.maps.Map))  # a damaged kind may name that of its map
    repr(bridge), json.dumps(bridge.describe())
    rows = np.random.default_rng(0).standard_normal((3, bridge.map.n_features_in_))
    with refusing():
        out = bridge.transform(rows)
        assert out.shape == (3, bridge.map.d_out)
        assert np.isfinite(out).all(), "a bridge gave numbers that are not finite"
        if bridge.normalize is True:
            np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1, atol=1e-5)
    with refusing():
        at = bridge.translate(0.0)
        assert np.isfinite([at.value, at.fpr, *at.fpr_interval]).all()
        assert 0 <= at.fpr <= 1
    save_again(bridge, path)


def write_frame(rng: random.Random, folder: Path) -> Path:
    draw = np.random.default_rng(0)
    models = {"a": draw.standard_normal((20, D_SOURCE)), "b": draw.standard_normal((20, D_TARGET))}
    return congruence.CanonicalFrame().fit({name: {"text": rows} for name, rows in models.items()}).save(folder / "map")


def read_frame(path: Path) -> None:
    frame = congruence.CanonicalFrame.load(path)
    repr(frame), frame.describe()
    names = list(frame.models_)
    with refusing():
        mapping = frame.map(names[0], names[1])
        assert np.isfinite(mapping.transform(np.ones((2, mapping.n_features_in_)))).all(), "numbers that are not finite"
    with refusing():
        frame.add("new", np.random.default_rng(1).standard_normal((20, 4)))
    save_again(frame, path, congruence.CanonicalFrame.load)


def damage_map(rng: random.Random, path: Path) -> None:
    """Change the configuration and the arrays of a map, and update the checksums."""
    config = json.loads((path / "config.json").read_text())
    arrays = safetensors.numpy.load((path / "model.safetensors").read_bytes())
    if rng.random() < 0.6:
        mutable = {key: config[key] for key in config if not key.endswith("sha256")}
        config = {**mutate_data(rng, mutable), **{k: v for k, v in config.items() if k.endswith("sha256")}}
    if rng.random() < 0.6 and arrays:
        name = rng.choice(list(arrays))
        shape = rng.choice((arrays[name].shape, arrays[name].shape[::-1], arrays[name].shape[:-1], (0,), (2, 2, 2)))
        made = numbers(rng, shape, rng.choice((arrays[name].dtype.str, arrays[name].dtype.str, "f2", "i4", "?")))
        what = rng.random()
        if what < 0.4 and arrays[name].size:
            arrays[name] = arrays[name].copy()
            with np.errstate(all="ignore"):
                odd = (0, 1e38, -1e300, np.nan, np.inf) if arrays[name].dtype.kind == "f" else (0, 1, 100)
                arrays[name].flat[rng.randrange(arrays[name].size)] = rng.choice(odd)
        elif what < 0.7:
            arrays[name] = made
        elif what < 0.8:
            with np.errstate(all="ignore"):
                arrays[name] = arrays[name] * rng.choice((0.0, -1.0, 1e20, 1e160, 1e300))
        elif what < 0.85:
            del arrays[name]
        else:
            arrays[rng.choice(("x", name + ".x", "rotation"))] = arrays.pop(name)
    raw = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    (path / "model.safetensors").write_bytes(raw)
    config["weights_sha256"] = hashlib.sha256(raw).hexdigest()
    try:
        config["numbers_sha256"] = numbers_digest(config)
        text = json.dumps(config)
    except (TypeError, ValueError, AttributeError):  # no mapping any more
        text = json.dumps({"format": "congruence-map"})
    (path / "config.json").write_text(text)


def write_journal(rng: random.Random, folder: Path) -> Path:
    journal = Journal("photos/items.lance", "ab" * 32, 8, "float32", True, False, rng.choice((None, "image")))
    journal.cursor = rng.choice((7, "item-7", [3, 12]))
    journal.ranges, journal.old_ranges = rng.choice((None, [-0.5, 0.5])), rng.choice((None, [[-1.0] * 4, [1.0] * 4]))
    journal.sample, journal.rows = [1, 2, 3], 3
    journal.passes = [{"rows": 3, "written": 0, "removed": 0, "old": "0" * 32}]
    journal.log("begun: 3 rows")
    (folder / "journal").mkdir()
    journal.write(folder / "journal")
    return folder / "journal"


def read_journal(path: Path) -> None:
    journal = Journal.read(path)
    if journal is not None:
        assert journal.state in SEEN
        assert isinstance(journal.dim, int)
        assert journal.dim > 0
        with refusing():
            journal.require_state("verified", to="switch")
        journal.log("read")
        with refusing():  # what holds numbers that JSON has no form for
            journal.write(path)


def damage_journal(rng: random.Random, path: Path) -> None:
    """Change the journal, and update its digest."""
    _damage_record(rng, path / "journal.json")


def _damage_record(rng: random.Random, file: Path) -> None:
    changed = mutate_data(rng, from_record(file.read_bytes()))
    with suppress(TypeError, ValueError):  # values that JSON cannot represent
        file.write_bytes(to_record(changed) if isinstance(changed, dict) else json.dumps(changed).encode())


def _fragments_journal(place: Path):
    fragments = tuple(Fragment(f"part-{k}", "", 10, 100) for k in range(5))
    return FragmentJournal(Location.of(place), {"map": "ab"}, fragments).open()


def write_fragments_journal(rng: random.Random, folder: Path) -> Path:
    journal = _fragments_journal(folder / "fragments")
    for k in range(rng.choice((1, 3))):
        journal.add(Receipt(f"part-{k}", 10, size=99, path=f"part-{k}.parquet"))
        journal.flush()
    return folder / "fragments"


def read_fragments_journal(path: Path) -> None:
    journal = _fragments_journal(path)
    assert len(journal.pending()) + len(journal.finished) == 5
    assert journal.total("rows") >= 0
    journal.keep({"part-0.parquet": 99})


def damage_fragments_journal(rng: random.Random, path: Path) -> None:
    """Change a segment of the journal, and update its digest."""
    _damage_record(rng, min(path.glob("done-000001-*.json")))


def write_data_set(rng: random.Random, folder: Path) -> Path:
    (folder / "data").mkdir()
    write_vectors(".parquet", rng, folder / "data")
    return folder / "data"


def read_data_set(path: Path) -> None:
    for key in ("", ":vector", ":v"):
        with refusing():
            data = open_dataset(f"{path}{key}", fragment_bytes=64)
            for fragment in data.fragments:
                for _ in data.open(fragment).scan_table(batch=16):
                    pass


def write_item_set(rng: random.Random, folder: Path) -> Path:
    """Write texts in two files of two row groups each."""
    folder = folder / "items"
    folder.mkdir()
    for k in range(2):
        rows = {"id": list(range(4 * k, 4 * k + 4)), "text": [f"text {rng.random()}" for _ in range(4)]}
        pq.write_table(pa.table(rows), folder / f"part-{k}.parquet", row_group_size=2)
    return folder


def read_item_set(path: Path) -> None:
    for modality in ("text", "image"):
        with refusing():
            data = open_itemset(str(path), column="text", modality=modality, fragment_bytes=64)
            for fragment in data.fragments:
                ids = data.ids(fragment, 0)
                for row, piece in data.open(fragment).pieces(data.schema.names, 0, 16):
                    items = data.items(piece, ids[row : row + len(piece)], fragment)
                    for k in range(len(items)):
                        with refusing():
                            items.fetch(k)


def write_beside(rng: random.Random, folder: Path) -> Path:
    """Begin a migration of a ``.npy`` file: it, and the hidden folder beside it."""
    folder = folder / "migrated"
    folder.mkdir()
    np.save(folder / "v.npy", np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32))
    with open_database(folder / "v.npy") as database:
        database.prepare(3, rng.choice(("float32", "float16")), {"map": "ab"})
        for block in database.scan():
            database.write(block.ids, block.vectors[:, :3])
        database.flush()
        if rng.random() < 0.7:
            database.build_index()
        if rng.random() < 0.3:
            database.switch()
    return folder


def read_beside(path: Path) -> None:
    file = path / "v.npy"
    before = file.read_bytes() if file.is_file() else None
    with open_database(file) as database:
        pairs = partial(database.revise, batch=9, change=lambda block: None)
        scans = lambda: list(database.scan("new")), lambda: list(map(pairs, database.ranges(9)))
        for step in (database.info, database.stage, database.note, *scans):
            with refusing():
                step()
        assert (file.read_bytes() if file.is_file() else None) == before


def write_plan(rng: random.Random, folder: Path) -> Path:
    """Write a progressive migration's folder, as it lies in that of a journal."""
    mapping = _fitted("orthogonal")
    draw = np.random.default_rng(3)
    rows = Embeddings(draw.normal(size=(30, D_SOURCE)), ids=[f"item-{k}" for k in range(30)])
    texts = draw.normal(size=(9, D_SOURCE)), draw.normal(size=(9, D_TARGET))
    given = {"texts": texts[0], "new_texts": texts[1]} if rng.random() < 0.5 else {}
    plan = Progressive(mapping, rows, **given)
    for ids in plan.batches(6, budget=12):
        plan.update(ids, draw.normal(size=(len(ids), D_TARGET)))
    save_plan(plan, folder / "progressive", np.zeros(12, np.uint64), None, None, texts if given else None)
    return folder / "progressive"


def read_plan(path: Path) -> None:
    found = read_native(path.parent, _fitted("orthogonal"))
    for native, _ in found.values():
        ids = pa.array(["item-3", "item-4", "another"])
        rows, out = np.ones((3, D_SOURCE), np.float32), np.zeros((3, D_TARGET), np.float32)
        native.replace(ids, rows, rows, None, out)
        assert out.shape == (3, D_TARGET)


def _saved_plan() -> tuple[Any, ...]:
    draw = np.random.default_rng(3)
    return _fitted("orthogonal"), draw.normal(size=(30, D_SOURCE)), draw.normal(size=(30, D_TARGET))


def write_saved_plan(rng: random.Random, folder: Path) -> Path:
    """Write a plan's folder as ``save`` does, in two steps."""
    mapping, old, new = _saved_plan()
    plan = Progressive(mapping, old)
    for ids in plan.batches(8, budget=16):
        plan.update(ids, new[ids])
        plan.save(folder / "plan", force=True)
    return folder / "plan"


def read_saved_plan(path: Path) -> None:
    mapping, old, new = _saved_plan()
    plan = Progressive.load(path, mapping, old)
    assert np.isfinite(plan.store()).all()
    ids = next(plan.batches(4))
    plan.update(ids, new[ids])


def write_certificate(rng: random.Random, folder: Path) -> Path:
    verdict = {"action": "map", "headline": "map the stored vectors", "reason": "it keeps .97", "more": None}
    result = {"verdict": verdict, "facts": {"source": "a", "target": "b", "data": "photos"}, "task": "retrieval@1"}
    (folder / "certificate.json").write_text(json.dumps(result))
    return folder / "certificate.json"


def read_certificate(path: Path) -> None:
    from congruence.cli.migrate._step import read_certificate

    found = read_verdict(read_certificate(path))
    assert all(isinstance(one, str) for one in found.values())


def _training() -> tuple[Any, Any, Any]:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    module(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return torch, module, optimizer


def _checkpoint(path: Path) -> Any:
    from congruence.train.checkpoint import Checkpoint

    return Checkpoint(path, {"steps": 9}, {"method": "x", "parameters": {"n_components": 4}})


def write_checkpoint(rng: random.Random, folder: Path) -> Path:
    _, module, optimizer = _training()
    history = History({"step": [1.0, 2.0], "loss": [0.5, 0.4]}, [(1, 0.5)], 1, 2)
    _checkpoint(folder / "000").save(module, optimizer, history, module.state_dict())
    return folder / "000"


def read_checkpoint(path: Path) -> None:
    torch, module, optimizer = _training()
    saved = _checkpoint(path)
    if saved.exists:
        history, best = saved.load(module, optimizer)
        assert isinstance(history.steps, int)
        assert not isinstance(history.steps, bool)
        assert all(tensor.shape == dict(module.named_parameters())[name].shape for name, tensor in best.items())
        assert all(torch.isfinite(tensor).all() for tensor in module.state_dict().values())
        history.to_dict(), history.best_score
        module(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def damage_checkpoint(rng: random.Random, path: Path) -> None:
    state = json.loads((path / "checkpoint.json").read_text())
    raw = (path / "checkpoint.safetensors").read_bytes()
    if rng.random() < 0.5:
        arrays = safetensors.numpy.load(raw)
        name = rng.choice(list(arrays))
        arrays[name] = numbers(rng, rng.choice((arrays[name].shape, (2,), (0,))), rng.choice(("f4", "f4", "f8", "i4")))
        if rng.random() < 0.2:
            arrays["x"] = arrays.pop(name)
        raw = safetensors.numpy.save(arrays)
        (path / "checkpoint.safetensors").write_bytes(raw)
    if rng.random() < 0.7:
        state = {**mutate_data(rng, state), "sha256": ""}
    state["sha256"] = hashlib.sha256(raw).hexdigest()
    (path / "checkpoint.json").write_text(json.dumps(state))


class Letters(Encoder):
    """The first letters of a text as numbers: what the right vector is can be told."""

    def __init__(self, stop: int | None = None) -> None:
        self.space = Space("letters", "1", "text", 3, False)
        self.fingerprint, self.n_layers, self.stop, self.seen = "f" * 64, None, stop, 0

    def _embed(self, items: Any) -> np.ndarray:
        if self.stop is not None and self.seen >= self.stop:
            raise KeyboardInterrupt
        self.seen += len(items)
        return np.array([[ord(letter) for letter in f"{item}   "[:3]] for item in items], dtype=float)


WORDS = [f"{chr(97 + k)}{k} word" for k in range(12)]


def _write_words(place: Path) -> Path:
    place.mkdir(exist_ok=True)
    (place / "words.txt").write_text("\n".join(WORDS))
    return place / "words.txt"


def _check_words(output: Path) -> None:
    found = congruence.read_embeddings(output)
    np.testing.assert_array_equal(found.vectors, Letters()._embed(WORDS), "a wrong vector was taken over")


def write_parts(rng: random.Random, folder: Path) -> Path:
    place = folder / "run"
    words = _write_words(place)
    with suppress(KeyboardInterrupt):
        embed(Letters(stop=8), open_items(words), place / "out", batch_size=2, shard_size=4)
    words.unlink()
    return place


def read_parts(path: Path) -> None:
    words = _write_words(path.parent / f"words-{path.name}")
    embed(Letters(), open_items(words), path / "out", batch_size=2, shard_size=4)
    _check_words(path / "out")


def write_cache(rng: random.Random, folder: Path) -> Path:
    place = folder / "cached"
    words = _write_words(place)
    embed(Letters(), open_items(words), place / "out.npy", batch_size=5, cache=place / "cache")
    shutil.move(place / "cache", folder / "cache")
    return folder / "cache"


def read_cache(path: Path) -> None:
    place = path.parent / f"with-{path.name}"
    words = _write_words(place)
    with suppress(StorageError, CorruptFileError):
        embed(Letters(), open_items(words), place / "out.npy", cache=path, force=True)
        _check_words(place / "out.npy")


RECIPE = """
method: sotalign
pairs: [images.npz, texts.npz]
unpaired_source: [more_images.npz]
unpaired_target: more_texts.npz
validation: 0.1
test: 20
parameters: {n_components: 16, divergence_weight: 0.5}
grid:
  divergence_weight: [0.1, 1.0]
seed: 3
groups: identical
"""


def write_recipe(rng: random.Random, folder: Path) -> Path:
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"


def read_recipe_(path: Path) -> None:
    found = read_recipe(path)
    assert json.dumps(found.to_dict(), allow_nan=False)
    make_recipe(found.to_dict())


def write_marker(rng: random.Random, folder: Path) -> Path:
    (folder / "marker.json").write_text(json.dumps({"format": "congruence-vectors", "format_version": 1, "parts": []}))
    return folder / "marker.json"


def read_marker(path: Path) -> None:
    for marks in ("congruence-vectors", lambda content: "parts" in content):
        assert has_marker(path, marks) in (True, False)


OWN: dict[str, Target] = {
    **{f"map {kind}": Target(partial(write_map, kind), read_map) for kind in MAPS},
    **{f"map {kind}, right checksums": Target(partial(write_map, kind), read_map, damage_map) for kind in MAPS},
    "bridge": Target(write_bridge, read_bridge),
    "bridge, right checksums": Target(write_bridge, read_bridge, damage_map),
    "frame": Target(write_frame, read_frame),
    "frame, right checksums": Target(write_frame, read_frame, damage_map),
    "checkpoint": Target(write_checkpoint, read_checkpoint),
    "checkpoint, right checksums": Target(write_checkpoint, read_checkpoint, damage_checkpoint),
    "parts of embed": Target(write_parts, read_parts),
    "cache of embed": Target(write_cache, read_cache),
    "recipe": Target(write_recipe, read_recipe_),
    "marker": Target(write_marker, read_marker),
    "journal": Target(write_journal, read_journal),
    "journal, right digest": Target(write_journal, read_journal, damage_journal),
    "fragments journal": Target(write_fragments_journal, read_fragments_journal),
    "fragments journal, right digest": Target(
        write_fragments_journal, read_fragments_journal, damage_fragments_journal
    ),
    "data set": Target(write_data_set, read_data_set),
    "item set": Target(write_item_set, read_item_set),
    "file beside": Target(write_beside, read_beside),
    "progressive": Target(write_plan, read_plan),
    "plan": Target(write_saved_plan, read_saved_plan),
    "certificate": Target(write_certificate, read_certificate),
}

warnings.simplefilter("ignore")
