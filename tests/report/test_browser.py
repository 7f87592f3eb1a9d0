"""The pages of maps in a real browser: they render at both widths, fit, and the console stays silent."""

from __future__ import annotations

import html
import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from test_training_page import make, trained

import congruence
from congruence.datasets import load_sample
from congruence.report import summarize, summarize_training, write_report, write_training

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian package of that name)")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)


def browse(page, tmp_path, *options):
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def report(path):
    sample = load_sample()
    mapping = congruence.fit(
        sample.source["image"],
        sample.target["image"],
        holdout=0.5,
        groups=None,
        check=False,
        means={"text": (sample.source["text"], sample.target["text"])},
    )
    write_report(path, summarize(mapping, sample, repeats=2))


def training(path):
    """Long words, many tasks and many examples, so that the page is as long and as crowded as they come."""
    image = pytest.importorskip("PIL.Image")
    data = make(images=60, k=2)
    mapping = trained(data)
    pictures = {
        name: image.new("RGB", (200, 300 - i), (4 * i, 90, 200 - 3 * i))
        for i, name in enumerate(np.unique(data.groups))
    }
    tasks = [f"kind {i % 5} of thing that goes wrong in a caption" for i in range(120)]
    words = ["a dog on a mat " * 3 + f"no-{'very' * 20}-{i}" for i in range(120)]
    wrong = [[f"a cat on {text}", f"a mat on {text}"] for text in words]
    rows = {"groups": data.groups, "tasks": tasks, "texts": (words, wrong), "pictures": pictures}
    write_training(path, summarize_training(mapping, data.X, data.Y, data.N, **rows, held_out=False, examples=9))


@pytest.fixture(scope="module", params=[report, training], ids=lambda write: write.__name__)
def page(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    request.param(path)
    return path


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_renders_without_console_errors(page, tmp_path, width, dark):
    image = pytest.importorskip("PIL.Image")
    shot = tmp_path / "shot.png"
    options = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    run = browse(page, tmp_path, f"--window-size={width},3000", f"--screenshot={shot}", *options)
    assert "CONSOLE" not in run.stderr, run.stderr
    picture = np.asarray(image.open(io.BytesIO(shot.read_bytes())).convert("RGB")).astype(int)
    assert picture.shape == (3000, width, 3)
    background = picture[-1, 2]
    assert (background.mean() < 64) if dark else (background.mean() > 240)
    # Something is drawn all the way down, in more than one colour.
    drawn = np.abs(picture - background).max(axis=2) > 40
    assert (drawn.reshape(10, 300, -1).mean(axis=(1, 2)) > 0.01).all()
    colourful = picture.max(axis=2) - picture.min(axis=2) > 60
    assert colourful.mean() > 0.005


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_and_words_are_large_enough(page, tmp_path, width):
    """Measured inside a frame of that width, in a copy that may run a script."""
    script = """<script>
      const small = [...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height);
      const wide = [...document.querySelectorAll('body *:not(.scroll *)')].filter(
        e => getComputedStyle(e).position !== 'absolute' && e.getBoundingClientRect().right > innerWidth + 1);
      const clipped = [...document.querySelectorAll('svg')].filter(s => [...s.querySelectorAll('text')].some(t => {
        const a = t.getBoundingClientRect(), b = s.getBoundingClientRect();
        return a.left < b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 1; }));
      const shown = [...document.querySelectorAll('.stack td')].filter(c => c.getClientRects().length);
      const hidden = shown.filter(c => { const b = c.getBoundingClientRect();
        return b.width < 1 || b.left < 0 || b.right > innerWidth + 1 || c.scrollWidth > c.clientWidth + 1; });
      parent.document.title = ['w', innerWidth, document.documentElement.scrollWidth, wide.length,
        clipped.length, Math.min(...small).toFixed(1), shown.length, hidden.length, 'w'].join(' ');
    </script></body>"""
    text = re.sub("<meta http-equiv[^>]*>", "", page.read_text(encoding="utf-8")).replace("</body>", script)
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<!DOCTYPE html><title></title><iframe style="width:{width}px;height:2000px;border:0" srcdoc="{html.escape(text)}"></iframe>',
        encoding="utf-8",
    )
    run = browse(frame, tmp_path, "--window-size=1400,900", "--dump-dom", "--virtual-time-budget=3000")
    found = re.search(r"<title>w (\d+) (\d+) (\d+) (\d+) ([\d.]+) (\d+) (\d+) w</title>", run.stdout)
    assert found, run.stderr[-2000:]
    inner, scroll, wide, clipped, smallest, cells, hidden = map(float, found.groups())
    assert inner == width
    assert scroll <= width
    assert wide == 0
    assert clipped == 0
    assert smallest >= 11
    # Every number of a table that becomes cards is inside the window without scrolling.
    assert (cells > 20) == ('class="stack"' in text)
    assert hidden == 0


def test_this_browser_does_report_errors(tmp_path):
    """Without this, the silence above would prove nothing."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'"><img src=x.png>', encoding="utf-8"
    )
    run = browse(bad, tmp_path, f"--screenshot={tmp_path / 'x.png'}")
    assert "CONSOLE" in run.stderr
