"""``congruence check``: recommend how to handle a change of models, and keep the map that was measured."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from congruence._utils.atomic import atomic_path, check_output
from congruence.cli._engines import SAMPLE, Engine, EngineOptions, read_sides
from congruence.cli._input import (
    column,
    ids_of,
    open_asking,
    read,
    read_given,
    read_labels,
    refuse_options,
    split_named,
    two_sides,
)
from congruence.cli._options import Force, Ids, Json, Links, Seed, argument, option, settable
from congruence.cli._output import by_side, number, print_json, print_table, progress, say
from congruence.cli._sides import check_sides, exchanged, find_ids, placed, read_anchors, refuse_same
from congruence.errors import (
    CorruptFileError,
    DirectionError,
    FileError,
    IdError,
    InputError,
    ModalityError,
    ParameterError,
)

if TYPE_CHECKING:
    import numpy as np

    from congruence.embeddings import Embeddings, Space
    from congruence.maps import Map
    from congruence.upgrade.certify import Certificate, Estimate, Verdict
    from congruence.upgrade.sides import Side

    Sides: TypeAlias = tuple[dict[str, Embeddings], dict[str, Embeddings]]

#: What the folder contains.
MAP, BACK, FACTS, PAGE = "map", "back", "certificate.json", "certificate.html"

#: When a map is good enough; parameters of ``certify``; what the certificate calls the models.
CRITERIA = {"retention": 0.95, "worth": 0.01, "tie": 0.03, "must_move": False}
CERTIFY = {
    **{"fitted": str, "single_modality": False, "n_neighbors": 10, "hubness": str, "seen": False},
    **{"theory": "brief", "rows": int, "encode_rate": float, "price": float, "log": 1000},
}
NAMES = {"old_model": str, "new_model": str}


def check(
    old: str = argument(..., "Items in the old model: a file, or file:key. Or a bundle or sample: photos, emoji."),
    new: str | None = argument(None, "The same items in the new model."),
    *,
    store: str | None = option(None, "The database to migrate, for its size and for the next command."),
    queries: str | None = option(None, "Texts of any items in the new model, as queries."),
    old_queries: str | None = option(None, "The same texts in the old model, to include keeping it."),
    also: list[str] | None = option(
        None, "MODALITY=OLD,NEW: rows of another modality, in one or both models; repeatable."
    ),
    test: list[str] | None = option(
        None, "[MODALITY=]OLD,NEW: held-out items; by default the pairs take turns; repeatable."
    ),
    anchors: str | None = option(None, "Number of pairs to fit on, or a file of their ids; the others are held out."),
    labels: str | None = option(None, "file:column with the class of each item; after a comma, of each held-out one."),
    qrels: str | None = option(None, "Relevance judgments of --queries, in TREC format: query 0 item grade."),
    modality: str | None = option(None, "Modality of OLD and NEW, if the files do not say it: image, text, etc."),
    method: str = option("auto", "Map to check: auto (as congruence fit chooses), orthogonal or linear."),
    ids: Ids = None,
    links: Links = None,
    out: str = option("checked", "Folder for the map and the certificate.", "--out", "-o"),
    verbose: bool = option(False, "Print the whole certificate.", "--verbose", "-v"),
    exit_code: bool = option(False, "Exit with a code of the verdict: 0 to map, 10 to 15 otherwise.", "--exit-code"),
    engine: Engine = "local",
    settings: dict[str, Any] = settable(**CRITERIA, **CERTIFY, **NAMES, **SAMPLE),
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Measure whether mapping the vectors is enough, or the items have to be embedded again; keep the map.

    Example: congruence check photos --anchors 200 --set seen=true --store library/photos.lance
    """
    from congruence.evaluation.judgments import read_qrels
    from congruence.upgrade.certify import EXIT_CODES, STEPS, Criteria, certify, split_anchors

    refuse_same(old, new)
    runner = EngineOptions.of(engine, settings)
    criteria = Criteria(**{name: settings.pop(name) for name in CRITERIA if name in settings})
    models = tuple(settings.pop(name, None) for name in NAMES)
    others, held = _by_modality(also, "--also"), _by_modality(test, "--test")
    files = [old, *([new] if new else []), *(spec for sides in (*others.values(), *held.values()) for spec in sides)]
    by_fragments = runner.by_fragments(*files)
    if by_fragments or new is None:
        refuse_options({"--links": links}, "for a bundle or data sets that are read by fragments", "Pass two files.")
    check_output(out, force=force, directory=True, foreign=why_no_check)  # before the work starts
    given: list[tuple[Side, Side]] = []  # what was typed for each side that was read

    def read_files(first: str | None, second: str | None, kind: str | None, more: Mapping[str, Sequence[str]]) -> Sides:
        """Return the rows of both models by modality; the first two files are of the given one, if it is known."""
        if not by_fragments:
            found, typed = _read_sides((first, second), kind, more, ids, models, links if first == old else None)
        else:
            typed = {**({} if first is None else {kind or "other": (first, second)}), **more}
            of = {side: {m: (*two, None)[k] for m, two in typed.items()} for k, side in enumerate(("source", "target"))}
            names = dict(zip(of, models, strict=True))
            options = {"runner": runner, "random_state": seed, "needs_rows": {"--labels": labels}}
            found = tuple(read_sides(of, ids, names, **options).values())  # type: ignore[assignment,arg-type]
        given.extend(placed(words, [side.get(name) for side in found]) for name, words in typed.items())
        return found

    classes = None
    if new is None and not others:
        refuse_options({"--engine": by_fragments, "--test": held}, "for a bundle", "Pass OLD and NEW.")
        sides, classes = _from_bundle(old, models)
        words = f"the old side of {old}", f"the new side of {old}"
        given += [placed(words, [side.get(name) for side in sides]) for name in sides[0]]
    else:
        sides = read_files(old, new, modality, others)
    class_file, _, held_file = (labels or "").partition(",")
    classes = read_labels(class_file or None, "--labels", *sides[0].values()) or classes
    heldout = None
    if held:
        first, second = (*held.pop("", ()), None, None)[:2]
        heldout = read_files(first, second, next(iter(sides[0])), held)
        if classes is not None:
            classes |= read_labels(held_file or None, "--labels", *heldout[0].values()) or {}
    if anchors is not None:
        if heldout is not None:
            raise ParameterError("Got --anchors and --test; expected one of them.", "Leave out one.")
        sides, heldout = split_anchors(
            *sides, _count_or_ids(anchors), by_class=classes is not None, random_state=seed, name="--anchors "
        )
    asked = None
    if queries is None:
        refuse_options({"--old-queries": old_queries, "--qrels": qrels}, "without --queries", "Pass --queries too.")
    else:
        asked = (
            read_given(old_queries, model=models[0], modality="text"),
            read(queries, model=models[1], modality="text"),
        )
        given.append(placed((old_queries, queries), asked))
    of_store = None if store is None else _read_store(store)
    stored: list[tuple[Side, Side]] = []
    if of_store is not None:
        stored = [((f"--store {of_store.shown}", of_store.space), None)]
        settings = {"rows": of_store.rows, **settings}
    check_sides(*stored, *given)
    with progress("checking", STEPS, as_json) as callback:
        certificate = certify(
            *sides,
            method,
            queries=heldout,
            text_queries=asked,
            labels=classes,
            qrels=None if qrels is None else read_qrels(qrels),
            thresholds=criteria,
            random_state=seed,
            data=", ".join(files),
            callback=callback,
            **settings,
        )
    mapping = certificate.fit()
    if of_store is not None and of_store.is_new(mapping):
        like = f"the rows of --store {of_store.shown} look like those of {new or 'the new model'}"
        raise DirectionError(f"The old and the new model are swapped: {like}.", exchanged(old, new))
    written = _write(out, certificate, mapping, _pictures(old, certificate) if new is None else {}, force=force)
    following = _next(certificate, old, new, out, store)
    if as_json:
        print_json({**by_side(certificate.to_dict()), "output": out, "next": following})
    else:
        if verbose:
            print_certificate(certificate)
        else:
            _say_verdict(certificate)
        if new is not None and not all(side and side[1].model for side in given[0]):
            say(f"Old model: {old}; new model: {new} (as typed: the files do not name both models)")
        say(f"Written to {out}: {', '.join(written)}")
        if following is not None:
            say(f"Next: {following}")
    if exit_code and (code := EXIT_CODES[certificate.verdict.action]):
        raise typer.Exit(code)


#: Options by the arguments of ``certify``, where both have another meaning of the name.
check.argument_names = {"queries": "test", "text_queries": "queries", "target": "new"}  # type: ignore[attr-defined]


def why_no_check(folder: Path) -> str | None:
    """Return why a folder was not written by this command; None if it was."""
    names = {path.name for path in folder.iterdir()}
    if others := sorted(names - {MAP, BACK, FACTS, PAGE}):
        return f"contains other files than a check ({', '.join(others[:3])})"
    return None if {MAP, FACTS} <= names else f"contains no {FACTS}"


def _agreement(verdict: Verdict) -> str:
    """Return how many of the resamples recommend what."""
    from congruence.upgrade.certify import ACTIONS

    if verdict.settled:
        return f"{verdict.confidence[verdict.action]:.0%} of the resamples agree"
    # Rounded down: the share that is too small to decide never reads as the one that would decide.
    shares = (f"{ACTIONS[action]} {int(100 * verdict.confidence[action])}%" for action in verdict.between)
    return f"of the resamples: {', '.join(shares)}" if verdict.between else "the rule was not applied"


def _pictures(bundle: str, certificate: Certificate) -> dict[str, str]:
    """Return the thumbnails of a bundle that the certificate's result lists show, as data URIs by id."""
    from congruence.datasets import open_bundle
    from congruence.report.summary import data_uri

    known = open_bundle(bundle).thumbnails
    shown = {name for one in certificate.examples for found in one["lists"].values() for name in found}
    return {name: uri for name in shown if (uri := data_uri(known.get(name)))}


def _write(out: str, certificate: Certificate, mapping: Map, pictures: Mapping[str, str], *, force: bool) -> list[str]:
    """Write the maps and the certificate, as JSON and, if matplotlib is there to draw it, as a page."""
    from importlib.util import find_spec

    from congruence.report import render_certificate

    with atomic_path(out, force=force, directory=True, foreign=why_no_check) as folder:
        mapping.save(folder / MAP)
        back = []
        if "queries" in (certificate.verdict.action, *certificate.verdict.between):
            certificate.fit_queries().save(folder / BACK)
            back = [BACK]
        (folder / FACTS).write_text(json.dumps(certificate.to_dict(), indent=1) + "\n", encoding="utf-8")
        if find_spec("matplotlib") is None:
            return [MAP, *back, f"{FACTS} ({PAGE} needs pip install 'congruence[plot]')"]
        (folder / PAGE).write_text(render_certificate(certificate, pictures), encoding="utf-8")
    return [MAP, *back, FACTS, PAGE]


def _next(certificate: Certificate, old: str, new: str | None, out: str, store: str | None) -> str | None:
    """Return the command that the verdict leads to; None if there is nothing to do."""
    files, verdict = ["OLD", "NEW"] if new is None else [old, new], certificate.verdict
    # Anchors are chosen among rows that are not encoded by both models yet: those of the store, not of OLD.
    stored, wanted = store if store and os.path.exists(store) else "STORE", certificate.n_anchors + (verdict.more or 0)
    words = {
        "map": ["migrate", store or "URL", "run", "--from", out],
        "progressive": ["migrate", store or "URL", "run", "--from", out],
        "queries": ["bridge", "search", f"{out}/{BACK}", "--queries", "QUERIES", "--index", store or old],
        "re-embed": ["embed", "ENCODER", "ITEMS", "-o", "new.parquet"],
    }.get(verdict.action)
    if verdict.more is not None:
        # At random: the number is that of random items, which serve as queries too; chosen ones only improve the map.
        words = ["lab", "anchors", stored, "-n", str(wanted), "--method", "random", "-o", "chosen.txt"]
    if certificate.pairing["state"] in ("shifted", "exchanged"):
        words = ["fit", *files, "--set", "realign=step", "-o", "map"]
    elif certificate.pairing["state"] == "not paired":
        words = ["check", *files, "--ids", "OLD-IDS,NEW-IDS", "-o", out, "--force"]
    return None if words is None else shlex.join(["congruence", *words])


@dataclass(frozen=True)
class _Store:
    """A database to migrate: its address without secrets, what is known of its vectors, and the first of them."""

    shown: str
    rows: int
    space: Space
    sample: np.ndarray

    def is_new(self, mapping: Map) -> bool:
        """Return whether most rows look like those of the model that a map leads to."""
        from congruence.compare.origins import judge

        if not len(self.sample) or self.sample.dtype.kind != "f":  # quantized rows are not told apart
            return False
        judged = judge(mapping, self.sample, self.space.modality)
        return judged.outcome == "bad" and sum(n for kind, n in judged.shares.items() if "old" not in kind) > 0.5


def _read_store(store: str) -> _Store:
    """Read what a database says of its vectors, and the first rows."""
    from contextlib import closing
    from dataclasses import replace

    import numpy as np

    from congruence.databases import Address
    from congruence.upgrade.migrate.plan import SAMPLE

    with closing(open_asking(store)) as database:
        info = database.info()
        sample = next(iter(database.scan("old", batch=SAMPLE)), None)
    rows = np.empty((0, info.dim)) if sample is None else sample.vectors
    return _Store(Address.parse(store).shown, info.rows, replace(info.space, dim=info.dim), rows)


def _by_modality(entries: list[str] | None, flag: str) -> dict[str, tuple[str, ...]]:
    """Return the files of one or both models by modality, which is empty if an entry names none."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries or []:
        name, files = (
            split_named(entry, flag, "MODALITY=OLD,NEW", "text=old.npy,new.npy") if "=" in entry else ("", entry)
        )
        if flag == "--test" and "," not in files:
            raise ParameterError(
                f"Got {flag} {entry}; expected OLD,NEW.", f"Pass {flag} OLD,NEW, the items in both models."
            )
        if name in found:
            raise ParameterError(f"Got {flag} twice for {name or 'OLD,NEW'}; expected it once.", "Leave out one.")
        found[name] = (files,) if "," not in files else two_sides(files, flag) or ()
    return found


def _read_sides(
    files: tuple[str | None, str | None],
    modality: str | None,
    others: Mapping[str, Sequence[str]],
    ids: str | None,
    models: Sequence[str | None],
    links: str | None = None,
) -> tuple[Sides, dict[str, Sequence[str | None]]]:
    """Return the rows of both models, and the files, by modality."""
    sides: Sides = {}, {}
    typed: dict[str, Sequence[str | None]] = {}
    spaces: list[dict[str, Any]] = [{"model": model, "modality": modality} for model in models]
    old, new = files
    paired_by = "id"
    if old is not None:
        rows: Sequence[Embeddings] = []
        if new is None:
            rows = [read(old, ids_of(ids)[0], **spaces[0])]
        else:
            rows, paired_by = read_anchors((old, new), ids, spaces, links=links)
        for side, one in zip(sides, rows, strict=False):
            if others and not (modality or one.space.modality):
                raise ModalityError("The files do not say which modality OLD and NEW are of.", "Pass --modality image.")
            side[modality or one.space.modality or "other"] = one
        typed[next(iter(sides[0]))] = files
    for name, two in others.items():
        typed[name] = two
        for side, spec, ids_column, model in zip(sides, two, ids_of(ids), models, strict=False):
            found = "none" if paired_by == "position" else ids_column or find_ids(spec)[1]
            side[name] = read(spec, found, model=model, modality=name)
    return sides, typed


def _count_or_ids(anchors: str) -> int | np.ndarray:
    """Return the number of anchors, or the ids listed in a file."""
    from congruence.io import parse_spec

    if anchors.lstrip("-").isdecimal():
        return int(anchors)
    path, key = parse_spec(anchors)
    if key is not None or str(path).lower().endswith(".txt"):
        return column(anchors, "--anchors")
    rows = read(anchors, allow_zero_rows=True)
    if not rows.has_ids:
        raise IdError(
            f"Got {anchors} without ids for --anchors; expected a number, or a file of ids.",
            "Pass --anchors FILE:COLUMN, or a .txt with one id per line.",
        )
    return rows.ids


def _from_bundle(data: str, models: tuple[str | None, ...]) -> tuple[Sides, dict[str, str] | None]:
    """Return both sides of a bundle, and the class of each image if the bundle has classes."""
    from dataclasses import replace

    from congruence.datasets import open_bundle
    from congruence.io import parse_spec

    path = parse_spec(data)[0]
    try:
        bundle = open_bundle(data)
    except (InputError, FileError) as error:
        if not os.path.exists(path) or (path.endswith(".parquet") and isinstance(error, CorruptFileError)):
            raise
        raise ParameterError(
            f"Got {data} alone, which is no bundle: NEW is missing, the same items in the new model.",
            f"Type: congruence check {shlex.quote(data)} NEW",
        ) from error
    sides = bundle.side("source"), bundle.side("target")
    for side, model in zip(sides, models, strict=True):
        for modality, rows in side.items():
            if model is not None:
                side[modality] = replace(rows, space=replace(rows.space, model=model))
    return sides, bundle.classes.get("image")


def _say_verdict(certificate: Certificate) -> None:
    """Print the verdict, its reason, and what it was measured on."""
    verdict, measured = certificate.verdict, certificate.measured
    say(f"Verdict: {verdict.headline} ({_agreement(verdict)})")
    say(f"{verdict.reason[:1].upper()}{verdict.reason[1:]}")
    say(f"Measured on {measured['rows']}; queries: {measured['queries']} ({measured['queries_are']}).")
    if certificate.distinct:  # few for pairs of few classes, and left-out pairs are of these classes too
        varied = " and ".join(f"{name} pairs vary in about {n:.0f}" for name, n in certificate.distinct.items())
        say(f"The {varied} directions; of items of other kinds the verdict says nothing.")


def print_certificate(certificate: Certificate) -> None:
    """Print a certificate as tables, the verdict first."""
    from congruence.upgrade.certify import STRATEGIES, name_strategy

    task, controls, facts = certificate.task, certificate.controls, certificate.facts
    _say_verdict(certificate)
    say(f"{facts['source']} → {facts['target']}; {facts['data']}; {facts['date']}, seed {facts['seed']}")
    say(f"Map: {certificate.choice['name']}; {certificate.how_to_fit}")
    print()
    rows = []
    for name, scores in certificate.strategies.items():
        cells = [_cell(scores.get(strategy)) for strategy in STRATEGIES]
        cells[-1] = "1 by definition" if name in controls else cells[-1]
        rows.append([name, *cells, *(number(controls.get(name, {}).get(c)) for c in ("chance", "random_rotation"))])
    print_table(
        f"{certificate.n_anchors} pairs ({' and '.join(certificate.fitted)}), {certificate.n_queries} items "
        "scored; 95 % intervals",
        ["measure", *map(name_strategy, STRATEGIES), "chance", "random rotation"],
        rows,
    )
    _print_costs(certificate)
    shown = {f"{name.replace('/', ' ÷ ')}, {task}": _cell(e) for name, e in certificate.retention.items()}
    for modality, e in certificate.cosines.items():
        shown[f"cosine of mapped {modality} and new {modality}"] = _cell(e)
        meanings = {"constant": "every row at the new model's mean", "random_rotation": "random rotation"}
        for control, meaning in meanings.items():
            shown[f"  control for {modality}: {meaning}"] = number(controls.get(f"cosine/{modality}", {}).get(control))
    shown |= {f"{m} variance in directions that the pairs span": f"{c:.1%}" for m, c in certificate.covered.items()}
    shown |= {f"directions in which the {m} pairs vary": f"about {n:.0f}" for m, n in certificate.distinct.items()}
    shown |= {f"mapped rows of {name_strategy(way)} are read as": role for way, role in certificate.roles.items()}
    print_table("", ["", "value"], [[name, value] for name, value in shown.items()])
    gained = ("score", "score_at_most", "cosine", "cosine_at_most")
    print_table(
        f"More pairs (now {certificate.n_anchors})",
        ["more", f"{task} gains", "at most", "cosine gains", "at most"],
        [[f"{int(g['more']):,}", *(number(g[k]) for k in gained)] for g in certificate.gains],
    )
    if certificate.theory:
        print("Theory")
        for entry in certificate.theory:
            say(f"  {entry['sentence']}")
        print()
    for note in certificate.notes:
        say(note)


def _print_costs(certificate: Certificate) -> None:
    """Print the expected quality and cost of each strategy."""
    from congruence.upgrade.certify import name_strategy

    rows = []
    for cost in certificate.costs:
        share, items, price = cost["share"], cost["items"], cost["price"]
        encoded = f"{share:.0%} of the store" if items is None else f"{items:,}"
        paid = "–" if price is None else f"{price:,.2f}"
        rows.append(
            [name_strategy(cost["strategy"], share), _cell(cost["score"]), encoded, number(cost["minutes"], 1), paid]
        )
    print_table("Cost of each strategy", ["strategy", certificate.task, "items to encode", "minutes", "price"], rows)
    if certificate.progressive.get("sentence"):
        say(certificate.progressive["sentence"])
        print()
    if lists := certificate.lists:
        rows = [
            [
                f"{one['encodings']}",
                _cell(one["score"]),
                f"{one['items']:,}",
                number(one["minutes"], 1),
                number(one["price"], 2),
            ]
            for one in lists["by_encodings"]
        ]
        columns = ["encodings for a query", lists["measure"], f"items to encode for {lists['log']:,} queries"]
        print_table(f"Lists, among {lists['items']:,} items", [*columns, "minutes", "price"], rows)


def _cell(estimate: Estimate | None) -> str:
    """Format a score with its interval; an unknown score is a dash."""
    return "–" if estimate is None else str(estimate)
