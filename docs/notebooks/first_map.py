# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Two spaces, one rotation
#
# Two models have encoded the same emoji. They differ in architecture and objective, and were trained on different
# pictures and captions. Are their embeddings the same up to a rotation? The sample is part of the package, so nothing
# is downloaded.

# %%
import matplotlib.pyplot as plt
import numpy as np

import congruence
from congruence.datasets import load_sample

sample = load_sample("emoji")
old, new = sample.source, sample.target
order = np.random.default_rng(0).permutation(old["image"].ids)
known, asked = order[:800], order[800:]
print(len(known), "emoji to fit on,", len(asked), "to ask")

# %% [markdown]
# ## The axes differ, the angles agree
#
# Left: the cosine between an emoji's vectors in the two models. Right: cosines *between* emoji, in the old model and in
# the new one.

# %%
first, second = old["image"].take(asked).vectors, new["image"].take(asked).vectors
rows, columns = np.random.default_rng(1).integers(0, len(asked), (2, 3000))
inner = [(side[rows] * side[columns]).sum(1) for side in (first, second)]

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.hist((first * second).sum(1), bins=40)
left.set(xlabel="cosine of an emoji with itself, across models", xlim=(-1, 1), yticks=[])
right.plot(*inner, ".", markersize=2, alpha=0.5)
right.set(xlabel="cosine of two emoji, old model", ylabel="the same, new model")
print(f"correlation of the angles: {np.corrcoef(*inner)[0, 1]:.2f}")

# %% [markdown]
# ## Fit on pictures, evaluate on texts
#
# If a rotation maps the pictures, it also maps the texts, about the mean of the texts. The next cell therefore fits the
# map on pictures, and measures how often the text of an unseen emoji retrieves the same text as encoded by the other
# model.

# %%
mapping = congruence.fit(
    old["image"].take(known),
    new["image"].take(known),
    means={"text": (old["text"].take(known).vectors, new["text"].take(known).vectors)},
)
scores = congruence.evaluate(mapping, {"text": old["text"].take(asked)}, {"text": new["text"].take(asked)})
for one in scores.rows:
    print(f"{one.metric:<10} {one.query} against {one.against}: {one.before:.3f} unmapped, {one.after:.3f} mapped")

# %% [markdown]
# ## Compare cosines with controls
#
# A mapped row is close to the new model's mean even if the rotation is wrong. A cosine must therefore be compared with
# two controls: all rows placed at that mean, and a random rotation about the correct means.

# %%
mapped = mapping.transform_embeddings(old["text"].take(asked), modality="text").vectors
target = new["text"].take(asked).vectors
mean = target.mean(0) / np.linalg.norm(target.mean(0))
turn = np.linalg.qr(np.random.default_rng(0).normal(size=(target.shape[1],) * 2))[0]
turned = (mapped - mapped.mean(0)) @ turn + target.mean(0)
turned /= np.linalg.norm(turned, axis=1, keepdims=True)

figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
for name, rows in (("mapped", mapped), ("constant", np.broadcast_to(mean, target.shape)), ("random rotation", turned)):
    axis.hist((rows * target).sum(1), bins=40, alpha=0.6, label=name)
axis.set(xlabel="cosine with the new model's own vector", yticks=[])
_ = axis.legend()

# %% [markdown]
# The gain of the map is the distance by which its cosines lie to the right of both controls. The next notebook measures
# how many pairs this takes.
