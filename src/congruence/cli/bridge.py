"""``congruence bridge``: keep an index as it is, and search it with another model's queries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from congruence._utils.atomic import check_output
from congruence._utils.optional import require
from congruence.cli._input import (
    column,
    in_python,
    inverse_of,
    load_map,
    open_asking,
    read,
    read_given,
    refuse_options,
    two_sides,
    unit_rows,
)
from congruence.cli._options import MODEL, Force, Ids, Json, Normalize, Seed, argument, option, settable
from congruence.cli._output import NEW_OLD, by_side, check_out, print_json, say, say_error
from congruence.cli._scores import print_thresholds
from congruence.cli._sides import check_sides, placed, refuse_same
from congruence.cli.search import list_hits, print_hits
from congruence.errors import CongruenceError, IdError, ParameterError

if TYPE_CHECKING:
    import numpy as np

    from congruence import Embeddings, LazySearch

#: Commands in the order of the help, by the module that has them.
ACTIONS = dict.fromkeys(("search", "evaluate", "serve", "export"), "bridge")

#: Formats of ``export``, and the options that apply to each of them only.
FORMATS = {"faiss": ("index", "side"), "onnx": ("side", "role"), "sentence-transformers": ("model", "side", "role")}

#: Spaces of the served vectors, as Python names them; what a server accepts.
SPACES = {"index": "target", "encoder": "source"}
LIMITS = {"max_batch": 256, "max_body": 2 * 2**20, "max_chars": 32768, "max_waiting": 256, "timeout": 30.0}


@dataclass(frozen=True)
class ByUse:
    """How an index is re-embedded by use."""

    encode: Annotated[
        str | None,
        typer.Option(
            help="Re-embed the rows that queries ask for, by a command with {ids} and {out}, a file of vectors, or an "
            "encoder with --set items. MAP is then that of the rows, or the journal of a switched database."
        ),
    ] = None
    budget: Annotated[int, typer.Option(help="For --encode: most rows encoded for a query.")] = 50

    @contextmanager
    def open(self, map_path: str, index: str, settings: dict[str, Any], ids: str | None = None) -> Iterator[LazySearch]:
        """Open an index that is re-embedded by use: a switched database by its journal, or a file and its map."""
        from congruence import LazySearch, Migration
        from congruence.cli.migrate._step import FINDING, read_kept
        from congruence.cli.migrate.later import open_encoder

        modality, items = (settings.pop(name, None) for name in ("among", "items"))
        with ExitStack() as stack:
            if os.path.exists(os.path.join(map_path, "journal.json")):
                refuse_options({"--set journal": settings.get("journal")}, f"with the journal {map_path}")
                kept = read_kept(Path(map_path))
                found = stack.enter_context(closing(open_asking(index, **{name: kept.get(name) for name in FINDING})))
                rows: Any = Migration(found, journal=Path(map_path))
                mapping = rows.mapper.map
            else:
                rows, mapping = read(index, ids), load_map(map_path)[0]
            encode = open_encoder(str(self.encode), items, modality, mapping, ids)
            yield stack.enter_context(LazySearch(rows, mapping, encode, self.budget, modality=modality, **settings))


#: Settings of ``--encode``: items of an encoder, most encodings a second and in all, modality of the searched rows, and
#: folder that keeps what was encoded of a file.
BY_USE = {"items": str, "rate": float, "limit": int, "among": str, "journal": str}


def command() -> None:
    """Keep an index as it is, and search it with a new model's queries.

    Example: congruence bridge search back --queries library/new-texts.parquet --index library/old-photos.parquet
    """


def search(
    map_path: str = argument(..., "Folder of a bridge or map from the new model to the old one.", metavar="MAP"),
    queries: str = option(..., "Queries in the new model."),
    index: str = option(..., "Vectors of the index, made with the old model."),
    k: int = option(10, "Number of hits per query.", "--k", "-k"),
    ids: str | None = option(None, "Key, column or file of the ids in all files; none for row numbers."),
    modality: str | None = option(None, "Modality of the queries: image, text, audio, video, other."),
    by_use: ByUse = ByUse(),
    settings: dict[str, Any] = settable(**BY_USE, timeout=float, qrels=str),
    out: str | None = option(None, "Write all hits to a .csv or .parquet file.", "--out", "-o"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Search an old model's index with a new model's queries.

    Example: congruence bridge search back --queries library/new-texts.parquet --index library/old-photos.parquet

    With --encode the rows that the queries ask for are re-embedded, and ranked by the new model's own scores. In a
    switched database they stay so; of a file they are kept by --set journal=FOLDER. qrels are relevance judgments in
    TREC format, by which the lists are scored before and after.
    """
    import numpy as np

    from congruence import Bridge

    refuse_same(index, queries)
    check_out(out, queries, index, force=force, kind="table")
    new_queries, notes = read(queries, ids, modality=modality), []
    report: dict[str, Any] = {"map": map_path, "output": out, "k": k, "n_queries": len(new_queries)}
    if by_use.encode is None:
        refuse_options({f"--set {name}": True for name in settings}, "without --encode")
        rows = read(index, ids)
        found, n = Bridge.load(map_path).search(new_queries, rows, k), len(rows)
        hits = list_hits(new_queries.ids, found.scores, found.ids, np.zeros(found.ids.shape, bool))
    else:
        qrels = settings.pop("qrels", None)
        grades = None if qrels is None else _read_judged(qrels, new_queries)
        with by_use.open(map_path, index, settings, ids) as lazy:
            limit, lazy.limit = lazy.limit, 0
            known = None if grades is None else lazy.search(new_queries, k)
            lazy.limit = limit
            now = lazy.search(new_queries, k)
            n, share, error = lazy.rows.n, lazy.reembedded_share_, lazy.error_
        if isinstance(error, CongruenceError) and not share:
            raise error
        hits = list_hits(new_queries.ids, now.scores, now.ids, now.reembedded, "mapped")
        hits = [hit for hit in hits if hit["score"] > -np.inf]
        report |= {**lazy.counts_, "reembedded_share": share, "error": error and str(error)}
        report["agreement"] = lazy.agreement_
        notes = [f"{lazy.counts_['encoded']:,} rows were encoded; {share:.1%} of all are re-embedded."]
        if trouble := lazy.trouble():
            notes.append(trouble)
        if known is not None and grades is not None:
            report["scores"] = before, after = _judged(grades, new_queries, known.ids, now.ids)
            words = ", ".join(f"{name} {before[name]:.3f} → {value:.3f}" for name, value in after.items())
            notes.append(f"By {qrels}, before → after these encodings: {words}")
    title = f"{len(new_queries):,} queries, {n:,} rows"
    print_hits(title, hits, {**report, "n_rows": n}, notes, force=force, as_json=as_json)


def _read_judged(qrels: str, queries: Embeddings) -> dict[str, dict[str, int]]:
    """Read relevance judgments before anything is encoded; refuse those of other queries."""
    from congruence._utils.ids import id_texts
    from congruence.evaluation.judgments import read_qrels

    grades = read_qrels(qrels)
    if not queries.has_ids or grades.keys().isdisjoint(id_texts(queries.ids).tolist()):
        raise IdError(f"None of {len(queries):,} queries is judged in {qrels}.", "Check that the ids agree.")
    return grades


def _judged(grades: dict[str, dict[str, int]], queries: Embeddings, *lists: np.ndarray) -> list[dict[str, float]]:
    """Return the mean scores of lists of ids (m, k) by relevance judgments."""
    import numpy as np

    from congruence._utils.ids import id_rows, id_texts
    from congruence.embeddings import Embeddings
    from congruence.evaluation.judgments import judge, ranked_scores

    found = [id_texts(one.ravel().tolist()) for one in lists]
    names = id_texts(sorted({*np.concatenate(found).tolist()}.union(*grades.values())))
    judged = judge(queries, Embeddings(np.ones((len(names), 1)), ids=names), qrels=grades)
    asked = np.flatnonzero(judged.judged)
    rows = (id_rows(names, one).reshape(len(queries), -1)[asked] for one in found)
    scores = (ranked_scores(one, judged.take(asked)) for one in rows)
    return [{name: float(values.mean()) for name, values in one.items()} for one in scores]


def evaluate(
    map_path: str = argument(..., "Saved map from the new model to the old one, or a bridge.", metavar="MAP"),
    queries: str = option(..., "Queries in the new model."),
    index: str = option(..., "Vectors of the index, made with the old model."),
    old_queries: str | None = option(None, "The same queries in the old model."),
    new_index: str | None = option(None, "The index's items in the new model, for two-stage search and comparison."),
    qrels: str | None = option(None, "Relevance judgments in TREC format: query 0 document grade."),
    labels: str | None = option(None, "Instead of --qrels, QUERIES,INDEX: file:column with their classes."),
    ids: Ids = None,
    modality: str | None = option(None, "Modality of the queries: image, text, audio, video, other."),
    at: list[int] | None = option(None, "Cutoff k for recall; repeatable. 1 and 10 by default."),
    threshold: list[float] | None = option(None, "A threshold of the old model to translate; repeatable."),
    settings: dict[str, Any] = settable(mode="any", candidates=100, hubness=str, bank=str, normalize="auto"),
    seed: Seed = 0,
    out: str | None = option(None, "Folder to save the bridge to, with thresholds if possible.", "--out", "-o"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Search an unchanged index with a new model's queries: recall and nDCG next to the old model's, and translated
    thresholds.

    Example: congruence bridge evaluate back --queries library/new-texts.parquet --index library/old-photos.parquet
    --labels library/new-texts.parquet:class,library/old-photos.parquet:class
    """
    from congruence import Bridge
    from congruence.evaluation.judgments import read_qrels

    if threshold:
        if old_queries is None:
            raise ParameterError("Got --threshold without --old-queries.", "Pass the same queries in the old model.")
        refuse_options({"--set hubness": settings.get("hubness")}, "with --threshold, which is for plain cosines")
    for old, new in ((index, queries), (old_queries, queries), (index, new_index)):  # before anything is read
        refuse_same(old, new)
    classes = two_sides(labels, "--labels", "QUERIES,INDEX")
    check_out(out, force=force, kind="map")
    bridge = Bridge.load(map_path)
    normalize, bank = settings.pop("normalize", None), settings.pop("bank", None)
    if normalize is not None or (modality is not None and modality != bridge.modality):
        unit = bridge.normalize if normalize is None else unit_rows(normalize)
        bridge = Bridge(bridge.map, normalize=unit, modality=modality or bridge.modality)
    new_queries, rows = read(queries, ids, modality=modality), read(index, ids)
    before = read_given(old_queries, ids, modality=modality)
    check_sides(placed((index, queries), (rows, new_queries)), placed((old_queries, queries), (before, new_queries)))
    judgments: dict[str, Any] = {"qrels": None if qrels is None else read_qrels(qrels)}
    if classes is not None:
        judgments["labels"] = tuple(column(spec, "--labels") for spec in classes)
    scores = bridge.evaluate(
        new_queries,
        rows,
        queries_old=before,
        index_new=read_given(new_index, ids),
        at=tuple(at or (1, 10)),
        bank=read_given(bank, "none", modality=modality),
        **judgments,
        **settings,
    )
    translated = []
    if before is not None and (threshold or out is not None):
        bridge.fit_thresholds(new_queries, before, rows, **judgments, random_state=seed)
        translated = [bridge.translate(value) for value in threshold or []]
    if out is not None:
        bridge.save(out, force=force)
    if as_json:
        thresholds = [row.to_dict() for row in translated]
        print_json({"map": map_path, "output": out, **by_side(scores.to_dict(), NEW_OLD), "thresholds": thresholds})
        return
    say(*str(scores).splitlines())
    print_thresholds(translated)
    say(*scores.notes)
    if out is not None:
        say(f"saved: {out}")
        if bridge.thresholds is not None and scores.hubness:
            say("Its thresholds are for plain cosines, without the correction.")


def serve(
    map_path: str = argument(..., "Folder of a saved bridge or map.", metavar="MAP"),
    *,
    encoder: str = option(..., "Encoder of texts, as for embed: sentence-transformers:…, hf:…, open_clip:… or onnx:…."),
    index: str | None = option(None, "With --encode: also search this file or switched database, and re-embed it."),
    by_use: ByUse = ByUse(),
    modality: str = option("text", "Modality whose means the map uses for texts."),
    space: str = option("index", "Space of the served vectors: index, or encoder (as the encoder gives them)."),
    host: str = option("127.0.0.1", "Address to listen on. Addresses other than loopback require a key."),
    port: int = option(8000, "Port to listen on; 0 for any free port."),
    api_key_env: str | None = option(None, "Environment variable with the key that clients must send."),
    api_key_file: str | None = option(None, "File with the key that clients must send."),
    model_name: list[str] | None = option(
        None, "Model name that clients send; repeatable. By default the served space's."
    ),
    device: str = option("auto", "Device of the encoder: auto, cuda, cuda:1, mps or cpu."),
    settings: dict[str, Any] = settable(**LIMITS, **BY_USE, batch_size=32, check=True, **MODEL),
    as_json: Json = False,
) -> None:
    """Serve a new model's vectors in the space of an old index, as OpenAI's embeddings API, until Ctrl-C or SIGTERM.

    Example: congruence bridge serve back --encoder sentence-transformers:all-MiniLM-L6-v2

    With --index and --encode the vectors are the new model's own, and POST /v1/search answers at once by what is known
    of the index, while the rows that were asked for are encoded in the background.
    """
    from congruence._utils.validation import check_choice
    from congruence.encoders import load_encoder
    from congruence.integrations.process import check_host, listen, read_key, serve
    from congruence.integrations.server import LOOPBACK, Limits, create_app
    from congruence.upgrade.bridge import Bridge

    api_key = read_key(api_key_env, api_key_file)
    check_host(host, api_key)
    for module in ("fastapi", "uvicorn", "prometheus_client"):  # checked before a model is loaded
        require(module, extra="serve")
    if (index is None) != (by_use.encode is None):
        raise ParameterError("Got one of --index and --encode; expected both, or none.", "Pass the other one too.")
    bridge = Bridge.load(map_path) if index is None else None
    with listen(host, port) as socket, ExitStack() as stack:
        limits = Limits(**{name: settings.pop(name) for name in LIMITS if name in settings})
        loading, lazily = ({name: settings.pop(name) for name in own if name in settings} for own in (MODEL, BY_USE))
        model, lazy = load_encoder(encoder, "text", device=device, **loading), None
        if index is not None:
            lazy = stack.enter_context(by_use.open(map_path, index, lazily))
            lazy.mode = "background"
            if not lazy.check():
                say_error(f"The encoder of rows does not answer: {lazy.error_}")
        app = create_app(
            bridge,
            model,
            modality=modality,
            space=SPACES[check_choice(space, tuple(SPACES), "space")],
            names=model_name or None,
            api_key=api_key,
            allowed_hosts=LOOPBACK if api_key is None else None,
            limits=limits,
            lazy=lazy,
            **settings,
        )
        service = app.state.service
        url_host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        url = f"http://{url_host}:{socket.getsockname()[1]}/v1"

        def ready() -> None:
            if as_json:
                facts = {"url": url, "models": list(service.names), "dim": service.vectors.dim}
                print_json({**facts, "key": api_key is not None, "space": service.vectors.space.to_dict()})
            else:
                say(f"serving {service.names[0]} ({service.vectors.dim}-d) at {url}; Ctrl-C stops it.")

        serve(app, socket, timeout=limits.timeout, on_ready=ready)


def export(
    map_path: str = argument(..., "Folder of a saved map or bridge.", metavar="MAP"),
    out: str = option(..., "File, or folder for sentence-transformers.", "--out", "-o"),
    to: str = option("faiss", "Format: faiss, onnx or sentence-transformers."),
    index: str | None = option(
        None, "FAISS: an index to put the map in front of, or vectors to search by a joint-space map."
    ),
    model: str | None = option(None, "sentence-transformers: model to append the map to."),
    modality: str | None = option(None, "Modality whose means are used: image, text, etc."),
    side: str | None = option(None, "first or second: which head of a joint-space map; first by default."),
    role: str | None = option(None, "query, store or plain: what mapped vectors are for; queries by default."),
    inverse: bool = option(False, "Map vectors of the new model back to the old one.", "--inverse"),
    normalize: Normalize = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a map for another library: FAISS, ONNX or sentence-transformers (each an extra).

    Example: congruence bridge export map --modality image -o map.index

    FAISS: a new or existing index with the map and normalization in front of it, or a LinearTransform alone. ONNX: a
    graph that maps vectors. sentence-transformers: a model whose encode method returns mapped vectors. PyTorch has no
    pickle-free format for modules: call congruence.load(MAP).to_torch() in Python instead.
    """
    import congruence
    from congruence._utils.validation import check_choice
    from congruence.integrations import export_faiss, export_onnx
    from congruence.integrations.model_folder import check_model_output

    if to in ("torch", "pytorch"):
        raise ParameterError(
            "PyTorch has no file format for modules without pickle.",
            "Call congruence.load(MAP).to_torch() in Python; the map's own folder is its file.",
        )
    check_choice(to, tuple(FORMATS), "to")
    unit = unit_rows(normalize)
    for name, value in (("index", index), ("model", model), ("side", side), ("role", role)):
        if value is not None and name not in FORMATS[to]:
            formats = " or ".join(key for key, names in FORMATS.items() if name in names)
            raise ParameterError(
                f"Got --{name} with --to {to}; expected it for {formats} only.", f"Leave out --{name}."
            )
    if to == "sentence-transformers":
        if model is None:
            raise ParameterError("Got no --model.", "Pass the name or folder of the model whose vectors are mapped.")
        check_model_output(out, force=force)
    else:
        check_output(out, force=force)
    mapping = congruence.load(map_path)
    if inverse:
        mapping = inverse_of(mapping)
    head = in_python(side) or "source"
    options: dict[str, Any] = {"modality": modality, "normalize": unit, "side": head, "force": force}
    if to == "faiss":
        export_faiss(mapping, out, index=index, **options)
    elif to == "onnx":
        export_onnx(mapping, out, role=role or "query", **options)
    else:
        from congruence.integrations.sentence_transformers import export_sentence_transformers

        export_sentence_transformers(mapping, model or "", out, role=role or "query", **options)
    inner, default = (mapping.map, mapping.modality) if isinstance(mapping, congruence.Bridge) else (mapping, None)
    asked = inner.target_space_ if head == "target" else inner.source_space_
    mapped = modality or default or ("text" if to == "sentence-transformers" else asked.modality)
    widths = {"d_in": inner.d_target if head == "target" else inner.n_features_in_, "d_out": inner.d_out}
    if as_json:
        print_json({"output": out, "format": to, **widths, "modality": mapped})
    else:
        say(f"written to {out}" + (f", for {mapped} vectors" if mapped else ""))
