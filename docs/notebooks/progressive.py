# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Re-embed the worst rows first
#
# A map converts a whole store in minutes, but it is wrong for some rows. `Progressive` orders the rows by how unsure
# the map is about them, refits the map on the rows that were re-embedded, and estimates the quality of the whole store
# from random rows. The data here are synthetic, so the true classes are known.

# %%
import matplotlib.pyplot as plt
import numpy as np

from congruence import Progressive, fit
from congruence.synthetic import upgrade_problem

world = upgrade_problem(900, 32, 48, source_noise=0.9, target_noise=0.5, classes=40, random_state=0)
names = np.arange(40)


def class_texts(texts):
    """One text per class: the mean of its texts, at unit norm."""
    means = np.array([texts[world.labels == k].mean(0) for k in names])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


old_texts, new_texts = class_texts(world.source_texts), class_texts(world.target_texts)


def accuracy(images, texts):
    """Share of images whose nearest text is that of their class."""
    return np.mean(np.argmax(images @ texts.T, axis=1) == world.labels)


pairs = np.arange(60)
first = fit(world.source_images[pairs], world.target_images[pairs], modality="image", holdout=0)
print(
    f"old model {accuracy(world.source_images, old_texts):.3f}, new model "
    f"{accuracy(world.target_images, new_texts):.3f}"
)

# %% [markdown]
# ## Least certain rows first, or random rows
#
# The next cell re-embeds up to half of the store in batches of 90 rows: once in the order of `Progressive`, and once in
# random order.

# %%
shares = {}
for order in ("auto", "random"):
    plan = Progressive(
        first, world.source_images, texts=old_texts, new_texts=new_texts, modality="image", order=order, random_state=0
    )
    known, curve = [], [(0.0, accuracy(plan.mapped(), new_texts))]
    for rows in plan.batches(size=90, share=0.5):
        plan.update(rows, world.target_images[rows])
        known = [*known, *rows]
        store = plan.mapped()
        store[known] = world.target_images[known]
        curve.append((len(known) / 900, accuracy(store, new_texts)))
    shares[order] = np.array(curve)

figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
for order, curve in shares.items():
    axis.plot(*curve.T, marker="o", label=order)
axis.axhline(accuracy(world.target_images, new_texts), linestyle=":", color="gray")
axis.set(xlabel="share of the store re-embedded (dotted: all of it)", ylabel="accuracy")
_ = axis.legend()

# %% [markdown]
# ## Without labels
#
# A real library has no labels. `meter` estimates how well the store agrees with the new model from re-embedded rows
# that were drawn at random, with a 95 % interval.
#
# The class texts are known to the plan here. Queries that are not known beforehand gain less from the worst rows:
# `LazySearch` encodes what they ask for.

# %%
print(plan.meter())
