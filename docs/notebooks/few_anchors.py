# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # How many pairs
#
# Pairs are items that both models have encoded. Each costs an encoding, so how many does a map need? With fewer pairs
# than dimensions, the textbook solution rotates the directions that no pair spans arbitrarily. `OrthogonalMap` keeps
# the directions that the pairs support, and shrinks the others.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np

from congruence import OrthogonalMap, certify
from congruence.errors import DegenerateWarning
from congruence.synthetic import rigid_problem

problem = rigid_problem(1200, 64, noise=0.6, random_state=0)
X, Y = problem.X, problem.Y
fitted, asked = np.arange(800), np.arange(800, 1200)


def recall(mapping):
    """Share of the other rows whose own partner is the nearest."""
    mapped = mapping.transform(X[asked])
    mapped = mapped / np.linalg.norm(mapped, axis=1, keepdims=True)
    target = Y[asked] / np.linalg.norm(Y[asked], axis=1, keepdims=True)
    return np.mean(np.argmax(mapped @ target.T, axis=1) == np.arange(len(asked)))


# %% [markdown]
# ## The curve
#
# The plot shows the mean of five random samples of the pairs at each size; the band is one standard deviation. Below 64
# pairs, the textbook solution warns that it fills some directions arbitrarily. The next cell silences this warning,
# because that effect is what the plot shows.

# %%
warnings.simplefilter("ignore", DegenerateWarning)
sizes = [5, 10, 20, 40, 64, 100, 200, 400]
methods = {"default": {}, "full (textbook)": {"shrinkage": "full"}}
curves = {name: np.zeros((5, len(sizes))) for name in methods}
for draw in range(5):
    order = np.random.default_rng(draw).permutation(fitted)
    for place, size in enumerate(sizes):
        for name, options in methods.items():
            curves[name][draw, place] = recall(OrthogonalMap(**options).fit(X[order[:size]], Y[order[:size]]))

figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
for name, curve in curves.items():
    mean, spread = curve.mean(0), curve.std(0, ddof=1)
    axis.plot(sizes, mean, marker="o", label=name)
    axis.fill_between(sizes, mean - spread, mean + spread, alpha=0.2)
axis.axvline(64, linestyle=":", color="gray")
axis.set(xscale="log", xlabel="pairs (dotted: as many as dimensions)", ylabel="own partner is the nearest")
axis.legend()
for name, curve in curves.items():
    print(f"{name:<16}", " ".join(f"{value:.2f}" for value in curve.mean(0)))

# %% [markdown]
# ## Where more pairs do not help
#
# The curve levels off once noise, and no longer the uncertainty of the rotation, limits the result. `certify`
# (`congruence check` in a shell) computes this curve from your own pairs, extrapolates it, and says how many more items
# would settle an undecided verdict.

# %%
certificate = certify(X[:150], Y[:150])
print(certificate.verdict.headline)
_ = certificate.plot_learning_curve()
