import shutil

import pytest
from browser import Browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs chromium (Debian package of that name)")
    browser = Browser(CHROMIUM, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def look(chromium):
    """Return a function that opens a page in a real browser until the end of the test."""
    tabs = []

    def show(path, **window):
        tabs.append(chromium.open(path, **window))
        return tabs[-1]

    yield show
    for tab in tabs:
        tab.close()
