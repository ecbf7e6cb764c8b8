"""Each page of the built book in a real browser, wide and narrow."""

import functools
import http.server
import re
import shutil
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HTML = ROOT / "_build" / "html"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = {"desktop": 1280, "phone": 360}
PAGES = sorted(
    str(path.relative_to(HTML)) for folder in ("book", "notebooks") for path in (HTML / folder).glob("*.html")
)

pytestmark = [
    pytest.mark.skipif(not PAGES, reason="the book is not built: run `make book`"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: pages were not opened"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def site():
    """The built book on a port of this machine."""
    handler = functools.partial(Quiet, directory=HTML)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, site, request):
    """A function that opens a page and returns it with what the browser complained about and asked for."""
    contexts = []

    def open_page(path, width, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page, complaints, foreign = context.new_page(), [], []
        page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("response", lambda response: complaints.append(f"{response.status} {response.url}") if response.status >= 400 else None)
        page.on("request", lambda request: None if request.url.startswith((site, "data:", "blob:")) else foreign.append(request.url))
        page.goto(f"{site}/{path}", wait_until="networkidle")
        if page.locator(".math").count():
            page.wait_for_function("document.querySelectorAll('mjx-container').length > 0", timeout=20_000)
            page.evaluate("MathJax.startup.promise.then(() => true)")
        return page, complaints, foreign

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("path", PAGES)
def test_page(opened, path, width):
    page, complaints, foreign = opened(path, width)
    assert not foreign, "the page asks another host"
    assert not complaints
    # Formulas are typeset: each has its container, and none says that it was not understood.
    written = page.locator(".math").count()
    typeset = page.locator(".math mjx-container").count()
    assert typeset >= written
    assert page.locator("mjx-merror, [data-mjx-error]").count() == 0
    article = page.locator("article").inner_text()
    assert not re.search(r"\\\(|\\\[|\$\$|\{(eq|cite:p|cite:t|doc|ref)\}`", article), "raw markup is left"
    # Pictures are there, large enough to see, and say what they show.
    for picture in page.locator("article img").all():
        picture.scroll_into_view_if_needed()
        size = picture.evaluate("image => [image.naturalWidth, image.getBoundingClientRect().width, image.alt]")
        assert size[0] > 50 and size[1] > 50, picture.get_attribute("src")[:80]
        assert len(size[2]) > 20, f"hardly a description: {size[2]!r}"
    # Nothing makes the page wider than the screen.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wider = page.evaluate(
        """width => [...document.querySelectorAll("article *")].filter(element => {
            const box = element.getBoundingClientRect();
            if (box.width === 0 || box.right <= width + 1) return false;
            for (let up = element; up && up.tagName !== "ARTICLE"; up = up.parentElement)
                if (getComputedStyle(up).overflowX !== "visible") return false;
            return true;
        }).map(element => element.tagName + "." + element.className).slice(0, 5)""",
        width,
    )
    assert not wider, "something sticks out on the right"


@pytest.mark.parametrize("path", [path for path in PAGES if 'class="animation"' in (HTML / path).read_text()])
def test_animations_play(opened, path):
    page, complaints, _ = opened(path, 1280)
    for player in page.locator(".animation").all():
        image, button, slider = player.locator("img"), player.locator("button"), player.locator("input")
        button.scroll_into_view_if_needed()
        first = image.get_attribute("src")
        button.click()
        page.wait_for_timeout(1500)
        assert image.get_attribute("src") != first and int(slider.input_value()) > 0, "it does not play"
        button.click()
        stopped = slider.input_value()
        page.wait_for_timeout(500)
        assert slider.input_value() == stopped, "it does not stop"
        slider.focus()
        page.keyboard.press("End")
        assert slider.input_value() == slider.get_attribute("max"), "the keyboard does not move it"
    assert not complaints


def test_solutions_fold(opened):
    path = next(path for path in PAGES if "01_" in path)
    page, *_ = opened(path, 1280)
    solution = page.locator(".solution").first
    closed = solution.bounding_box()["height"]
    solution.locator("button, summary").first.click()
    page.wait_for_timeout(600)
    assert solution.bounding_box()["height"] > closed + 20


def test_light_and_dark(opened):
    """The page follows the reader's system, and a figure stays a light card."""
    path = next(path for path in PAGES if "01_" in path)
    background = {}
    for scheme in ("light", "dark"):
        page, *_ = opened(path, 1280, color_scheme=scheme)
        background[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = {scheme: sum(map(float, re.findall(r"[\d.]+", colour)[:3])) for scheme, colour in background.items()}
    assert brightness["dark"] < 200 < 600 < brightness["light"]


def test_code_can_be_copied_and_the_book_searched(opened):
    path = next(path for path in PAGES if "01_" in path)
    page, *_ = opened(path, 1280)
    assert page.locator("button.copybtn").count() > 5
    page, complaints, foreign = opened("search.html?q=discretisation", 1280)
    page.wait_for_selector("#search-results li", timeout=10_000)
    assert not foreign and not complaints
