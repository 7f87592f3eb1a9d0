"""Train from files: a recipe names the files, the method and its parameters, and ``run_recipe`` reads, splits,
trains and scores.
"""

from congruence.recipe.plan import Recipe, make_recipe, read_recipe
from congruence.recipe.run import Run, run_recipe

__all__ = ["Recipe", "Run", "make_recipe", "read_recipe", "run_recipe"]
