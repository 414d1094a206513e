# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG whose colours are CSS variables: light or dark is the page's to say."""

import io
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import matplotlib
from matplotlib.figure import Figure

_FONTS = "system-ui, sans-serif"


@dataclass(frozen=True)
class Palette:
    """Colours by variable, on a light and on a dark ground; `ink` and `faint` are among them."""

    light: Mapping[str, str]
    dark: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        """What to draw with in the place of a variable."""
        return self._placeholders[name]

    def style(self) -> AbstractContextManager[None]:
        """The settings to draw under."""
        ink = self["ink"]
        return matplotlib.rc_context(
            {
                "svg.fonttype": "none",
                "svg.hashsalt": "kvstrata demo",
                "font.size": 9.5,
                "axes.titlesize": 11,
                "axes.titleweight": "bold",
                "text.color": ink,
                "axes.labelcolor": ink,
                "axes.titlecolor": ink,
                "xtick.color": ink,
                "ytick.color": ink,
            }
        )

    def stylesheet(self) -> str:
        """The variables, light and dark."""
        return (
            f":root {{ {_declarations(self.light)} }}\n"
            f"@media (prefers-color-scheme: dark) {{ :root {{ {_declarations(self.dark)} }} }}"
        )

    def element(self, figure: Figure, description: str) -> str:
        """An SVG element for a page that brings the stylesheet."""
        written = io.StringIO()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(written, format="svg", transparent=True, metadata=metadata)
        text = written.getvalue()
        text = text[text.index("<svg") :].strip()
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        for name, placeholder in self._placeholders.items():
            text = text.replace(placeholder, f"var(--{name})")
        return text.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)

    def document(self, figure: Figure, description: str) -> str:
        """An SVG document that brings its own colours."""
        svg = self.element(figure, description)
        style = f"<style>{self.stylesheet()}\ntext {{ font-family: {_FONTS} !important; }}</style>"
        start = svg.index(">") + 1
        return f"{svg[:start]}\n{style}{svg[start:]}\n"

    @cached_property
    def _placeholders(self) -> Mapping[str, str]:
        return {name: f"#0000{index + 1:02x}" for index, name in enumerate(self.light)}


def _declarations(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
