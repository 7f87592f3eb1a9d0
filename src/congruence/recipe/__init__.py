"""Training from files: a recipe says what is trained on what, and :func:`run_recipe` reads, divides, trains and measures."""

from congruence.recipe.plan import Recipe, make_recipe, read_recipe
from congruence.recipe.run import Run, run_recipe

__all__ = ["Recipe", "Run", "make_recipe", "read_recipe", "run_recipe"]
