"""The report of a plan, as a file and in a browser."""

import json
import re

import pytest

pytest.importorskip("jinja2")

from ringreduce.studies.plan.cluster import Cluster, Device
from ringreduce.studies.plan.failures import Failures
from ringreduce.studies.plan.report import write
from ringreduce.studies.plan.search import search
from ringreduce.studies.plan.strategies import strategy
from ringreduce.studies.simulate import Flat, Network
from tests.studies import browser
from tests.studies.plan.jobs import cluster, job

NASTY = "</script><b>alert(1)"
TRACES = """
return document.getElementById(arguments[0]).data.map(({name, x, y, marker}) => ({name, x, y, symbol: marker?.symbol}))
"""
TEXTS = ["ddp", "zero2", "fsdp2"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    network = Network(topology=Flat(hosts=4, ranks_per_host=2, rate=1e8, latency_us=5))
    where = Cluster(
        network,
        Device(memory="40 MB", price_per_hour=2),
        failures=Failures(mtbf_hours=20, checkpoint_s=10, spares=99),
    )
    found = search(job(), where, TEXTS, 8)
    path = tmp_path_factory.mktemp("plan") / "new" / "plan.html"
    write(path, job(name=NASTY), where, {text: strategy(text) for text in TEXTS}, [8], search=found)
    return path


def test_everything_is_in_the_file_and_names_are_text(path):
    parts = re.split(r"(?s)(<script>.*?</script>)", path.read_text())
    page = "".join(part for part in parts if "plotly.js" not in part[:99])
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:|//)", page)
    assert NASTY not in page and "&lt;/script&gt;&lt;b&gt;alert(1)" in page
    data = json.loads(re.search(r'(?s)<script type="application/json" id="data">(.*?)</script>', page)[1])
    assert [one["world"] for one in data["points"] if one["strategy"] == 0] == [1, 2, 4, 8]
    assert {one["fits"] for one in data["points"]} == {True, False}
    assert len(data["weeks"]) == 4 and data["tried"] and data["step"]["rows"]


def test_without_a_fitting_strategy_there_is_no_report(tmp_path):
    with pytest.raises(ValueError, match="no strategy fits"):
        write(tmp_path / "plan.html", job(), cluster(memory="1 MB"), {"ddp": strategy("ddp")}, [4])


@pytest.fixture(scope="module")
def driver(path):
    with browser.opened(path) as driver:
        yield driver


@pytest.fixture
def page(driver):
    driver.set_window_size(1400, 1000)
    browser.load(driver)
    yield driver
    assert browser.errors(driver) == []


@pytest.mark.slow
@browser.needed
def test_all_plots_are_drawn(page):
    for plot in (
        "memory",
        "causes",
        "rates",
        "efficiency",
        "front-memory",
        "front-price",
        "gains",
        "timeline",
        "weeks",
    ):
        assert page.find_elements(browser.By.CSS_SELECTOR, f"#{plot} .main-svg"), plot
    rates = page.execute_script(TRACES, "rates")
    assert [one["name"] for one in rates] == [*TEXTS, "without communication"]
    assert rates[0]["x"] == [1, 2, 4, 8] and all(each.endswith("-open") for each in rates[0]["symbol"])
    assert page.find_elements(browser.By.CSS_SELECTOR, "b") == []


@pytest.mark.slow
@browser.needed
def test_the_number_of_ranks_can_be_chosen(page):
    def rows():
        return [one.text for one in page.find_elements(browser.By.CSS_SELECTOR, "#numbers tbody tr")]

    before = rows()
    assert len(before) == 3 and "(too much)" in before[-1]
    browser.Select(page.find_element(browser.By.ID, "filter-world")).select_by_value("1")
    assert len(rows()) == 3 and rows() != before
    assert page.execute_script(TRACES, "memory")[0]["y"] == TEXTS


@pytest.mark.slow
@browser.needed
@pytest.mark.parametrize("width", [1400, 600])
def test_it_fits(page, width):
    page.set_window_size(width, 900)
    fits = "return document.documentElement.scrollWidth <= innerWidth"
    browser.WebDriverWait(page, 20).until(lambda page: page.execute_script(fits))
