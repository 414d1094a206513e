# SPDX-License-Identifier: Apache-2.0
"""A small upstream and small slices for it, made anew by each test that changes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stackkit.export import (
    AddBranch,
    AddElement,
    AddParameter,
    Base,
    Edit,
    File,
    Insert,
    Layer,
    Names,
    PassArgument,
    Repository,
    Slice,
    Style,
    after,
    of_clone,
)
from stackkit.export.places import Calls
from stackkit.stack import Upstream

UPSTREAM = Upstream(
    id="shop", repository="https://example.invalid/shop", branch="main", release="1.0"
)

STORE = """\
\"\"\"Where goods are kept.\"\"\"

from shop.goods import Good

KINDS = ["shelf", "box"]


class Store:
    def open(self, kind: str) -> str:
        \"\"\"Make room.\"\"\"
        if kind == "shelf":
            return "a shelf"
        else:
            raise ValueError(kind)

    def put(self, good: Good, place: str) -> None:
        # Goods are checked first.
        self.check(good)
        self.goods.append(
            self.wrap(
                good,
                place=place,
            )
        )
"""
FILES = {
    "shop/store.py": STORE,
    "shop/goods.py": "class Good:\n    pass\n",
    "README.md": "A shop.\n",
}
STYLE = Style(line_length=88, select=("F401", "F821", "I"), first_party=("shop",))
NAMES = Names({"kvstrata.label": "shop.label"}, {"kvstrata": "shop"})


@dataclass
class Place:
    """A folder of a test: the clone of the upstream, the packages and the work."""

    root: Path

    def clone(self, files: Mapping[str, str] = FILES, message: str = "first\n") -> str:
        """Commit files in the clone, in place of all others; the commit's id."""
        folder = self.root / "clone"
        if not folder.exists():
            folder.mkdir()
            Repository.make(folder)
        repository = Repository(folder)
        if repository.succeeds("rev-parse", "HEAD"):
            repository.run("rm", "-r", "--quiet", "--ignore-unmatch", ".")
        for name, text in files.items():
            write(folder / name, text)
        return repository.commit(message)

    def base(self, revision: str) -> Base:
        work = self.root / "work"
        if not work.exists():
            work.mkdir()
            Repository.make(work)
        return of_clone(self.root / "clone", UPSTREAM, revision, Repository(work))

    def slice(self, name: str, layer: Layer, files: Mapping[str, str], **given: bool) -> Slice:
        package = self.root / "packages" / name
        for file, text in files.items():
            write(package / file, text)
        return Slice(
            name, f"kvstrata-{name}", "0.1.0", package, self.root, "f" * 40, layer, **given
        )


def write(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")


LABEL_SOURCE = """\
# SPDX-License-Identifier: Apache-2.0
\"\"\"Labels of goods, as kvstrata writes them.\"\"\"

from . import ink
from .ink import Colour  # type: ignore[attr-defined]  # no types there


def label(text: str) -> str:
    return ink.write(text, Colour.RED)  # noqa: S101 - red is loud
"""
INK_SOURCE = (
    "class Colour:\n    RED = 1\n\n\ndef write(text: str, colour: int) -> str:\n    return text\n"
)

LABEL_EDITS: tuple[Edit, ...] = (
    AddElement("shop/store.py", "KINDS", '"box"', '"label"'),
    AddBranch(
        "shop/store.py", "Store.open", 'kind == "shelf"', 'kind == "label"', 'return "a label"'
    ),
    AddParameter("shop/store.py", "Store.put", 'label: str = ""'),
    PassArgument("shop/store.py", "Store.put", "self.wrap", "label=label"),
    Insert("shop/store.py", "Store.put", after(Calls("self.check")), "self.mark(label)"),
)


def label_layer(*edits: Edit, **changes: object) -> Layer:
    """The lower slice: a package of labels, and their place in the store."""
    given: dict[str, object] = {
        "subject": "[Store] Label goods",
        "body": "A good may have a label.",
        "names": NAMES,
        "style": STYLE,
        "files": (
            File("src/kvstrata/label/__init__.py", "shop/label/__init__.py"),
            File("src/kvstrata/label/ink.py", "shop/label/ink.py"),
        ),
        "edits": edits or LABEL_EDITS,
    }
    return Layer(**{**given, **changes})  # type: ignore[arg-type]  # a test gives what it wants


LABEL_FILES = {
    "src/kvstrata/label/__init__.py": LABEL_SOURCE,
    "src/kvstrata/label/ink.py": INK_SOURCE,
}
PRICE_EDITS: tuple[Edit, ...] = (
    Insert("shop/store.py", "Store.put", after(Calls("self.mark")), "self.price(label)"),
)


def price_layer(*edits: Edit) -> Layer:
    """The upper slice: it edits what the lower one has put there."""
    return Layer(
        subject="[Store] Price what has a label",
        body="A label has a price.",
        names=NAMES,
        style=STYLE,
        files=(),
        edits=edits or PRICE_EDITS,
    )
