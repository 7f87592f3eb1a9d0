"""Tables in docs/reproducing.md: figures of the Canonical paper on the stand-ins, from one record."""

from __future__ import annotations

from typing import Any

from measured.blocks import Block, spread, table
from measured.jobs import JOBS, figure_commands

#: Pairs of models of the stand-in with real CLIPs.
B16, EVA = "OpenAI B/32 → OpenAI B/16", "OpenAI B/32 → EVA-02 B/16"


class Figure:
    """The rows of one figure on one stand-in."""

    def __init__(self, results: dict[str, Any]):
        self.held = results["held"]
        self.rows = [dict(zip(results["columns"], row, strict=True)) for row in results["rows"]]

    def row(self, metric: str, quantity: str = "after", **given: Any) -> dict[str, Any]:
        """Return the first row of a metric and quantity with the given data, pair, series, part and x; a pair may be the beginning of one."""
        for row in self.rows:
            fits = row["metric"] == metric and row["quantity"] == quantity
            pair = given.get("pair")
            rest = {key: value for key, value in given.items() if key != "pair"}
            if fits and (not pair or row["pair"].startswith(pair)) and all(row[k] == v for k, v in rest.items()):
                return row
        raise LookupError(f"no {metric}, {quantity} of {given}")

    def mean(self, metric: str, quantity: str = "after", **given: Any) -> str:
        return spread(self.row(metric, quantity, **given)["mean"], None) if self.has(metric, quantity, **given) else ""

    def both(self, metric: str, **given: Any) -> str:
        row = self.row(metric, **given)
        return spread(row["mean"], row["sd"])

    def has(self, metric: str, quantity: str = "after", **given: Any) -> bool:
        try:
            return self.row(metric, quantity, **given) is not None
        except LookupError:
            return False


def figures(results: list[Any]) -> dict[tuple[str, str], Figure]:
    """Return the figures of the record by name and stand-in."""
    return {key: Figure(result) for key, result in zip(figure_commands(), results, strict=True)}


def images(results: list[Any]) -> str:
    """Figure 11: fitted on images."""
    found = figures(results)
    sides = [found["fig11", models] for models in ("sample", "caltech101")]
    rows = []
    for words, metric in (
        ("image–image class retrieval", "image_retrieval"),
        ("text–text class retrieval", "text_retrieval"),
        ("aligned image, target text", "aligned_image_text"),
        ("target image, aligned text", "image_aligned_text"),
        ("aligned image, aligned text", "aligned_image_aligned_text"),
        ("image–image cosine", "image_cosine"),
        ("text–text cosine", "text_cosine"),
    ):
        cells, controls = [], []
        for f in sides:
            alone = [f.mean(metric, f"model_{m}") for m in "ab"]
            cells += [f.mean(metric, "before"), f.both(metric), " / ".join(alone) if all(alone) else ""]
            controls += ["", "; ".join(c for q in ("constant", "random_rotation") if (c := f.mean(metric, q))), ""]
        rows.append([words, *cells])
        if any(controls):
            rows.append(["control: " + ("constant; " * ("cosine" in words)) + "random rotation", *controls])
    header = (f"{models}: {what}" for models in ("sample", "caltech101") for what in ("before", "after", "A / B alone"))
    return table(["metric", *header], rows)


def texts(results: list[Any]) -> str:
    """Figures 32 to 34: fitted on texts."""
    found = figures(results)
    sides = [(found["fig34", models], pair) for models, pair in (("sample", None), ("caltech101", None), ("lvis", B16), ("lvis", EVA))]  # fmt: skip
    rows = []

    def line(words: str, metric: str, quantity: str = "after") -> None:
        given = {"series": "orthogonal"} if quantity == "after" else {}
        rows.append([words, *(f.mean(metric, quantity, pair=pair, **given) for f, pair in sides)])

    def controls(metric: str) -> None:
        cells = ["; ".join(c for q in ("constant", "random_rotation") if (c := f.mean(metric, q, pair=pair))) for f, pair in sides]  # fmt: skip
        rows.append(["control: constant; random rotation", *cells])

    line("text–text class retrieval", "text_retrieval")
    line("image–image class retrieval", "image_retrieval")
    line("aligned image, target text", "aligned_image_text")
    line("aligned image, target text, both centered", "aligned_image_text_centered")
    line("aligned image, target text: source model alone", "aligned_image_text", "model_a")
    line("text–text cosine", "text_cosine")
    controls("text_cosine")
    line("image–image cosine", "image_cosine")
    controls("image_cosine")
    return table(["metric", "sample", "caltech101", "lvis → B/16", "lvis → EVA-02"], rows)


CLASSES = (2, 5, 10, 15, 20, 30)


def few_classes(results: list[Any]) -> str:
    """Figure 5: text–text cosine on unseen classes by number of classes fitted on."""
    found = figures(results)
    columns = {
        "sample, orthogonal": ("sample", "orthogonal"),
        "sample, filtered": ("sample", "filtered"),
        "sample, random rotation": ("sample", "random"),
        "caltech101, orthogonal": ("caltech101", "orthogonal"),
    }
    lines = [(str(n), "unseen", n) for n in CLASSES] + [("30, on these classes", "seen", 30)]
    rows = [
        [
            words,
            *(found["fig5", models].mean("text_cosine", series=s, part=part, x=n) for models, s in columns.values()),
        ]
        for words, part, n in lines
    ]
    return table(["classes fitted on", *columns], rows)


def few_classes_control(results: list[Any]) -> str:
    """Figure 5, by a measure that cannot distinguish a fitted rotation from a random one: aligned images against aligned texts, fitted on 10 classes."""
    found = figures(results)
    rows = []
    for models in ("sample", "caltech101"):
        f, metric = found["fig5", models], "aligned_image_aligned_text"
        alone = f.row(metric, "model_a", part="unseen", x=10)
        cells = [f.both(metric, series=series, part="unseen", x=10) for series in ("orthogonal", "random")]
        rows.append([models, *cells, spread(alone["mean"], alone["sd"])])
    return table(["aligned image, aligned text", "fitted rotation", "random rotation", "model A alone"], rows)


def quality(results: list[Any]) -> str:
    """Figure 5 on simulated dual encoders, in increasing order of what they share beyond classes: the curves, then the scores at 10 classes."""
    found = results[0]["results"]
    classes = (2, 5, 10, 20, 30)
    at = [found["shown"].index(x) for x in classes]
    curves, scores = [], []
    for line in sorted(found["lines"], key=lambda line: (line["captions"], line["details"])):
        models = [f"{line['captions']}; {line['pairs']:,}; {line['noise']:g}", f"{line['details']:.2f}"]
        curve = [spread(line["curve"][k], line["sd"][k]) if k == at[2] else f"{line['curve'][k]:.3f}" for k in at]
        curves.append([*models, *curve])
        accuracies = (f"{value:.2f}" for value in (*line["both_mapped"], *line["one_mapped"]))
        scores.append([*models, f"{round(3 * line['saturated'])} of 3", *accuracies])
    models = ["captions; pairs; noise", "details"]
    mapped = (f"{what}: {map_}" for what in ("both mapped", "images mapped") for map_ in ("fitted", "random"))
    return "\n".join(
        (
            table([*models, *(f"{n} classes" for n in classes)], curves),
            table([*models, "saturated at 10 classes", *mapped], scores),
        )
    )


KINDS = {
    "orthogonal": "orthogonal",
    "filtered": "filtered",
    "linear (ridge)": "linear",
    "least squares": "least_squares",
    "perceptron": "mlp",
    "random rotation": "random",
}


def kinds(results: list[Any]) -> str:
    """Figures 7, 44 to 46: kinds of map, on the sample, then on the other stand-ins."""
    found = figures(results)
    sample = {
        "sample: image cosine": ("sample", None, "image_cosine"),
        "sample: text cosine": ("sample", None, "text_cosine"),
        "sample: **target image, aligned text**": ("sample", None, "image_aligned_text"),
        "sample: aligned image, aligned text": ("sample", None, "aligned_image_aligned_text"),
    }
    others = {
        "caltech101: text cosine": ("caltech101", None, "text_cosine"),
        "caltech101: **target image, aligned text**": ("caltech101", None, "image_aligned_text"),
        "lvis: text cosine": ("lvis", EVA, "text_cosine"),
        "lvis: **aligned image, target text**": ("lvis", EVA, "aligned_image_text"),
        "lvis: **the same, both centered**": ("lvis", EVA, "aligned_image_text_centered"),
    }

    def part(columns: dict[str, tuple[str, str | None, str]]) -> str:
        def line(words: str, quantity: str = "after", **given: str) -> list[str]:
            return [words, *(found["fig44", m].mean(metric, quantity, pair=p, **given) for m, p, metric in columns.values())]  # fmt: skip

        rows = [line(words, series=series) for words, series in KINDS.items()]
        return table(["map", *columns], [*rows, line("constant (the target's mean)", "constant")])

    return f"{part(sample)}\n{part(others)}"


def rest(results: list[Any]) -> str:
    """The other figures, one line each."""
    found = figures(results)
    here = {name: {m: found[name, m] for m in ("sample", "caltech101", "lvis") if (name, m) in found} for name in (
        "fig2", "fig3", "fig6", "fig39", "fig40", "fig43", "fig49", "fig52", "fig53", "fig55", "fig56")}  # fmt: skip
    rows: list[list[str]] = []

    def line(words: str, figure: str, cell: Any) -> None:
        rows.append(
            [words, *(cell(here[figure][m], m) if m in here[figure] else "" for m in ("sample", "caltech101", "lvis"))]
        )

    def closed(f: Figure, _: str) -> str:
        moved = [f.mean("zero_shot", series=f"{side} moved", x=1.0) for side in ("texts", "images")]
        return f"{f.mean('zero_shot', series='texts moved', x=0.0)} → {' / '.join(moved)}"

    def halves(f: Figure, models: str) -> str:
        pair = B16 if models == "lvis" else None
        other, own = (
            [spread(r["mean"], None) for r in f.rows if r["metric"] == "text_cosine" and r["part"] == part and (not pair or r["pair"] == pair)]
            for part in ("means of the data evaluated", "in domain")
        )  # fmt: skip
        return f"{', '.join(other)} / {', '.join(reversed(own))}" + (
            _controls(f, "text_cosine", "B/16", pair) if pair else ""
        )

    def trip(metric: str) -> Any:
        def cell(f: Figure, models: str) -> str:
            pair = EVA if models == "lvis" else None
            return f.both(metric, series="round trip", pair=pair) + (
                _controls(f, metric, "EVA-02", pair) if pair else ""
            )

        return cell

    def pair_of(metric: str, *series: str, pair: str = "") -> Any:
        def cell(f: Figure, models: str) -> str:
            given = pair if models == "lvis" else None
            cells = [f.mean(metric, series=one, pair=given) for one in series]
            return f"{' / '.join(cells)}{' (EVA-02)' if given else ''}" if all(cells) else ""

        return cell

    def narrow(f: Figure, models: str) -> str:
        widths = {"sample": "32 → 64", "caltech101": "48 → 96", "lvis": "256 → 512, EVA-02"}[models]
        return f"{f.mean('text_cosine', series='orthogonal', pair=_narrow(models))} ({widths})"

    def narrow_text(f: Figure, models: str) -> str:
        metric, pair = "aligned_image_text", _narrow(models)
        return f"{f.mean(metric, series='orthogonal', pair=pair)} ({f.mean(metric, 'model_a', pair=pair)})"

    def data(f: Figure, _: str) -> str:
        return " / ".join(
            f.mean("text_cosine", series="orthogonal", part=f"{which} training data") for which in ("same", "other")
        )

    def edited(metric: str) -> Any:
        return lambda f, _: " / ".join(f.mean(metric, series=series) for series in ("mapped", "target alone"))

    def chance(metric: str, series: str) -> Any:
        return lambda f, _: f"{f.mean(metric, series=series)} ({f.mean(metric, 'chance')})"

    line("2: gap between the means, source model", "fig2", lambda f, _: f.mean("gap", "value"))
    line("2: zero-shot of the source model, gap closed by moving texts / images", "fig2", closed)
    line("3: correlation of the models' image–text kernels; of image kernels within and across models", "fig3",
         lambda f, _: f"{f.mean('kernel_correlation', 'value')}; {f.mean('cross_model_correlation', 'value')}")  # fmt: skip
    line("6: text cosine, fitted on the other half / on its own", "fig6", halves)
    line("39: text cosine after a round trip", "fig39", trip("text_cosine"))
    line("39: image cosine after a round trip", "fig39", trip("image_cosine"))
    line("40: text cosine, composed / direct", "fig40", pair_of("text_cosine", "composed", "direct"))
    line("43: narrow source, text cosine", "fig43", narrow)
    line("43: narrow source, aligned image, target text (source model alone)", "fig43", narrow_text)
    line("49: text cosine, centered / not", "fig49", pair_of("text_cosine", "orthogonal", "uncentered", pair=EVA))
    line("49: image cosine, centered / not", "fig49", pair_of("image_cosine", "orthogonal", "uncentered", pair=EVA))
    line("52: text cosine, same data / other data", "fig52", data)
    line(
        "53: share of the five nearest images that both paths find (chance)",
        "fig53",
        chance("overlap_at_5", "both paths"),
    )
    line("55: image of the edited class found, mapped / target alone", "fig55", edited("edited_class_image"))
    line("55: template kept (chance)", "fig55", chance("rest_kept", "mapped"))
    line("56: single edited emoji found among five, mapped / target alone", "fig56", edited("edited_class_image_at_5"))
    return table(["figure", "sample", "caltech101", "lvis"], rows)


def _narrow(models: str) -> str | None:
    return "OpenAI B/32 (256-d) → EVA-02" if models == "lvis" else None


def _controls(f: Figure, metric: str, name: str, pair: str | None) -> str:
    constant, turned = (f.mean(metric, q, pair=pair) for q in ("constant", "random_rotation"))
    return f" ({name}; constant {constant}, random rotation {turned})"


def single(results: list[Any]) -> str:
    """The effect of a single evaluation template on the stand-in with Caltech-101."""
    found = [Figure(result) for result in results]
    rows = [
        [words, *(f.mean(metric, series="orthogonal") for f in found)]
        for words, metric in (
            ("text–text cosine", "text_cosine"),
            ("text–text class retrieval", "text_retrieval"),
            ("aligned image, target text", "aligned_image_text"),
        )
    ]
    return table(["caltech101, single template", "fitted on images", "fitted on texts"], rows)


BLOCKS = {
    f"canonical-{name}": Block(write, JOBS["canonical"])
    for name, write in {
        "images": images,
        "texts": texts,
        "few-classes": few_classes,
        "few-classes-control": few_classes_control,
        "kinds": kinds,
        "rest": rest,
    }.items()
} | {
    "canonical-single": Block(single, JOBS["canonical-single"]),
    "canonical-quality": Block(quality, JOBS["few-classes"]),
}
