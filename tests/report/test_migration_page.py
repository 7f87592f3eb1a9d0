"""The page of a migration: what readers see comes first, every check and event is named, and words are escaped."""

import json

import numpy as np
import pytest

from congruence import fit
from congruence.errors import CorruptFileError, MigrationError
from congruence.report import read_migration, read_reembedding, render_migration
from congruence.synthetic import upgrade_problem
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.native import save_plan
from congruence.upgrade.progressive import Progressive

CHECKSUM = "8e14b4f5a76ac51bbcd19389f09c93e4"


@pytest.fixture
def journal():
    options = {"normalize": True, "scale": False, "modality": "text", "state": "verified", "rows": 1234, "resumed": 2}
    place = "postgresql://anna:***@host/shop, items <b>"
    made = Journal(place, "0549c031c661313a" * 4, 4, "float16", **options)
    made.log("begun: 1,234 rows")
    made.passes = [{"rows": 1234, "written": 7, "removed": 3, "old": CHECKSUM}]
    made.verification = {
        **{"passed": True, "rows_old": 1234, "rows_new": 1234, "read_back": 1000, "wrong": 0, "problems": []},
        **{"k": 10, "index_recall": 0.987, "index_recall_old": None, "checksum_new": CHECKSUM},
        "heldout": {"queries": 40, "recall@1": 0.625},
    }
    return made


def test_state_checks_walks_and_events_are_named(journal, tmp_path):
    journal.write(tmp_path)
    page = render_migration(read_migration(tmp_path))
    for words in ("shop, items &lt;b&gt;</h1>", "<dd>1,234</dd>", "0.987", "recall@1</dt><dd>0.625", CHECKSUM):
        assert words in page
    assert "begun: 1,234 rows" in page
    assert "<b>" not in page
    assert "The same searches" not in page


def test_the_command_takes_the_folder_of_a_journal(here, journal, tmp_path):
    folder = tmp_path / "migration-shop"
    folder.mkdir()
    journal.write(folder)
    done = here("report", folder, "-o", tmp_path / "m.html").ends(0)
    assert "verified, 1,234 rows\nReport: " in done.out
    assert "Comparing passes" in (tmp_path / "m.html").read_text(encoding="utf-8")
    assert json.loads(here("report", folder, "-o", tmp_path / "n.html", "--json").out)["resumed"] == 2
    here("report", folder, "sample", "-o", tmp_path / "o.html").refused("Got DATA for the journal of a migration")
    assert here("report", folder, "-o", tmp_path / "m.html").code == 2  # it is there already


def test_a_folder_without_a_journal_and_a_damaged_one_are_refused(here, journal, tmp_path):
    with pytest.raises(MigrationError, match="no journal"):
        read_migration(tmp_path)
    journal.write(tmp_path)
    path = tmp_path / "journal.json"
    path.write_text(path.read_text().replace("1234", "1235"))
    with pytest.raises(CorruptFileError, match="damaged or was edited"):
        read_migration(tmp_path)
    assert "damaged or was edited" in here("report", tmp_path, "-o", tmp_path / "m.html").err


@pytest.fixture(scope="module")
def plan():
    p = upgrade_problem(n=300, d_source=12, random_state=0)
    old, new = p.source_texts[:40], p.target_texts[:40]
    mapping = fit(old, new, method="orthogonal", check=False)
    made = Progressive(mapping, p.source_images, texts=old, new_texts=new, meter_share=0.5)
    for ids in made.batches(size=50, budget=100):
        made.update(ids, p.target_images[ids])
    return made, (old, new)


@pytest.mark.parametrize("forecast", [True, False])
def test_each_stage_of_reembedding_stands_in_a_table_and_the_picture(here, journal, plan, tmp_path, forecast):
    folder = tmp_path / "migration-shop"
    folder.mkdir()
    journal.write(folder)
    assert read_reembedding(folder) is None
    assert "Re-embedding" not in render_migration(read_migration(folder))
    made, texts = plan
    save_plan(made, folder / "progressive", np.zeros(100, np.uint64), None, None, texts, forecast=forecast)
    found = read_reembedding(folder)
    assert [one["n_embedded"] for one in found["stages"]] == [50, 100]
    picture = made.picture(forecast=forecast)
    assert found["picture"]["metric"] == "agreement"
    for part in ("stages", "forecast"):
        for result, wanted in zip(found["picture"][part], picture[part], strict=True):
            assert result == pytest.approx(wanted, nan_ok=True)
    assert bool(found["picture"]["forecast"]) is forecast
    assert here("report", folder, "-o", tmp_path / "m.html").code == 0
    page = (tmp_path / "m.html").read_text(encoding="utf-8")
    last = made.history_[-1].store["agreement"]
    for words in (
        '<h2 id="reembedding">Re-embedding</h2>',
        'aria-label="agreement by share re-embedded"',
        '33.3% <span class="note">100 rows</span>',
        f'{last.value:.3f} <span class="note">{last.low:.3f} … {last.high:.3f}</span>',
    ):
        assert words in page
    assert ("forecast, without refitting the map" in page) is forecast


@pytest.mark.parametrize("state", ["filling", "filled", "verified", "switched", "rolled back", "dropped"])
def test_every_state_has_its_words(journal, tmp_path, state):
    journal.state, journal.passes = state, []
    journal.verification = {} if state == "filling" else journal.verification
    journal.write(tmp_path)
    side = "new" if state in ("switched", "dropped") else "old"
    assert f"<strong>{state}</strong>Readers see the {side} vectors" in render_migration(read_migration(tmp_path))
