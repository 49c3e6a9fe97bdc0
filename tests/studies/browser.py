"""Opens pages in a browser without a window, and without a network."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

if SELENIUM := find_spec("selenium"):
    from selenium import webdriver
    from selenium.webdriver.common.by import By as By
    from selenium.webdriver.support.ui import Select as Select
    from selenium.webdriver.support.ui import WebDriverWait

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needed = pytest.mark.skipif(
    not (SELENIUM and BROWSER and DRIVER),
    reason="needs make .venv/.dev, and Debian's packages chromium and chromium-driver",
)


@contextmanager
def opened(path):
    """Yields a driver for a page, which :func:`load` loads."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        # Offline: what the page would load from elsewhere becomes an error in the console.
        driver.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        driver.address = path.as_uri()
        yield driver
    finally:
        driver.quit()


def load(driver):
    """Loads the page anew, and waits until its scripts have run: on busy cores ``driver.get`` may return before."""
    driver.execute_script("window.isOld = true")
    driver.get(driver.address)
    loaded = "return !window.isOld && document.readyState === 'complete'"
    WebDriverWait(driver, 60).until(lambda driver: driver.execute_script(loaded))


def errors(driver):
    return [entry["message"] for entry in driver.get_log("browser")]
