"""``python -m congruence`` is ``congruence``."""

from congruence.cli import main

if __name__ == "__main__":
    main()
