import base64
import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from annotated_s4 import plotting


@pytest.fixture
def shown(monkeypatch):
    """What a notebook would be given to display."""
    calls = []
    monkeypatch.setattr(plotting, "display", lambda thing, metadata=None: calls.append((thing, metadata)))
    return calls


def luminance(colour):
    """Relative luminance of #rrggbb as the Web Content Accessibility Guidelines define it."""
    channel = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channel <= 0.03928, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_lines_are_told_apart_without_colour():
    plotting.use_style()
    cycle = list(plt.rcParams["axes.prop_cycle"])
    assert len({str(style["linestyle"]) for style in cycle}) == len(cycle)


def test_text_and_lines_stand_out_from_the_card():
    card = luminance(plotting.STYLE["figure.facecolor"])
    contrast = lambda colour: (card + 0.05) / (luminance(colour) + 0.05)
    assert contrast("#000000") > 7  # text
    assert min(contrast(colour) for colour in plotting.COLOURS[:4]) > 2.4


def test_a_figure_is_shown_with_its_text_and_closed(shown):
    figure, _ = plt.subplots()
    plotting.show(figure, "A line.")
    assert shown == [(figure, {"image/png": {"alt": "A line."}})]
    assert not plt.fignum_exists(figure.number)


def test_an_animation_has_each_frame_and_its_text(shown):
    figure, axes = plt.subplots(figsize=(2, 1))
    (line,) = axes.plot([0, 1], [0, 1])
    plotting.animate(figure, lambda frame: line.set_ydata([0, frame]), frames=3, alt='A line that "rises" <slowly>')
    page = shown[0][0].data
    frames = re.findall(r"data:image/png;base64,([\w+/=]+)", page)
    assert len(frames) == 3 and len(set(frames)) == 3
    for frame in frames:
        assert Image.open(io.BytesIO(base64.b64decode(frame))).format == "PNG"
    assert "A line that &quot;rises&quot; &lt;slowly&gt;" in page and "http" not in page
    assert not plt.fignum_exists(figure.number)


@pytest.mark.parametrize(
    ("frames", "alt", "message"), [(0, "text", "1 to 60.*0"), (61, "text", "1 to 60.*61"), (3, " ", "alt is empty")]
)
def test_bad_animations_are_named(shown, frames, alt, message):
    figure, _ = plt.subplots()
    with pytest.raises(ValueError, match=message):
        plotting.animate(figure, lambda frame: None, frames=frames, alt=alt)
    plt.close(figure)


def test_an_animation_too_large_for_a_page_is_refused(shown, monkeypatch):
    monkeypatch.setattr(plotting, "MAX_BYTES", 1000)
    figure, _ = plt.subplots()
    with pytest.raises(ValueError, match="at most 1000 bytes"):
        plotting.animate(figure, lambda frame: None, frames=2, alt="text")
    assert not shown


def test_a_figure_without_a_text_is_refused(shown):
    figure, _ = plt.subplots()
    with pytest.raises(ValueError, match="alt is empty"):
        plotting.show(figure, "")
    plt.close(figure)
