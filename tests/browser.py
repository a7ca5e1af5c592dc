"""A headless Chromium without a network, for tests that look at a page as a reader does."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # Offline by construction: a page that needs the network fails here as it would on a train.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    # A fixed scale: pixel checks must not depend on the machine.
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)


@contextmanager
def chromium(profile: Path) -> Iterator["Chrome"]:
    """Start Chromium with its own profile, or skip the test and say what is missing."""
    webdriver = pytest.importorskip("selenium.webdriver")
    names = ("chromium", "chromium-browser", "google-chrome")
    binary = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip(f"needs {' or '.join(names)}, and chromedriver, on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # A named driver keeps selenium from looking for one to download.
    service = webdriver.ChromeService(executable_path=driver)
    browser = webdriver.Chrome(options=options, service=service)
    try:
        yield browser
    finally:
        browser.quit()


def resize(browser: "Chrome", width: int, height: int, dark: bool = False) -> None:
    """Set the size of the page itself, which a window cannot make as narrow as a telephone."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
