"""Shuffle some of the pairs of real embeddings and see what the pairing check says (the table of docs/pairing.md)."""

from __future__ import annotations

import argparse

import numpy as np

from congruence.compare.pairing import check_pairing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="../shared/data/lvis1203_clip.npz")
    with np.load(parser.parse_args().data, allow_pickle=False) as data:
        X, Y = data["text_openai_vitb32"], data["text_eva02_b16"]
    for share in (0.0, 0.05, 0.3, 1.0):
        rows = np.random.default_rng(0).permutation(len(Y))[: round(share * len(Y))]
        shuffled = Y.copy()
        shuffled[rows] = Y[np.roll(rows, 1)]
        report = check_pairing(X, shuffled)
        found = {int(name) for name in report.suspects}
        wrong = set(rows.tolist())
        print(
            f"{share:4.0%} shuffled: alignment {report.alignment:.3f}, at random {report.null_mean:.3f} ± {report.null_sd:.3f}, "
            f"p = {report.p_value:.3g}, paired {report.looks_paired}, found {len(found & wrong)} of {len(wrong)}, "
            f"accused {len(found - wrong)}"
        )


if __name__ == "__main__":
    main()
