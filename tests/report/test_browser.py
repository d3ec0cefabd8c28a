"""The report in a real browser: Debian's chromium, headless and offline. Skipped, with a reason, where there is none."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytest.importorskip("jinja2", reason="Jinja2 is not installed")
pytest.importorskip("av", reason="PyAV is not installed")

from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

from refkv_policy.evidence import write_evidence  # noqa: E402
from refkv_policy.report import make_report, read_inputs, write_page  # noqa: E402
from refkv_policy.video import side_by_side, write_clip  # noqa: E402
from tests.report import sample  # noqa: E402
from tests.report.test_page import HOSTILE, SHOWN  # noqa: E402

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required",
)  # fmt: skip
PATIENCE = 120.0
"""Seconds that a busy machine may take for anything."""
LEVELS = """
    const element = document.querySelector(".players");
    return [...element.querySelectorAll("canvas.panel")].map((canvas) =>
        canvas.getContext("2d").getImageData(canvas.width >> 2, canvas.height >> 1, 1, 1).data[1]);
"""
"""The grey of each panel's left half, by which the sample's frames tell their number."""
RESET = """
    const players = document.querySelector(".players").refkv;
    if (players.playing) players.pause();
    players.gain.value = "8";
    document.activeElement.blur();
    document.getElementById("keys").close();
    setTheme("auto");
    players.seek(0);
"""
PLAY = """
    const [done] = arguments;
    const seen = [];
    const begun = performance.now();
    const players = document.querySelector(".players").refkv;
    players.play();
    const look = () => {
        seen.push([...players.panels].map(({canvas, context}) =>
            context.getImageData(canvas.width >> 2, canvas.height >> 1, 1, 1).data[1]));
        const far = new Set(seen.map((each) => each[0])).size >= 8;
        if (far || performance.now() - begun > 60000) done(seen);
        else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
"""
"""Plays, and looks at the panels' pixels as often as the browser draws."""
BASES = {"input": 20, "uncached": 22, "planned": 25}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser with a profile of its own."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no chromium with chromedriver on this machine (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--window-size=1280,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    chrome.set_page_load_timeout(2 * PATIENCE)
    chrome.set_script_timeout(PATIENCE)
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything on it."""
    folder = tmp_path_factory.mktemp("page")
    write_evidence(folder / "e.json", sample.evidence())
    sample.write_log(folder / "a.jsonl", sample.deep_table(), requests=2, departing=True)
    sample.write_drift(folder / "d.json")
    given = read_inputs(folder / name for name in ("e.json", "a.jsonl", "d.json"))
    write_page(make_report(given, videos=sample.write_videos(folder)), folder / "report.html")
    return folder / "report.html"


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The browser with the page as it is when it has just been opened: its first frame drawn, nothing chosen."""
    if browser.current_url != page.as_uri():
        _open(browser, page)
    browser.execute_script(RESET)
    _until(lambda: _frame(browser) == 0)
    return browser


def _open(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    _until(lambda: _frame(browser) == 0)


def _frame(browser: Any) -> int:
    frame: int = browser.execute_script("return document.querySelector('.players').refkv.frame")
    return frame


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.05)


def _numbers(levels: list[int]) -> list[float]:
    """The frame that each panel shows, by its grey."""
    return [(level - base) / 10 for level, base in zip(levels, BASES.values(), strict=True)]


def _press(browser: Any, *keys: str) -> None:
    chain = webdriver.ActionChains(browser)
    for key in keys:
        chain = chain.send_keys(key)
    chain.perform()


def _theme(browser: Any, theme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def test_the_console_stays_silent(opened: Any) -> None:
    """No error, no warning and no violation of the policy, after loading, playing, and opening every part."""
    opened.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
    _press(opened, " ")
    _until(lambda: _frame(opened) > 2)
    _press(opened, " ", "t", "?", Keys.ESCAPE)
    assert opened.get_log("browser") == []


def test_nothing_is_fetched(opened: Any) -> None:
    """Every resource that was loaded is a blob or data of the page itself."""
    names = opened.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert all(name.startswith(("blob:", "data:")) for name in names), names


def test_panels_show_one_frame_while_playing(opened: Any) -> None:
    """Read from the pixels as often as the browser draws: all panels show the same frame, and they go forward."""
    seen = opened.execute_async_script(PLAY)
    frames = [_numbers(levels) for levels in seen]
    # Coded greys may be off by a few hundredths of a frame; a frame apart would be 1.
    assert all(max(each) - min(each) < 0.5 for each in frames), [f for f in frames if max(f) - min(f) >= 0.5]
    assert len({round(each[0]) for each in frames}) >= 4  # a busy machine drops frames; it must not mix them


def test_every_frame_is_reached_and_shown_by_stepping(opened: Any) -> None:
    """From the first frame to the last, each step shows exactly the next frame in every panel."""
    for frame in range(sample.FRAMES):
        _until(lambda frame=frame: _frame(opened) == frame)  # type: ignore[misc]
        assert [round(n) for n in _numbers(opened.execute_script(LEVELS))] == [frame] * 3
        _press(opened, Keys.ARROW_RIGHT)
    _press(opened, Keys.ARROW_RIGHT)
    assert _frame(opened) == sample.FRAMES - 1


def test_keys(opened: Any) -> None:
    """Space plays and pauses, arrows step, with shift by ten, Home and End go to the ends, g changes the gain."""
    playing = "return document.querySelector('.players').refkv.playing"
    _press(opened, Keys.END)
    _until(lambda: _frame(opened) == sample.FRAMES - 1)
    _press(opened, Keys.ARROW_LEFT)
    _until(lambda: _frame(opened) == sample.FRAMES - 2)
    webdriver.ActionChains(opened).key_down(Keys.SHIFT).send_keys(Keys.ARROW_LEFT).key_up(Keys.SHIFT).perform()
    _until(lambda: _frame(opened) == sample.FRAMES - 12)
    _press(opened, Keys.HOME)
    _until(lambda: _frame(opened) == 0)
    _press(opened, " ")
    assert opened.execute_script(playing)
    _press(opened, " ")
    assert not opened.execute_script(playing)
    gain = opened.find_element("css selector", "select.gain")
    before = gain.get_property("value")
    _press(opened, "g")
    assert gain.get_property("value") != before
    _press(opened, "?")
    assert opened.find_element("css selector", "dialog").is_displayed()
    _press(opened, Keys.ESCAPE)
    assert not opened.find_element("css selector", "dialog").is_displayed()


def test_keys_of_a_focused_control_stay_its_own(opened: Any) -> None:
    """Space on a button presses it and does not play; the arrows of the slider move it."""
    theme = opened.find_element("css selector", "#theme")
    before = theme.text
    theme.send_keys(" ")
    assert theme.text != before
    assert not opened.execute_script("return document.querySelector('.players').refkv.playing")
    opened.find_element("css selector", ".players input[type=range]").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    _until(lambda: _frame(opened) == 2)


def test_the_difference_is_what_the_pixels_say(opened: Any) -> None:
    """Its mean is that of |uncached − planned| over the canvases, worked out here; its picture is that times the gain."""
    pixels = """
        const read = (name) => {
            const canvas = document.querySelector(name);
            return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
        };
        const panels = document.querySelectorAll("canvas.panel");
        panels[1].id = "one"; panels[2].id = "other";
        return [read("#one"), read("#other"), read("canvas.difference"), document.querySelector(".gap").textContent];
    """
    one, other, shown, said = opened.execute_script(pixels)
    gaps = [abs(a - b) for n, (a, b) in enumerate(zip(one, other, strict=True)) if n % 4 != 3]
    drawn = [v for n, v in enumerate(shown) if n % 4 != 3]
    assert drawn == [min(255, 8 * gap) for gap in gaps]
    assert said == f"mean {100 * sum(gaps) / len(gaps) / 255:.2f} %, largest {100 * max(gaps) / 255:.2f} %"


def test_a_cell_of_the_heat_map_leads_to_its_frame(opened: Any) -> None:
    """Choosing a cell shows the frame, and the frame that is shown is marked in the map."""
    opened.execute_script("document.querySelector('.heat td[data-frame=\"9\"]').click()")
    _until(lambda: _frame(opened) == 9)
    marked = opened.execute_script("return [...document.querySelectorAll('td.now')].map((cell) => cell.dataset.frame)")
    assert set(marked) == {"9"}


def test_the_map_is_read_with_the_keyboard(opened: Any) -> None:
    """Arrows go from cell to cell, and what is there is said in words."""
    opened.execute_script("document.querySelector('.mapped td.cell').focus()")
    _press(opened, Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    said = opened.find_element("css selector", ".mapped .said").text
    assert said.startswith("main[0-11].text_kv, step 1 (σ 0.98")
    assert said.endswith("reused, 1 step old")
    assert _frame(opened) == 0


CONTRAST = """
    const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
    const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = rgb(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const faint = [];
    for (const element of document.querySelectorAll("main *, header *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || !element.checkVisibility() || element.closest("svg, script, option")) continue;
        const [high, low] = [light(rgb(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
        if ((high + 0.05) / (low + 0.05) < 4.5) faint.push([element.outerHTML.slice(0, 80), (high + 0.05) / (low + 0.05)]);
    }
    return faint;
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_follow_the_system_and_can_be_read(opened: Any, theme: str, tmp_path: Path) -> None:
    """The ground is light or dark as the system asks, and all text has a contrast of 4.5 : 1 on it."""
    _theme(opened, theme)
    opened.execute_script("document.documentElement.dataset.theme = 'auto'")
    ground = opened.execute_script("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(ground[:3]) > 600) == (theme == "light")
    assert opened.execute_script(CONTRAST) == []
    assert opened.get_screenshot_as_file(str(tmp_path / f"{theme}.png"))


def test_the_toggle_overrides_the_system(opened: Any) -> None:
    """Under a light system, the second press of t gives dark."""
    _theme(opened, "light")
    opened.execute_script("setTheme('auto')")
    grounds = []
    for _ in range(3):
        grounds.append(opened.execute_script("return getComputedStyle(document.body).backgroundColor"))
        _press(opened, "t")
    assert grounds[0] == grounds[1] != grounds[2]


def test_a_narrow_screen_needs_no_sideways_scrolling(opened: Any) -> None:
    """At 360 pixels wide neither the page nor any table scrolls sideways but the step × site maps; no picture is cut."""
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 360
        opened.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
        _until(lambda: opened.execute_script("return [...document.images].every((image) => image.complete)"))
        sizes = opened.execute_script(
            "return [...document.querySelectorAll('.scroll')].filter((part) => !part.querySelector('.map:not(.heat)'))"
            ".map((part) => [part.getAttribute('aria-label'), part.scrollWidth, part.clientWidth])"
        )
        assert len(sizes) >= 10
        assert [each for each in sizes if each[1] > each[2]] == []
        shown = opened.execute_script("return [...document.images].map((i) => [i.naturalWidth, i.clientWidth])")
        assert all(0 < seen <= 360 for _, seen in shown)
        assert all(natural <= 460 for natural, _ in shown), "the small drawing is shown, so its text can be read"
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [1400, 1024, 768])
def test_no_table_or_picture_is_cut_on_a_wide_screen(opened: Any, width: int) -> None:
    """With every part unfolded nothing but a step × site map is wider than its place, and no row is a tower."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        opened.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
        cut = opened.execute_script(
            "return [...document.querySelectorAll('.scroll, picture')].filter((part) => !part.querySelector('.map:not(.heat)'))"
            ".filter((part) => part.scrollWidth > part.clientWidth).map((part) => part.outerHTML.slice(0, 120))"
        )
        assert cut == []
        tallest = "return Math.max(...[...document.querySelectorAll('td')].map((cell) => cell.offsetHeight))"
        assert opened.execute_script(tallest) < 200
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_plots_turn_on_dark_ground_only(opened: Any) -> None:
    """By the system's theme and by the toggle, whichever of them counts."""
    filters = "return [...document.images].map((image) => getComputedStyle(image).filter)"
    for system, chosen, turned in (
        ("light", "auto", False), ("dark", "auto", True), ("dark", "light", False), ("light", "dark", True),
    ):  # fmt: skip
        _theme(opened, system)
        opened.execute_script("setTheme(arguments[0])", chosen)
        assert {text != "none" for text in opened.execute_script(filters)} == {turned}, (system, chosen)


def test_one_video_alone_is_not_blown_up(browser: Any, tmp_path: Path) -> None:
    """96 pixels are enlarged, and do not fill the screen."""
    write_clip(tmp_path / "output.mp4", sample.numbered(), 16)
    write_page(make_report(read_inputs([tmp_path])), tmp_path / "report.html")
    _open(browser, tmp_path / "report.html")
    assert 96 < browser.execute_script("return document.querySelector('canvas.panel').clientWidth") <= 360


def test_the_panels_of_a_run_folder_are_cut_out(browser: Any, tmp_path: Path) -> None:
    """From the one video that `refkv run` left, each panel shows its part, on the same frame."""
    clips = [(name, sample.numbered(offset=base - 20)) for name, base in BASES.items()]
    write_clip(tmp_path / "compare.mp4", side_by_side(clips), 16)
    write_page(make_report(read_inputs([tmp_path])), tmp_path / "report.html")
    _open(browser, tmp_path / "report.html")
    browser.execute_script("document.querySelector('.players').refkv.seek(11)")
    _until(lambda: _frame(browser) == 11)
    assert [round(n) for n in _numbers(browser.execute_script(LEVELS))] == [11] * 3


def test_a_hostile_report_runs_nothing(browser: Any, tmp_path: Path) -> None:
    """A page full of markup in its texts opens without a dialog, an error or an added element."""
    made = sample.scope(model=HOSTILE, gate=tuple(replace(item, why=HOSTILE) for item in sample.items()))
    write_evidence(tmp_path / "e.json", sample.evidence(made))
    write_page(make_report(read_inputs([tmp_path / "e.json"])), tmp_path / "report.html")
    browser.get((tmp_path / "report.html").as_uri())
    assert browser.execute_script("return document.querySelectorAll('img:not(.plot)').length") == 0
    assert SHOWN in browser.find_element("css selector", "td.why").text
    assert browser.get_log("browser") == []
