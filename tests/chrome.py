"""Pages in a real Chromium, from file://.

Needs selenium, chromium and chromedriver; tests skip without them, unless REQUIRE_BROWSER is set.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SIZES = {"phone": (390, 844), "desk": (1280, 900)}


def find(*names: str) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


@contextlib.contextmanager
def started(profile: Path) -> Iterator[Any]:
    """A browser with a profile of its own."""
    chromium = find("chromium", "chromium-browser", "google-chrome")
    driver = find("chromedriver", "chromium.chromedriver")
    parts = {"selenium": importlib.util.find_spec("selenium"), "chromium": chromium,
             "chromedriver": driver}  # fmt: skip
    missing = [name for name, found in parts.items() if not found]
    if missing:
        absent = pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip
        absent(f"not installed: {', '.join(missing)}")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=str(driver))
    chrome = webdriver.Chrome(options=options, service=service)
    try:
        yield chrome
    finally:
        chrome.quit()


def visit(browser: Any, page: Path | str, size: str = "desk", scheme: str = "light") -> None:
    """Opens a file, or an address."""
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.get("about:blank")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    for log in ("browser", "performance"):
        browser.get_log(log)  # what came before is not about this page
    browser.get(page if isinstance(page, str) else page.as_uri())


def requests(browser: Any) -> list[str]:
    """What the page asked for, but for what it holds itself."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    asked = [str(params["request"]["url"]) for params in sent]
    return [url for url in asked if not url.startswith("data:")]
