"""A matplotlib figure as SVG that stands inside an HTML page, in light and in dark mode."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

# matplotlib escapes < and > in texts, so what stands between them is a tag of its own.
_TAG = re.compile(r"<[^<>]+>")
_ID = re.compile(r'\bid="')
_REFERENCE = re.compile(r'(href="|url\()#')
_COLOUR = re.compile(r"#([0-9a-fA-F]{6})\b")
_FONT = re.compile(r"font-family: [^;\"]*;? ?")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def draw(make: Callable[[], Figure]) -> Figure:
    """Call a function of figures so that its texts are taken literally."""
    with _settings():
        return make()


def inline(figure: Figure, name: str, label: str) -> Markup:
    """The figure as an <svg> element. `name` makes its ids unique on the page.

    Colours become CSS variables, `--i-RRGGBB` with the colour itself as the fallback: the page's
    style sheet says what they are in dark mode. `label` is for those who cannot see it.
    """
    buffer = io.StringIO()
    with _settings():
        figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Its only style sheet would hold for the whole page; the page's own says the same for figures.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    width, height = (72 * size for size in figure.get_size_inches())
    head = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{html.escape(label, quote=True)}">'
    )
    body = _TAG.sub(lambda tag: _adapted(tag.group(), name), text[text.index(">") + 1 :])
    return Markup(head + body)


def _settings() -> AbstractContextManager[None]:
    # Names of schemes are shown as they are: a dollar sign begins no formula.
    return matplotlib.rc_context(
        {"svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "report"}
    )


def _adapted(tag: str, name: str) -> str:
    if tag.startswith("<!--"):
        return ""
    tag = _ID.sub(f'id="{name}-', tag)
    tag = _REFERENCE.sub(rf"\g<1>#{name}-", tag)
    tag = _FONT.sub("", tag)
    # A hundredth of a point is finer than any screen, and half the bytes.
    tag = _NUMBER.sub(lambda found: f"{float(found.group()):.2f}", tag)
    return _COLOUR.sub(_variable, tag) if "style=" in tag or "fill=" in tag else tag


def _variable(colour: re.Match[str]) -> str:
    digits = colour.group(1).lower()
    return f"var(--i-{digits}, #{digits})"
