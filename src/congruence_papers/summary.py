"""Text below every table and figure: the data, the draws, and the paper's claim and whether it held."""

from __future__ import annotations

from congruence_papers.plain import ExperimentResults
from congruence_papers.registry import kinds

__all__ = ["claim_lines", "data_lines", "note_lines"]


def claim_lines(results: ExperimentResults) -> list[str]:
    """Return a paper's claim and whether it held as lines of text.

    Parameters
    ----------
    results : mapping
        As for :func:`congruence_papers.run`.

    Returns
    -------
    list of str
    """
    held = results["held"]
    words = {
        "yes": "yes, in every case checked",
        "no": "no, in no case checked",
        "partly": "partly",
        "not checked": f"not checked: {held.get('why')}",
    }
    lines = [
        f"The paper's claim, for its own models and data: {results['claim']}",
        f"Held here: {words[held['verdict']]}.",
    ]
    for rule in held["rules"]:
        count = f"{rule['held']} of {rule['of']}" if rule["of"] else "not measured"
        lines.append(f"  {count}: {rule['rule']}")
    return lines


def data_lines(results: ExperimentResults) -> list[str]:
    """Return a description of the data as lines of text: names, numbers of rows, split and seeds.

    Parameters
    ----------
    results : mapping
        As for :func:`congruence_papers.run`.

    Returns
    -------
    list of str
    """
    study = kinds()[results["config"]["kind"]]
    lines = []
    for data in results["data"]:
        counts = study.count(data)
        lines.append(f"Data: {data['title']} ({data['name']}), {counts}.")
    seeds = ", ".join(map(str, results["seeds"]))
    lines.append(f"Seeds: {seeds}. Resampled: {results['resampled']}.")
    if results["stands_for"]:
        models = "; ".join(results["stands_for"]["models"])
        lines.append(f"Stand-in for {models} on {', '.join(results['stands_for']['data'])}, which have not been run.")
    return lines


def note_lines(results: ExperimentResults) -> list[str]:
    """Return the notes needed to interpret the results: those of the run, and those of each of its data.

    Parameters
    ----------
    results : mapping
        As for :func:`congruence_papers.run`.

    Returns
    -------
    list of str
    """
    lines = [*results["notes"]]
    for data in results["data"]:
        notes = data["notes"]
        lines += map(str, notes if isinstance(notes, list) else ())
    return lines
