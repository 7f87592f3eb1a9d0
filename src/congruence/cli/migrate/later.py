"""The steps after a run: ``status``, ``verify``, ``switch``, ``reembed``, ``rollback``, and what removes vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import typer

from congruence.cli._input import read, read_given
from congruence.cli._options import Json, option, settable
from congruence.cli._output import Bars, check_out, number, print_facts, progress, say, say_error
from congruence.cli._scores import print_thresholds
from congruence.cli.migrate._step import ENGINE, Journal, Yes, ask, each, opened
from congruence.errors import DirectionError, ParameterError

if TYPE_CHECKING:
    from congruence.maps import Map
    from congruence.upgrade.migrate import Migration, Verification
    from congruence.upgrade.migrate.encode import Encode
    from congruence.upgrade.migrate.written import NewRows

#: What is left to do, by state.
_LEFT = {
    "filling": "finish the run, then switch and finish",
    "filled": "verify, switch and finish",
    "verified": "switch and finish",
    "switched": "finish, once you are sure: this removes the old vectors; until then, rollback restores them, "
    "unless rows were written since",
    "rolled back": "verify and switch again, or finish, which removes the new vectors",
    "dropped": "nothing; the journal's folder can be removed",
}


@each
def status(ctx: typer.Context, journal: Journal = None, as_json: Json = False) -> None:
    """Say where the migration stands, what readers see, and what is left to do.

    Example: congruence migrate library/photos.lance status
    """
    from congruence.upgrade.migrate.journal import SEEN

    with opened(ctx, journal) as step:
        found: dict[str, Any] = step.migration.status()
        rows = f"{found['rows_mapped']:,} of {found['rows']:,} rows are mapped"
        if "reembedded" in found:
            rows += f", and {found['reembedded']:,} of these are re-embedded"
        lines = [f"{event['at'].replace('T', ' ')}  {event['what']}" for event in found["events"]]
        lines += [f"{found['place']}: readers see {SEEN[found['state']]}. {rows}."]
        again = found["state"] == "filled" and step.next() == step.command("run")
        left = f"{'run again, ' if again else ''}{_LEFT[found['state']]}."
        if found["refused"] and found["state"] == "switched":
            left = f"finish, which removes the old vectors. A rollback is refused: {found['refused']}"
        elif found["refused"]:
            left = f"discard, and run again: {found['refused']}"
        step.report("status", found, [*lines, *found["obstacles"], f"Left to do: {left}"], as_json)


@each
def verify(
    ctx: typer.Context,
    heldout: str | None = option(None, "Rows in the new model, with their ids, that the map was not fitted on."),
    threshold: list[float] | None = option(None, "A threshold of the old model to translate; repeatable."),
    settings: dict[str, Any] = settable(least_recall=0.9, queries=str, queries_old=str, among=str),
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Check counts, a sample read back, and the new index against exact search.

    Example: congruence migrate library/photos.lance verify

    For a threshold, queries and queries_old are the same queries in both models, and among is the modality of the rows
    that are searched; without queries, rows are compared with each other.
    """
    with opened(ctx, journal) as step:
        with Bars(as_json) as bars:
            least = settings.get("least_recall", 0.9)
            verification = verified(step.migration, bars, heldout=read_given(heldout), least_recall=least)
        result: dict[str, Any] = verification.to_dict()
        if not as_json:
            print_verification(verification, step.migration)
        if threshold and verification.passed:
            queries = [read_given(settings.get(name)) for name in ("queries", "queries_old")]
            fitted = step.migration.fit_thresholds(*queries, among=settings.get("among"))
            translated = [fitted.translate(value) for value in threshold]
            result["thresholds"] = {**fitted.describe(), "values": [row.to_dict() for row in translated]}
            if not as_json:
                print_thresholds(translated)
        step.report("verify", result, [], as_json)
        if not verification.passed:
            raise typer.Exit(1)


def verified(migration: Migration, bars: Bars, **options: Any) -> Verification:
    """Return the verification of the new vectors."""
    bars.begin("verifying", migration.info.rows)
    return migration.verify(callback=bars.advance, **options)


def print_verification(verification: Verification, migration: Migration) -> None:
    """Print the result of a verification, and how queries must be quantized if the new vectors are."""
    recalls, before = number(verification.index_recall), verification.index_recall_old
    if before is not None:
        recalls = f"{recalls} (old: {number(before)})"
    wrong = f"{verification.wrong} wrong; largest difference {verification.largest_difference:.1e}"
    facts = {
        "rows": f"{verification.rows_old:,} old, {verification.rows_new:,} new",
        "read back": f"{verification.read_back:,}, {wrong}",
        "recall of the index against exact search": f"{recalls}, {verification.k} nearest",
    }
    if verification.stored_recall is not None:
        facts["recall as stored"] = stored_recall(verification.stored_recall, "on the sample read back")
    if verification.clipped:
        facts["outside the ranges"] = f"{100 * verification.clipped:.2g} % of components, which were clipped"
    if scores := verification.heldout:
        recall = f"recall@1 {number(scores['recall@1'])}, @10 {number(scores['recall@10'])}"
        facts["held-out vectors"] = f"{recall} (chance {number(scores['chance@10'], 4)})"
    print_facts("verified" if verification.passed else "NOT verified", facts)
    for problem in verification.problems:
        say(problem)
    if rule := migration.mapper.new.describe():
        say(f"Quantize queries in the same way: {rule}")
        if migration.mapper.new.ranges is not None:
            path = migration.folder / "ranges.npy"
            say(f"The ranges, in the form that quantize_embeddings of sentence-transformers expects: {path}")


def stored_recall(recall: float | None, where: str) -> str:
    """Describe how much search quality remains when vectors are stored in fewer bits."""
    if recall is None:
        return "not measured: too few rows"
    return f"{recall:.3f} of the 10 nearest rows in float32 are among the 10 nearest as stored, {where}"


@each
def switch(
    ctx: typer.Context,
    settings: dict[str, Any] = settable(**ENGINE),
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Make readers see the new vectors, after repairing what others changed since the run; the old ones are kept.

    Example: congruence migrate library/photos.lance switch
    """
    with opened(ctx, journal, given=settings) as step:
        with Bars(as_json) as bars:
            bars.begin("comparing", step.migration.info.rows)
            result = step.migration.switch(callback=bars.advance)
        seen = f"Readers see the new vectors of {result['rows']:,} rows. The old ones are kept."
        step.report("switch", result, [seen, f"Summary: {step.migration.folder / 'summary.json'}"], as_json)


@each
def rollback(
    ctx: typer.Context,
    new_rows: str = option(
        "refuse",
        "Rows written since: refuse, keep (without an old vector) or map-back.",
        metavar="[refuse|keep|map-back]",
    ),
    settings: dict[str, Any] = settable(**ENGINE),
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Make readers see the old vectors again, bit for bit; the new ones are kept.

    Example: congruence migrate library/photos.lance rollback
    """
    with opened(ctx, journal, given=settings) as step:
        result = step.migration.rollback(new_rows=cast("NewRows", new_rows))
        states = {True: ", bit for bit as before", False: ", changed by others since", None: ""}
        done = "Rolled back" if result["switched"] else "Nothing is switched"
        lines = [f"{done}: readers see the old vectors of {result['rows']:,} rows{states[result['identical']]}."]
        since = [f"{result[name]:,} {name}" for name in ("added", "changed", "deleted") if result[name]]
        since += ["deleted rows cannot be counted"] * (result["deleted"] is None)
        if since:
            lines.append(f"Since the switch: {', '.join(since)}.")
        if result["rows_without"]:
            lines.append(f"{result['rows_without']:,} rows have no old vector.")
        step.report("rollback", result, lines, as_json)


@each
def reembed(
    ctx: typer.Context,
    *,
    encode: str | None = option(
        None, "A command with {ids} and {out}, a file of vectors, or an encoder with --items; by default as before."
    ),
    items: str | None = option(None, "With an encoder: table or folder of the items, with their ids."),
    texts: str | None = option(
        None, "Texts in the old model that all searches come from (tags, say); other searches lose."
    ),
    new_texts: str | None = option(None, "The same texts in the new model."),
    modality: str | None = option(None, "Modality of the rows to re-embed, if a column states it."),
    share: float | None = option(None, "Share of the rows to re-embed in total, by default the certificate's."),
    budget: int | None = option(None, "Number of rows to re-embed in total, instead of --share."),
    queries: str | None = option(None, "A log of queries in the new model: re-embed the rows that they use most."),
    remap: bool = option(False, "Refit the map by what was re-embedded by use, and map the other rows again."),
    until: float | None = option(None, "Stop when the 95 % interval of the agreement is above this value."),
    settings: dict[str, Any] = settable(batch=1000, plot=str, search=str, encode_rate=float, price=float),
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Encode the rows that the map is least sure of with the new model, refit the map, and map the other rows again.

    Example: congruence migrate library/photos.lance reembed --share .1 --encode library/new-photos.parquet

    Call it again to continue; rows that are encoded stay so. Settings: batch is the number of rows between two refits,
    plot a picture to write, and encode_rate (items per second) and price (of an item) compare the costs.
    """
    from congruence.upgrade.migrate import stages

    typed = {"encode": encode, "items": items, "texts": texts, "new_texts": new_texts, "modality": modality}
    with opened(ctx, journal) as step:
        kept = {name: value or step.kept.get(f"reembed_{name}") for name, value in typed.items()}
        if share is budget is until is None and "share" in step.kept:
            share = float(step.kept["share"])
        amount = {"budget": budget, "share": share, "until": until, "batch": settings.get("batch")}
        if remap and not any(amount[name] for name in ("budget", "share", "until")):
            amount["budget"] = budget = max(1, sum(len(one.ids) for one in step.migration.mapper.native.values()))
        _check_reembed(kept, amount, settings.get("plot"))
        if queries is not None and (until is not None or kept["texts"] is not None):
            raise ParameterError("Got --queries with --until or --texts, which choose rows too.", "Leave these out.")
        encoder, asked = (
            open_encoder(str(kept["encode"]), kept["items"], kept["modality"], step.migration.mapper.map),
            None,
        )
        step.keep(**{f"reembed_{name}": value for name, value in kept.items()})
        done_before = sum(len(native.ids) for native in step.migration.mapper.native.values())
        total = budget or round((share or 1) * step.migration.info.rows)
        if total <= done_before and not remap:
            named = "--share" if budget is None else "--budget"
            say_error(f"{done_before:,} rows are re-embedded already; {named} counts all of them.")
        with progress("encoding", max(total - done_before, 0), as_json) as advance:
            if queries is not None:
                asked = _encode_asked(step.migration, encoder, queries, total, kept["modality"], advance)
            done = stages.reembed(
                step.migration,
                encoder,
                texts=read_given(kept["texts"]),
                new_texts=read_given(kept["new_texts"]),
                among=kept["modality"],
                size=settings.get("batch", 1000),
                search=settings.get("search"),
                budget=budget,
                share=share,
                until=until,
                rows=asked,
                callback=advance,
                stage=None if as_json else say_error,
            )
        result: dict[str, Any] = {"stages": [stage.to_dict() for stage in done.history_], "order": done.order_}
        lines = ["No rows were re-embedded."]
        if done.history_:
            rate = settings.get("encode_rate")
            forecast = done.forecast(rate=rate and 60 * rate, price=settings.get("price"))
            result["forecast"], lines = forecast.to_dict(), [f"{done.history_[-1]}", *str(forecast).split("\n")]
        if done.history_ and "plot" in settings:
            from congruence.report.pictures import write_figure

            write_figure(settings["plot"], done.plot(), "quality by the share re-embedded", force=True)
            result["plot"] = settings["plot"]
        step.report("reembed", {**result, "words": lines}, lines, as_json)


def _encode_asked(
    migration: Migration,
    encoder: Encode,
    queries: str,
    total: int,
    modality: str | None,
    advance: Callable[[int], object] | None,
) -> Sequence[str]:
    """Encode the rows that a log of queries uses most, until a number of rows is re-embedded; return those to write."""
    from congruence.upgrade.lazy import LazySearch

    search, log = LazySearch(migration, None, encoder, modality=modality), read_given(queries)
    assert log is not None
    if (left := total - search.rows.n_native) > 0:
        search.reembed(log, budget=left, callback=advance)
        if trouble := search.trouble():
            say_error(trouble)
    return search.rows.waiting


def _check_reembed(kept: Mapping[str, str | None], amount: Mapping[str, float | None], plot: str | None) -> None:
    """Check the options before anything is read."""
    if kept["encode"] is None:
        raise ParameterError(
            "Got no --encode, which says how to encode rows with the new model.",
            "Pass a command with {ids} and {out}, a file of vectors, or an encoder with --items.",
        )
    if amount["budget"] is not None and amount["share"] is not None:
        got = f"Got --budget {amount['budget']} and --share {amount['share']}"
        raise ParameterError(f"{got}; expected one of the two.", "Leave out one.")
    for name, value in amount.items():
        if value is not None and not value > 0:
            raise ParameterError(argument=name, got=value, expected="a number above 0")
        if name in ("share", "until") and value is not None and value > 1:
            raise ParameterError(argument=name, got=value, expected="at most 1", fix=f"Pass --{name} .9.")
    if amount["budget"] is amount["share"] is amount["until"] is None:
        raise ParameterError(
            "Got no --budget, --share or --until; expected one of them, which says when to stop.",
            "Pass --share .1, for example.",
        )
    if (kept["texts"] is None) != (kept["new_texts"] is None):
        given, missing = ("--texts", "--new-texts") if kept["texts"] else ("--new-texts", "--texts")
        raise ParameterError(f"Got {given} without {missing}; expected both, or neither.", f"Pass {missing} too.")
    if plot is not None:
        check_out(plot, force=False, kind="plot")


def open_encoder(spec: str, items: str | None, modality: str | None, mapping: Map, ids: str | None = None) -> Encode:
    """Return the function that encodes rows, according to the form of ``--encode``."""
    from congruence.embeddings import Space, check_space
    from congruence.upgrade.migrate.encode import encode_by_command, encode_from_file, encode_items

    def check(space: Space) -> None:
        try:
            check_space(replace(space, normalized=None), mapping.target_space_, mapping.source_space_, modality=False)
        except DirectionError as error:
            error.fix = ("Pass --encode with a file of the new model's vectors.",)
            raise

    if "{" in spec or " " in spec.strip():
        return encode_by_command(spec)
    if items is None and os.path.exists(spec.partition(":")[0]):
        vectors = read(spec, ids)
        check(vectors.space)
        return encode_from_file(vectors)
    if items is None:
        raise ParameterError(
            f"Got --encode {spec}, which is neither a file nor a command with {{ids}} and {{out}}, and no items.",
            "Pass `items=…`, the table or folder of the items to encode.",
        )
    from congruence.embed import open_items
    from congruence.encoders import load_encoder

    opened_items = open_items(items, modality=modality)
    encoder = load_encoder(spec, opened_items.modality)
    check(encoder.space)
    return encode_items(encoder, opened_items)


def _remover(action: str, words: str) -> Callable[..., None]:
    """Return the command of an action that removes vectors."""

    def command(ctx: typer.Context, yes: Yes = False, journal: Journal = None, as_json: Json = False) -> None:
        with opened(ctx, journal) as step:
            migration = step.migration
            fits = {"switched": "drop-old", "dropped": ""}.get(str(migration.status()["state"]), "discard")
            doing = (fits or "drop-old") if action == "finish" else action
            side = "old" if doing == "drop-old" else "new"
            if doing == fits:  # else the step refuses, and nothing has to be asked
                rows = f"{migration.info.rows:,} rows of {migration.info.place}"
                ask(f"Remove the {side} vectors of {rows} for good?", yes)
            if doing == "drop-old":
                migration.drop_old()
            else:
                migration.discard()
                step.forget()
            step.report(doing, {"removed": side}, [f"Removed the {side} vectors."], as_json)

    command.__doc__ = f"{words}\n\n    Example: congruence migrate library/photos.lance {action} --yes\n    "
    return each(command)


drop_old = _remover("drop-old", "Remove the old vectors after the switch. This cannot be undone.")
discard = _remover("discard", "Remove the new vectors, as long as readers do not see them.")
finish = _remover(
    "finish",
    "Remove the vectors that readers do not see: after a switch the old ones (drop-old), else the new ones (discard).",
)
