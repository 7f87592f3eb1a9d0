"""The documentation site: collect the pages, generate those of the API and the commands, build with Zensical, and check the result."""
