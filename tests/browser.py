"""Debian's Chromium, driven by Playwright: what it draws, what it fetches and what it complains of."""

import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@contextmanager
def opened(page, width, *, dark=False):
    """A file in a window of that many CSS pixels; the URLs that it asked for, data apart; and its complaints."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: the page's structure alone is tested")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        requests = []
        complaints = []
        tab.on("request", lambda request: request.url.startswith("data:") or requests.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("requestfailed", lambda request: complaints.append(request.url))
        tab.goto(page.as_uri())
        yield tab, requests, complaints
        browser.close()
