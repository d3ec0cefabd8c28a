"""The blind pack in a real browser: rated with the keyboard alone, saved, and taken back. Skipped where there is none."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.browser

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

from refkv_policy.quality.abpack import Shown, key_path, read_ratings, write_pack  # noqa: E402

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update")  # fmt: skip
PATIENCE = 120.0


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """A browser that saves into a folder of the test."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no chromium with chromedriver on this machine (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(tmp_path / "saved")})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    chrome.set_page_load_timeout(2 * PATIENCE)
    yield chrome
    chrome.quit()


def _until(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_a_rater_needs_only_the_keyboard(browser: Any, tmp_path: Path) -> None:
    """Name, answers, one of them taken back, a reload in between, the saved file read back; nothing in the console."""
    grey = [np.full((3, 16, 16, 3), level, np.uint8) for level in (40, 200)]
    write_pack(tmp_path / "pack", [Shown(f"{i}", 0, *grey, 8.0) for i in range(3)], {"table": "t"}, random.Random(1))
    page = (tmp_path / "pack" / "index.html").as_uri()
    (tmp_path / "saved").mkdir()
    browser.get(page)

    def press(*keys: str) -> None:
        browser.switch_to.active_element.send_keys(*keys)

    def count() -> str:
        return browser.find_element("id", "count").text

    browser.find_element("id", "rater").send_keys("Ann <1>", Keys.ENTER)
    _until(lambda: count() == "Pair 1 of 4")
    _until(lambda: browser.execute_script("return document.getElementById('video').readyState >= 2"))
    body = browser.find_element("tag name", "body")
    body.send_keys(Keys.ARROW_DOWN)
    assert count() == "Pair 2 of 4"
    body.send_keys("1")
    body.send_keys(Keys.BACKSPACE)
    assert count() == "Pair 2 of 4"
    assert browser.find_element("id", "left").get_attribute("aria-pressed") == "true"
    body.send_keys("3")
    browser.get(page)
    browser.find_element("id", "begin").click()
    _until(lambda: count() == "Pair 3 of 4")
    body = browser.find_element("tag name", "body")
    body.send_keys("2", "2")
    _until(lambda: browser.find_element("id", "end").is_displayed())
    press(Keys.ENTER)
    saved = _until(lambda: list((tmp_path / "saved").glob("answers-Ann_1_.json")))
    ratings = read_ratings(key_path(tmp_path / "pack"), saved, {"table": "t"})
    assert (ratings.raters, ratings.answers + ratings.controls) == (1, 4)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
