"""The pages of maps in a real browser: they render at both widths, fit, and the console stays silent."""

import io

import numpy as np
import pytest
from test_certificate_page import certificate
from test_training_page import make, trained

import congruence
from congruence.datasets import load_sample
from congruence.report import render, render_migration, render_story, render_training, summarize, summarize_training
from congruence.report.summary import data_uri
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.journal import summarize as summarize_journal

pytestmark = pytest.mark.long


def report():
    sample = load_sample("emoji")
    old, new = sample.source, sample.target
    means = {"text": (old["text"], new["text"])}
    mapping = congruence.fit(old["image"], new["image"], holdout=0.5, groups=None, check=False, means=means)
    return render(summarize(mapping, sample, repeats=2))


def found(sample):
    """Five results of a search, with names that do not fit."""
    thumbnails = list(sample.thumbnails.values())[:5]
    return [{"text": "x" * 60, "picture": data_uri(one), "wanted": k % 2 == 0} for k, one in enumerate(thumbnails)]


def training():
    """Long words, many tasks and many examples, so that the page is as long and as crowded as they come."""
    image = pytest.importorskip("PIL.Image")
    data = make(images=60, k=2)
    mapping = trained(data)
    names = enumerate(np.unique(data.groups))
    pictures = {name: image.new("RGB", (200, 300 - i), (4 * i, 90, 200 - 3 * i)) for i, name in names}
    tasks = [f"kind {i % 5} of thing that goes wrong in a caption" for i in range(120)]
    words = ["a dog on a mat " * 3 + f"no-{'very' * 20}-{i}" for i in range(120)]
    wrong = [[f"a cat on {text}", f"a mat on {text}"] for text in words]
    rows = {"groups": data.groups, "tasks": tasks, "texts": (words, wrong), "pictures": pictures}
    return render_training(summarize_training(mapping, data.X, data.Y, data.N, **rows, held_out=False, examples=9))


def migration():
    """A migration with many events and stages, and a place that does not fit."""
    journal = Journal("postgresql://host/" + "p" * 70, "0" * 64, 4, "float32", True, False, None, rows=12_345_678)
    for k in range(60):
        journal.log(f"event {k} " + "of which there is much to say " * 5)
    journal.passes = [{"rows": 12_345_678, "written": 0, "removed": 0, "old": "0" * 32}]
    score = {"value": 0.91, "low": 0.88, "high": 0.94}
    store = {name: score for name in ("agreement", "overlap@10", "cosine", "accuracy", "recall@10")}
    points = [{"share": k / 20, **score} for k in range(9)]
    lines = {"new model": 0.95, "old model": 0.9}
    reembedding = {
        "stages": [{"n_rows": 12_345_678, "n_embedded": 617_283 * k, "store": store} for k in range(9)],
        "picture": {"metric": "accuracy", "stages": points[:5], "forecast": points[4:], "lines": lines},
    }
    return render_migration(summarize_journal(journal), reembedding=reembedding)


def story():
    """The demo's page, with words that do not fit."""
    item = found(load_sample("emoji"))
    scores = {"encoded": 1500, "right": 3, "same": 3, "precision": 0.9, "overlap": 0.9}
    strategy = {"name": "map, and re-embed the worst 12%", "value": 0.9, "low": 0.8, "high": None, "share": 0.12}
    words = {"headline": "map now " * 9, "reason": "because " * 9, "measure": "graded_text_overlap@10", "pairs": 200}
    facts = {
        **{
            "query": "long words " * 6,
            "chosen": False,
            "rows": 1500,
            "names": 50,
            "shown": 10,
            "store": "LanceDB table",
        },
        **{
            "models": {"a" * 60: "old " * 9, "b": "new"},
            "photos_of_each_model": 2500,
            "licences": ["by somebody " * 30],
        },
        **{"identical": True, "same_lists": True, "certificate": {**words, "costs": [strategy] * 6}},
        "licences": ["by somebody " * 30],
        "places": [{"name": "encoder changed", "note": "note " * 9, "found": item * 2, **scores} for _ in range(5)],
        "steps": {"before": 0.9, "switched": 0.9, "rolled back": 0.9},
    }
    return render_story(facts)


@pytest.fixture(
    scope="module", params=[report, training, migration, story, certificate], ids=lambda write: write.__name__
)
def page(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(request.param(), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_renders_without_console_errors(page, look, width, dark):
    image = pytest.importorskip("PIL.Image")
    tab = look(page, width=width, height=3000, dark=dark)
    picture = np.asarray(image.open(io.BytesIO(tab.picture())).convert("RGB")).astype(np.int16)
    assert not tab.said()
    assert picture.shape == (3000, width, 3)
    background = picture[-1, 2]
    assert (background.mean() < 64) if dark else (background.mean() > 240)
    # Something is drawn all the way down, in more than one colour.
    drawn = np.abs(picture - background).max(axis=2) > 40
    end = min(3000, int(tab.evaluate("document.querySelector('footer').getBoundingClientRect().bottom")))
    assert all(part.mean() > 0.005 for part in np.array_split(drawn[:end], end // 300))
    colourful = picture.max(axis=2) - picture.min(axis=2) > 60
    assert colourful.mean() > 5e-4


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_and_words_are_large_enough(page, look, width):
    inner, scroll, wide, clipped, smallest, cells, hidden = look(page, width=width, height=2000).evaluate("""(() => {
      const small = [...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height);
      const wide = [...document.querySelectorAll('body *:not(.scroll *)')].filter(
        e => getComputedStyle(e).position !== 'absolute' && e.getBoundingClientRect().right > innerWidth + 1);
      const clipped = [...document.querySelectorAll('svg')].filter(s => [...s.querySelectorAll('text')].some(t => {
        const a = t.getBoundingClientRect(), b = s.getBoundingClientRect();
        return a.left < b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 1; }));
      const shown = [...document.querySelectorAll('.stack td')].filter(c => c.getClientRects().length);
      const hidden = shown.filter(c => { const b = c.getBoundingClientRect();
        return b.width < 1 || b.left < 0 || b.right > innerWidth + 1 || c.scrollWidth > c.clientWidth + 1; });
      return [innerWidth, document.documentElement.scrollWidth, wide.length,
        clipped.length, Math.min(...small), shown.length, hidden.length];
    })()""")
    assert inner == width
    assert scroll <= width
    assert wide == 0
    assert clipped == 0
    assert smallest is None or round(smallest, 1) >= 11  # a page without plots has none
    # Every number of a table that becomes cards is inside the window without scrolling.
    assert (cells > 5) == ('class="stack"' in page.read_text(encoding="utf-8"))
    assert hidden == 0


@pytest.mark.parametrize(
    "bad",
    [
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'"><img src=x.png>',
        "<script>console.log(1)</script>",
        "<script>nonsense()</script>",
    ],
)
def test_this_browser_does_report_errors(look, tmp_path, bad):
    """Without this, the silence above would prove nothing."""
    (tmp_path / "bad.html").write_text(bad, encoding="utf-8")
    tab = look(tmp_path / "bad.html", width=400, height=300)
    tab.picture()
    assert tab.said()
