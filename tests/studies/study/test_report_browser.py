"""The report in a browser: it renders, says no error, and its tooltips and filters work."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

pytest.importorskip("selenium")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from ringreduce.study.folder import load
from ringreduce.study.report import write
from tests.studies import browser
from tests.studies.study import synthetic

pytestmark = [pytest.mark.slow, browser.needed]

TRACES = "return document.getElementById(arguments[0]).data.map(({name, y, text}) => ({name, y, text}))"
MARK = """
const plot = document.getElementById('time'), {xaxis, yaxis} = plot._fullLayout, one = plot.data[0];
const area = plot.querySelector('.nsewdrag').getBoundingClientRect();
return [area.x + xaxis.d2p(one.x[0]), area.y + yaxis.d2p(one.y[0])];
"""
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = synthetic.write(tmp_path_factory.mktemp("study"), names=[*synthetic.ALGORITHMS, NASTY])
    write(load(folder), folder / "report.html")
    with browser.opened(folder / "report.html") as driver:
        yield driver


@pytest.fixture(autouse=True)
def fresh(page):
    page.set_window_size(1400, 1000)
    browser.load(page)
    yield
    assert browser.errors(page) == []


def names(page, plot="time"):
    return [one["name"] for one in page.execute_script(TRACES, plot) if one.get("name")]


def drawn(page, selector):
    return [one for one in page.find_elements(By.CSS_SELECTOR, selector) if one.is_displayed()]


def test_it_renders(page):
    assert names(page) == names(page, "bandwidth") == [*synthetic.ALGORITHMS, NASTY]
    for plot in ("time", "bandwidth"):
        assert len(page.find_elements(By.CSS_SELECTOR, f"#{plot} .scatterlayer .trace")) == 6 + 5
    assert len(drawn(page, ".map svg")) == 1 and len(drawn(page, ".map .cell")) == 12
    assert len(drawn(page, ".drawings svg")) == 4
    assert page.find_elements(By.CSS_SELECTOR, "img") == []


def test_a_tooltip_has_the_numbers(page):
    plot = page.find_element(By.ID, "time")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    x, y = page.execute_script(MARK)
    actions = ActionChains(page)
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    actions.perform()
    text = (
        WebDriverWait(page, 20)
        .until(lambda page: page.find_elements(By.CSS_SELECTOR, "#time .hovertext"))[0]
        .text
    )
    for word in ("ring, 8 B", "µs", "MB/s", "predicted", "8 launches", "the fastest"):
        assert word in text


def test_each_filter_changes_what_is_shown(page):
    before = page.execute_script(TRACES, "time")
    Select(page.find_element(By.ID, "filter-world")).select_by_value("4")
    after = page.execute_script(TRACES, "time")
    assert before[0]["name"] == after[0]["name"] and before[0]["y"] != after[0]["y"]
    Select(page.find_element(By.ID, "filter-mode")).select_by_value("far")
    assert page.execute_script(TRACES, "time")[0]["y"] > after[0]["y"]
    Select(page.find_element(By.ID, "filter-collective")).select_by_value("broadcast")
    assert names(page) == ["tree", "chain"]
    assert [one.text.splitlines()[0] for one in drawn(page, ".drawings figure")] == ["tree", "chain"]
    labels = [one.text for one in drawn(page, "#algorithms label")]
    assert labels == ["tree", "chain"]


def test_algorithms_can_be_left_out_with_the_keyboard(page):
    box = page.find_elements(By.CSS_SELECTOR, "#algorithms input")[1]
    box.send_keys(Keys.SPACE)
    assert names(page) == ["ring", "two_shot", "tree", "auto", NASTY]
    page.find_element(By.ID, "none").send_keys(Keys.ENTER)
    assert names(page) == []
    page.find_element(By.ID, "all").send_keys(Keys.ENTER)
    assert len(names(page)) == 6


def test_outliers_launches_and_predictions(page):
    marks = len(page.execute_script(TRACES, "time"))
    for what, more in (("outliers", 6), ("launches", 6), ("predictions", -5)):
        page.find_element(By.ID, f"show-{what}").click()
        marks += more
        assert len(page.execute_script(TRACES, "time")) == marks
    words = [one["text"][0] for one in page.execute_script(TRACES, "time") if not one.get("name")]
    assert "quartiles" in words[0] and "100 iterations" in words[0] and "outlier" in words[1]
    Select(page.find_element(By.ID, "scale")).select_by_value("relative")
    lines = [one for one in page.execute_script(TRACES, "time") if one.get("name")]
    assert all(min(column) == 1 for column in zip(*(one["y"] for one in lines), strict=True))


def test_the_table_has_the_chosen_numbers(page):
    page.find_element(By.CSS_SELECTOR, "details summary").click()
    rows = [row.text for row in drawn(page, "#numbers tbody tr")]
    assert len(rows) == 36 and rows[0].startswith("8 B ")
    Select(page.find_element(By.ID, "filter-collective")).select_by_value("broadcast")
    assert len(drawn(page, "#numbers tbody tr")) == 12


def test_pictures_can_be_saved(page):
    page.execute_script("URL.createObjectURL = (blob) => { window.saved = blob; return '#'; }")
    drawn(page, ".drawings figure button")[0].click()
    saved = page.execute_async_script("saved.text().then(arguments[0])")
    assert ElementTree.fromstring(saved).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("width", [1400, 600])
def test_it_fits(page, width):
    page.set_window_size(width, 900)
    fits = "return document.documentElement.scrollWidth <= innerWidth"
    WebDriverWait(page, 20).until(lambda page: page.execute_script(fits))


def test_it_can_be_printed(page):
    assert len(page.print_page()) > 20_000
