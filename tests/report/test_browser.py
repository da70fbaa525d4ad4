"""The report in a real browser: it opens, sorts, switches, shows its pictures and asks nobody for anything."""

import csv
import io
import json
import math
import shutil

import pytest

pytest.importorskip("selenium", reason="selenium is not installed: the report is not tried in a browser")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromedriver on this machine")

from selenium import webdriver  # noqa: E402  # after the check
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

FLAGS = (
    "--headless",
    "--no-sandbox",  # Chromium refuses to run as root otherwise
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,1000",
)


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chrome, report):
    """The browser with the report freshly opened, and no memory of earlier choices."""
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    chrome.get(report.as_uri())
    chrome.execute_script("localStorage.clear()")
    chrome.get("about:blank")
    chrome.get_log("performance")  # what the browser does on its own account before it opens the page
    chrome.get(report.as_uri())
    return chrome


def shown_pipelines(browser) -> list[str]:
    """Pipelines of the main table from top to bottom, as far as they can be seen."""
    rows = browser.find_elements(By.CSS_SELECTOR, "#main-table tbody tr.row")
    return [row.find_element(By.CSS_SELECTOR, ".name code").text for row in rows if row.is_displayed()]


def header(browser, label: str):
    headers = browser.find_elements(By.CSS_SELECTOR, "#main-table thead th")
    return next(found for found in headers if found.text.startswith(label))


def scores_of(report, key: str) -> dict[str, float]:
    rows = csv.DictReader(io.StringIO((report.parent / "table.csv").read_text(encoding="utf-8")))
    return {row["pipeline"]: float(row[key]) if row[key] else math.nan for row in rows}


def test_it_opens_without_a_word_on_the_console_and_without_the_network(browser):
    assert browser.title == "Calibration of shapes"
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert asked
    assert all(url.startswith(("file:", "data:")) for url in asked), asked


def test_every_picture_is_there(browser):
    browser.execute_script("for (const folded of document.querySelectorAll('details')) folded.open = true")
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().width)"
    )
    assert len(sizes) == 14
    assert min(sizes) > 300
    naturals = browser.execute_async_script(
        """
        const done = arguments[0];
        const load = (node) => new Promise((resolve) => {
          const image = new Image();
          image.onload = () => resolve(image.naturalWidth);
          image.onerror = () => resolve(0);
          image.src = node.getAttribute("xlink:href") || node.getAttribute("href");
        });
        Promise.all([...document.querySelectorAll("svg image")].map(load)).then(done);
        """
    )
    assert len(naturals) >= 3 * 5 + 3 * 4 + 3
    assert min(naturals) > 0


@pytest.mark.parametrize(("label", "key", "sign"), [("NLL", "nll", 1), ("Dice", "dice", -1), ("Flips", "flip", 1)])
def test_columns_sort_best_first_then_worst_first(browser, report, label, key, sign):
    values = scores_of(report, key)
    known = sorted(value for value in values.values() if not math.isnan(value))
    for expected in (known[::sign], known[::-sign]):
        header(browser, label).find_element(By.TAG_NAME, "button").click()
        names = shown_pipelines(browser)
        assert sorted(names) == sorted(values)
        assert [values[name] for name in names[: len(known)]] == expected
        assert "cdc(p)" in names[len(known) :]  # it has no scores, and stands last either way


def test_the_order_of_the_paper_comes_back(browser):
    before = shown_pipelines(browser)
    assert before.count("dc(z)") == 2
    header(browser, "ECE").find_element(By.TAG_NAME, "button").click()
    assert header(browser, "ECE").get_attribute("aria-sort") == "ascending"
    assert shown_pipelines(browser).count("dc(z)") == 1
    assert shown_pipelines(browser) != before
    browser.find_element(By.ID, "reset-sort").click()
    assert shown_pipelines(browser) == before
    assert header(browser, "ECE").get_attribute("aria-sort") is None


def test_intervals_are_shown_on_demand(browser):
    interval = browser.find_element(By.CSS_SELECTOR, "#main-table .interval")
    assert not interval.is_displayed()
    browser.find_element(By.ID, "intervals").click()
    assert interval.is_displayed()
    assert interval.text.startswith("[")


def test_the_theme_follows_the_system_and_the_button(browser):
    def background():
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    light = background()
    dark_system = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark_system)
    dark = background()
    assert dark != light
    browser.find_element(By.ID, "theme").click()
    assert background() == light
    browser.refresh()
    assert background() == light  # remembered
    browser.find_element(By.ID, "theme").click()
    assert background() == dark


def test_words_are_explained_on_focus(browser):
    word = browser.find_element(By.CSS_SELECTOR, ".card .term")
    browser.execute_script("arguments[0].focus()", word)
    tip = browser.find_element(By.ID, "tip")
    assert tip.is_displayed()
    assert tip.text == word.get_attribute("data-tip")


def test_charts_tell_their_values_and_links_open_what_is_folded(browser):
    place = browser.find_element(By.CSS_SELECTOR, "#figure-answer .hot")
    browser.execute_script("arguments[0].dispatchEvent(new MouseEvent('mouseenter'))", place)
    tip = browser.find_element(By.ID, "tip")
    assert tip.is_displayed()
    assert "certain" in tip.text
    assert not browser.find_element(By.ID, "figure-comparisons").is_displayed()
    browser.find_element(By.CSS_SELECTOR, "nav a[href='#comparisons']").click()
    WebDriverWait(browser, 20).until(lambda b: b.find_element(By.ID, "figure-comparisons").is_displayed())


def test_it_fits_a_phone(browser):
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


def test_what_is_missing_is_visible(browser):
    notices = [notice.text for notice in browser.find_elements(By.CSS_SELECTOR, "#scores .notice li")]
    assert any("cdc(p): no scores" in text for text in notices)


def test_it_prints_on_light_paper_without_controls(browser):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not browser.find_element(By.ID, "theme").is_displayed()
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert len(printed["data"]) > 50_000
