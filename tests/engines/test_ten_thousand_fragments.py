"""Ten thousand fragments on a simulated cluster: the journal's arithmetic, and the plan's."""

import heapq
import json
import math
import tracemalloc

import numpy as np
import pytest

from congruence.engines.planning import DRIVER_BYTES, Machines, Rates, plan_rows
from congruence.io import jobs as journals
from congruence.io.dataset import Fragment
from congruence.io.jobs import MOST_RECEIPTS, SECONDS, FragmentJournal, Receipt
from congruence.io.locations import Location

pytestmark = pytest.mark.long

N, WORKERS = 10_000, 64


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


class Cluster:
    """An attempt that dies is begun again, and a straggler is run a second time beside itself."""

    def __init__(self, clock, rng):
        self.clock, self.rng = clock, rng
        self.attempts = self.deaths = self.preempted = self.speculative = 0

    def run(self, fragments):
        """Yield the fragments in the order in which attempts end well: some twice."""
        waiting, running = list(reversed(fragments)), []
        next_preemption = self.clock.now + self.rng.exponential(200)
        tie = 0

        def begin(fragment, times=1.0):
            nonlocal tie
            slow = self.rng.random() < 0.01
            span = self.rng.lognormal(3, 0.3) * (20 if slow else 1) * times
            dies = self.rng.random() < 0.05
            tie += 1
            self.attempts += 1
            end = self.clock.now + span * (self.rng.random() if dies else 1)
            heapq.heappush(running, (end, tie, fragment, dies))
            if slow and not dies and times == 1.0:
                self.speculative += 1
                begin(fragment, 1.01)

        while waiting or running:
            while waiting and len(running) < WORKERS:
                begin(waiting.pop())
            end, _, fragment, dies = heapq.heappop(running)
            self.clock.now = end
            if end > next_preemption:  # a quarter of the machines is taken away with what runs there
                next_preemption = end + self.rng.exponential(200)
                gone = running[: len(running) // 4]
                running = running[len(running) // 4 :]
                heapq.heapify(running)
                self.preempted += len(gone)
                waiting += [one[2] for one in gone]
            if dies:
                self.deaths += 1
                waiting.append(fragment)
            else:
                yield fragment


def test_every_fragment_counts_once(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    clock = Clock()
    monkeypatch.setattr(journals, "time", clock)
    monkeypatch.setattr(journals, "_SECONDS_LOCAL", SECONDS)
    monkeypatch.setattr("os.fsync", lambda handle: None)  # no machine loses its power here
    sizes = rng.integers(1, 100_000, N)
    fragments = tuple(Fragment(f"part-{k:05d}", "", int(size), 0) for k, size in enumerate(sizes))
    job = {"seed": 0}, fragments
    kills = sorted(rng.integers(500, N, 5).tolist())  # results after which a driver is killed
    cluster = Cluster(clock, rng)
    place = Location.of(tmp_path / "journal")
    delivered = again = lost = segments = runs = 0
    noted: set[str] = set()
    while True:
        runs += 1
        journal = FragmentJournal(place, *job).open()
        assert noted <= set(journal.finished)  # what was on the disk is still there
        assert len(noted) == journal.resumed
        began, here = clock.now, 0
        for fragment in cluster.run(journal.pending()):
            delivered += 1
            here += 1
            again += not journal.add(Receipt(fragment.name, fragment.rows))
            if kills and delivered >= kills[0]:
                kills.pop(0)
                break
        else:
            journal.flush()
        written = len(list((tmp_path / "journal").glob("done-*"))) - segments
        segments += written
        assert written <= here / MOST_RECEIPTS + (clock.now - began) / SECONDS + 1
        noted = set(FragmentJournal(place, *job).open().finished)
        lost += len(journal.finished) - len(noted)
        assert len(journal.finished) - len(noted) < MOST_RECEIPTS
        if not journal.pending():
            break
    whole = FragmentJournal(place, *job).open()
    assert runs == 6
    assert whole.total("rows") == sizes.sum()
    assert [one.fragment for one in whole.receipts()] == [one.name for one in fragments]
    # Every result is a receipt on the disk, one that came a second time, or one that was lost with its driver.
    assert delivered == N + again + lost
    assert cluster.deaths > 300
    assert cluster.preempted > 10
    assert again > 30
    files = [json.loads(file.read_bytes()) for file in (tmp_path / "journal").glob("done-*")]
    receipts = [one["fragment"] for file in files for one in file["receipts"]]
    assert sorted(receipts) == sorted(set(receipts)), "a receipt that is on the disk is not written again"


def test_what_the_driver_keeps_of_a_fragment(tmp_path):
    tracemalloc.start()
    try:
        names = [f"day={k % 30}/part-{k:05d}" for k in range(2000)]
        fragments = tuple(Fragment(name, f"{name}.parquet", 83_000, 2**28) for name in names)
        journal = FragmentJournal(Location.of(tmp_path / "journal"), {}, fragments).open()
        for one in fragments:
            journal.add(Receipt(one.name, one.rows, size=2**28, path=one.path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / len(fragments) < DRIVER_BYTES


def test_a_plan_adds_up():
    rates = Rates(read=200_000, product=50_000, write=100_000, place="here")
    assert rates.rows == pytest.approx(1 / (5e-6 + 20e-6 + 10e-6))
    machines = Machines(count=10, cores=8, memory=64, network=100, price=2.0, lost=0.1)
    plan = plan_rows(10**9, 768, 1024, rates=rates, machines=machines, payload=10)
    assert plan["bytes_read"] == 10**9 * (768 * 4 + 10)
    assert plan["bytes_written"] == 10**9 * (1024 * 4 + 10)
    assert plan["fragments"] == math.ceil(plan["bytes_read"] / 2**28)
    assert plan["core_hours"] == pytest.approx(1e9 * 35e-6 / 3600 * 1.1)
    assert plan["hours"] == pytest.approx(plan["core_hours"] / 80)
    assert plan["bound"] == "cores"
    assert plan["cost_machines"] == pytest.approx(plan["hours"] * 20)
    assert plan["gets"] == math.ceil(plan["fragments"] * 1.1 * (3 + 16))
    assert plan["checks"][0]["name"].startswith("memory of the machines for a rebuilt graph index")
    assert plan["checks"][0]["share"] == pytest.approx(1e9 * (4096 + 128) / 640e9)
    assert [one["share"] for one in plan["checks"]] == sorted((one["share"] for one in plan["checks"]), reverse=True)
    slow = plan_rows(10**9, 768, 1024, rates=rates, machines=Machines(count=10, cores=64, network=0.1, lost=0.1))
    assert slow["bound"] == "network"
    assert slow["hours"] == pytest.approx((slow["bytes_read"] + slow["bytes_written"]) * 1.1 * 8 / 1e9 / 3600)
    one = plan_rows(1000, 768, 768, rates=rates, machines=machines)
    assert (one["fragments"], one["hours"]) == (1, pytest.approx(one["core_hours"]))  # one fragment keeps one core busy


def test_the_command_measures_and_says_what_breaks_first(here, monkeypatch, tmp_path):
    monkeypatch.setattr("congruence.engines.planning._MEASURED_BYTES", 2**20)
    result = here("lab plan", "1e9", "64", "--dim-out", "96", "--where", tmp_path, "--json")
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    rates = facts["rates"]
    assert rates["rows"] == pytest.approx(1 / (1 / rates["read"] + 1 / rates["product"] + 1 / rates["write"]))
    assert facts["hours"] >= facts["core_hours"] / 256
    assert not list(tmp_path.iterdir())
    said = here("lab plan", "1e9", "64", "--memory", "2").out
    assert "limits, the most heavily loaded first" in said
    assert "Quantize the index" in said
    refused = here("lab plan", "1e9", "64", "--set", "lost=1")
    assert refused.code == 2
    assert "lost" in refused.err
