"""House style of the figures: readable by everyone, on light pages and on dark ones.

A figure is an opaque light card, so it reads the same on any page. Lines differ in colour *and* in
dash and marker, so no meaning is carried by colour alone. Every figure is shown with a text that
says what a reader who does not see it should know.
"""

import base64
import html
import io
import json
from collections.abc import Callable

import matplotlib.pyplot as plt
from cycler import cycler
from IPython.display import HTML, display
from matplotlib.figure import Figure
from PIL import Image

# Okabe and Ito's colours, told apart with any kind of colour vision; their yellow is left out, it is pale on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 2)))
MAX_FRAMES, MAX_BYTES = 60, 1_500_000

STYLE = {
    "figure.figsize": (6.4, 3.2),
    "figure.dpi": 84,
    "savefig.dpi": 84,
    "figure.facecolor": "#fbfaf7",
    "axes.facecolor": "#fbfaf7",
    "savefig.facecolor": "#fbfaf7",
    "figure.constrained_layout.use": True,
    "axes.prop_cycle": cycler(color=COLOURS) + cycler(linestyle=DASHES),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d6cf",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "legend.frameon": False,
    "image.cmap": "cividis",
}


def use_style() -> None:
    """Draw every following figure in the house style."""
    plt.rcParams.update(STYLE)


def show(figure: Figure, alt: str) -> None:
    """Show a figure once, with the text that stands in for it, and close it.

    Args:
        figure: what to show.
        alt: what a reader who does not see the figure should know: what is drawn and what follows from it.

    Raises:
        ValueError: the text is empty.
    """
    _require_text(alt)
    display(figure, metadata={"image/png": {"alt": alt}})
    plt.close(figure)


def animate(figure: Figure, draw: Callable[[int], object], frames: int, alt: str, seconds: float = 6.0) -> None:
    """Show an animation with a play button and a slider, and close its figure.

    The pictures are part of the output: it plays in a static page, offline, and in a notebook. (The
    player that comes with matplotlib loads its buttons from another host.)

    Args:
        figure: what `draw` draws on.
        draw: called with 0, 1, ..., frames - 1; changes the figure to that frame.
        frames: how many, at most 60.
        alt: what a reader who does not see the animation should know.
        seconds: how long it runs once.

    Raises:
        ValueError: no text, no frame or too many, or the pictures together are over 1.5 MB.
    """
    _require_text(alt)
    if not 1 <= frames <= MAX_FRAMES:
        raise ValueError(f"an animation has 1 to {MAX_FRAMES} frames, but {frames} were asked for")
    pictures = []
    for frame in range(frames):
        draw(frame)
        pictures.append(_palette_png(figure))
    plt.close(figure)
    size = sum(map(len, pictures))
    if size > MAX_BYTES:
        raise ValueError(f"an animation takes at most {MAX_BYTES} bytes, but its {frames} frames take {size}: draw less or smaller")
    first, *others = (f"data:image/png;base64,{picture}" for picture in pictures)
    display(HTML(_PLAYER.format(alt=html.escape(alt), first=first, others=json.dumps(others), last=frames - 1, pause=1000 * seconds / frames)))


def _require_text(alt: str) -> None:
    if not alt.strip():
        raise ValueError("a figure needs a text that says what it shows: alt is empty")


def _palette_png(figure: Figure) -> str:
    """The figure as a PNG of 64 colours, which a drawing of lines does not miss, in base64."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png")
    Image.open(full).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


# The first picture stands in the page itself, so that it is there without JavaScript too. The script finds
# its own player through `currentScript`, or, in notebooks that run scripts without it, as the last one made.
_PLAYER = """<div class="animation">
<img alt="{alt}" src="{first}" style="max-width:100%;height:auto">
<div style="display:flex;gap:.6em;align-items:center;max-width:40em">
<button type="button" aria-label="Play or pause the animation">&#9654;</button>
<input type="range" min="0" max="{last}" value="0" aria-label="Frame of the animation" style="flex:1">
</div></div>
<script>(() => {{
  const all = document.querySelectorAll(".animation");
  const player = document.currentScript?.previousElementSibling ?? all[all.length - 1];
  const [image, button, slider] = ["img", "button", "input"].map((tag) => player.querySelector(tag));
  const frames = [image.src, ...{others}];
  let timer = null;
  const draw = () => {{ image.src = frames[slider.value]; }};
  const pause = () => {{ clearInterval(timer); timer = null; button.innerHTML = "&#9654;"; }};
  const advance = () => {{
    if (+slider.value === {last}) return pause();
    slider.value = +slider.value + 1; draw();
  }};
  button.onclick = () => {{
    if (timer) return pause();
    if (+slider.value === {last}) slider.value = 0;
    draw(); timer = setInterval(advance, {pause:.0f}); button.innerHTML = "&#10074;&#10074;";
  }};
  slider.oninput = () => {{ pause(); draw(); }};
}})();</script>
"""
