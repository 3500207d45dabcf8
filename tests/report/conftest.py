from itertools import combinations

import pytest
from browser import Browser, chromium
from matplotlib.text import Text


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if chromium() is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def assert_clean_layout(monkeypatch):
    """Every text lies inside the figure, and no text covers another."""

    def check(figure):
        # Only what is really drawn: axes keep labels of ticks just outside their range.
        written, draw = set(), Text.draw
        monkeypatch.setattr(Text, "draw", lambda text, *_: (written.add(text), draw(text, *_))[1])
        renderer = figure.canvas.get_renderer()
        figure.draw(renderer)
        texts = [text for text in written if text.get_visible() and text.get_text().strip()]
        boxes = {text: text.get_window_extent(renderer) for text in texts}
        page = figure.bbox
        assert len(boxes) > 10
        for text, box in boxes.items():
            inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page.x1 and box.y1 <= page.y1
            assert inside, f"{text.get_text()!r} leaves the figure"
        for one, two in combinations(boxes, 2):
            assert not boxes[one].overlaps(boxes[two]), f"{one.get_text()!r} on {two.get_text()!r}"

    return check
