# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # How similar are two spaces?
#
# A similarity score means little unless you know what unrelated rows would score. This notebook shows why, and what to
# compare the score with.

# %%
import matplotlib.pyplot as plt
import numpy as np

from congruence import compare_spaces
from congruence.metrics import cca, linear_cka, mutual_knn
from congruence.synthetic import unimodal_problem

rng = np.random.default_rng(0)

# %% [markdown]
# ## Noise has a score too
#
# Two matrices of pure noise are compared, with an increasing number of dimensions. Biased CKA and canonical
# correlations increase with the width; debiased CKA stays at zero.

# %%
widths = [4, 8, 16, 32, 64, 128]
noise = {name: [] for name in ("CKA, biased", "CKA, debiased", "CCA")}
for width in widths:
    A, B = rng.normal(size=(2, 200, width))
    noise["CKA, biased"].append(linear_cka(A, B, estimator="biased"))
    noise["CKA, debiased"].append(linear_cka(A, B))
    noise["CCA"].append(cca(A, B))

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, values in noise.items():
    axis.plot(widths, values, marker="o", label=name)
axis.set(xscale="log", xlabel="dimensions, of 200 rows of noise", ylabel="score", ylim=(-0.1, 1.05))
_ = axis.legend()

# %% [markdown]
# ## Compare a score with its null distribution
#
# Two encoders observe the same latent variable, with increasing noise. The band shows the scores of the same rows after
# random re-pairing (mean ± two standard deviations). Only the part of a score above the band is evidence of similarity.

# %%
levels = [0.2, 0.5, 1.0, 2.0, 4.0]
found = []
for level in levels:
    world = unimodal_problem(300, 48, 64, noise=level, random_state=0)
    found.append(
        {
            one.metric: one
            for one in compare_spaces(
                world.images, world.texts, ["linear_cka", "mutual_knn", "cca"], permutations=60, halves=4
            )
        }
    )

figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained", sharex=True)
for axis, metric in zip(axes, found[0], strict=True):
    scores = [one[metric] for one in found]
    low = [one.null_mean - 2 * one.null_sd for one in scores]
    high = [one.null_mean + 2 * one.null_sd for one in scores]
    axis.fill_between(levels, low, high, alpha=0.3, label="by chance")
    axis.plot(levels, [one.value for one in scores], marker="o", label="score")
    axis.set(title=metric, xscale="log", xlabel="noise", xticks=levels, xticklabels=levels)
    axis.minorticks_off()
axes[0].legend()
for metric in found[0]:
    print(f"{metric:<11} p =", ", ".join(f"{one[metric].p_value:.2f}" for one in found))

# %% [markdown]
# ## One number is not enough
#
# If the rows form two groups that are far apart, CKA depends on little else. When partners are exchanged within each
# group, CKA stays high, although neighbors agree no better than by chance within a group.

# %%
groups = np.vstack([rng.normal(size=(150, 16)) + 4, rng.normal(size=(150, 16)) - 4])
exchanged = groups[np.r_[rng.permutation(150), 150 + rng.permutation(150)]]
print(
    f"linear CKA {linear_cka(groups, exchanged):.2f}, mutual k-NN {mutual_knn(groups, exchanged):.2f} (10 of "
    f"150 would be {10 / 150:.2f})"
)
