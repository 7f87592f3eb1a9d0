"""The documentation site: what is collected, made of the code, built by Zensical, and checked."""
