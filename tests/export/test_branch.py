# SPDX-License-Identifier: Apache-2.0
"""Branches of two slices on a small upstream: commits, patches, refusals."""

from pathlib import Path

import pytest

from stackkit.export import (
    AddElement,
    AddParameter,
    ExportError,
    File,
    Insert,
    Remove,
    Slice,
    after,
    build,
    patches,
)
from stackkit.export.places import Calls

from .small import (
    FILES,
    LABEL_FILES,
    LABEL_SOURCE,
    PRICE_EDITS,
    STORE,
    Place,
    label_layer,
    price_layer,
)

LABEL_DIFF = """\
--- a/shop/store.py
+++ b/shop/store.py
@@ -5 +5 @@ from shop.goods import Good
-KINDS = ["shelf", "box"]
+KINDS = ["shelf", "box", "label"]
@@ -12,0 +13,2 @@ class Store:
+        elif kind == "label":
+            return "a label"
@@ -16 +18 @@ class Store:
-    def put(self, good: Good, place: str) -> None:
+    def put(self, good: Good, place: str, label: str = "") -> None:
@@ -18,0 +21 @@ class Store:
+        self.mark(label)
@@ -22,0 +26 @@ class Store:
+                label=label,
"""
LABEL_MODULE = '''\
# SPDX-License-Identifier: Apache-2.0
"""Labels of goods, as shop writes them."""

from shop.label import ink
from shop.label.ink import Colour


def label(text: str) -> str:
    return ink.write(text, Colour.RED)  # red is loud
'''


@pytest.fixture
def slices(place: Place) -> list[Slice]:
    return [
        place.slice("label", label_layer(), LABEL_FILES),
        place.slice("price", price_layer(), {}),
    ]


def test_each_slice_is_one_commit_with_its_own_changes_alone(
    place: Place, slices: list[Slice]
) -> None:
    branch = build(place.base(place.clone()), slices)
    repository = branch.base.repository

    label, price = branch.commits
    diff = repository.run("diff", "--unified=0", label.parent, label.commit, "--", "shop/store.py")
    assert diff[diff.index("---") :] == LABEL_DIFF
    assert repository.text(label.commit, "shop/label/__init__.py") == LABEL_MODULE
    named = repository.run("diff", "--name-only", price.parent, price.commit).split()
    assert named == ["shop/store.py"]
    assert "1 file changed, 1 insertion(+)" in price.stat
    assert (price.parent, repository.id("export/price")) == (label.commit, price.commit)


def test_a_commit_says_where_it_comes_from(place: Place, slices: list[Slice]) -> None:
    branch = build(place.base(place.clone()), slices)
    trailer = branch.base.repository.run(
        "log", "-1", "--format=%(trailers:key=Origin,valueonly)", branch.commits[0].commit
    )
    assert trailer.strip() == f"kvstrata-label 0.1.0, tree {'f' * 40}"


def test_the_same_slices_on_the_same_base_are_the_same_commits(
    place: Place, slices: list[Slice], tmp_path: Path
) -> None:
    commit = place.clone()
    first = build(place.base(commit), slices).tip
    (tmp_path / "work").rename(tmp_path / "elsewhere")
    assert build(place.base(commit), slices).tip == first


def test_patches_applied_to_a_clean_tree_give_the_trees_of_the_layers(
    place: Place, slices: list[Slice], tmp_path: Path
) -> None:
    branch = build(place.base(place.clone()), slices)
    mails = patches.write(branch, tmp_path / "patches")
    assert [f"base-commit: {branch.base.commit}" in mail.read_text() for mail in mails] == [
        True,
        False,
    ]
    applied = patches.apply(branch, mails, tmp_path / "applied")
    assert applied.tree("HEAD") == branch.commits[-1].tree
    assert applied.tree("HEAD~1") == branch.commits[0].tree
    assert "[Store] Label goods" in applied.run("log", "-1", "--format=%s", "HEAD~1")


def test_a_patch_that_gives_another_tree_is_refused(
    place: Place, slices: list[Slice], tmp_path: Path
) -> None:
    branch = build(place.base(place.clone()), slices)
    mails = patches.write(branch, tmp_path / "patches")
    mails[0].write_text(mails[0].read_text().replace("a label", "a lable"))
    with pytest.raises(ExportError, match=r"gives tree .*, the layer has"):
        patches.apply(branch, mails, tmp_path / "applied")


def test_an_upper_layer_does_not_apply_without_the_lower_one(
    place: Place, slices: list[Slice], tmp_path: Path
) -> None:
    branch = build(place.base(place.clone()), slices)
    mails = patches.write(branch, tmp_path / "patches")
    bare = branch.base.repository.worktree(tmp_path / "bare", branch.base.commit)
    with pytest.raises(ExportError, match=r"does not apply: .*; fix: apply the layers below"):
        patches.am(bare, mails[1])
    assert bare.is_clean()
    assert list(patches.independent(branch, mails, tmp_path / "without")) == []
    patches.am(bare, mails[0])
    patches.am(bare, mails[1])
    with pytest.raises(ExportError, match=r"the call of self.mark is not there"):
        build(branch.base, slices[1:])


def test_an_upper_layer_that_needs_nothing_of_the_lower_one_is_told(
    place: Place, tmp_path: Path
) -> None:
    alone = price_layer(AddElement("shop/store.py", "KINDS", '"box"', '"price"'))
    lower = label_layer(AddParameter("shop/store.py", "Store.put", 'label: str = ""'))
    slices = [
        place.slice("label", lower, LABEL_FILES),
        place.slice("price", alone, {}),
    ]
    branch = build(place.base(place.clone()), slices)
    mails = patches.write(branch, tmp_path / "patches")
    found = list(patches.independent(branch, mails, tmp_path / "without"))
    assert found == [("label", "price")]


def test_a_lower_layer_that_was_squashed_upstream_is_left_out_once_it_is_marked(
    place: Place, slices: list[Slice]
) -> None:
    place.clone()
    branch = build(place.base("HEAD"), slices)
    squashed = {
        name: branch.base.repository.text(branch.commits[0].commit, name) or ""
        for name in (*FILES, "shop/label/__init__.py", "shop/label/ink.py")
    }
    newer = place.clone(squashed, "Label goods (#7)\n")

    with pytest.raises(
        ExportError, match=r"is in the base already; fix: .*mark the slice as merged"
    ):
        build(place.base(newer), slices)
    merged = place.slice("label", label_layer(), LABEL_FILES, merged=True)
    rebased = build(place.base(newer), [merged, slices[1]])
    assert [commit.slice.id for commit in rebased.commits] == ["price"]
    assert rebased.commits[0].tree == branch.commits[1].tree


def test_an_edit_that_was_squashed_upstream_says_so(place: Place) -> None:
    edits = AddElement("shop/store.py", "KINDS", '"box"', '"label"')
    newer = place.clone({**FILES, "shop/store.py": STORE.replace('"box"]', '"box", "label"]')})
    only = place.slice("label", label_layer(edits, files=()), {})
    with pytest.raises(ExportError, match=r'KINDS: has "label" .* already; fix: set the slice'):
        build(place.base(newer), [only])


def test_two_layers_that_edit_the_same_place_are_refused(place: Place) -> None:
    taking = Remove("shop/store.py", "Store.put", Calls("self.mark"))
    slices = [
        place.slice("label", label_layer(), LABEL_FILES),
        place.slice("price", price_layer(taking), {}),
        place.slice("stock", price_layer(*PRICE_EDITS), {}),
    ]
    with pytest.raises(ExportError, match=r"Store.put: the call of self.mark is not there"):
        build(place.base(place.clone()), slices)


def test_a_moved_function_is_refused_with_where_it_went(place: Place) -> None:
    moved = {**FILES, "shop/store.py": "KINDS = []\n", "shop/stock.py": STORE}
    edit = Insert("shop/store.py", "Store.put", after(Calls("self.check")), "self.mark(good)")
    only = place.slice("label", label_layer(edit, files=()), {})
    with pytest.raises(
        ExportError,
        match=r"shop/store.py: Store.put: not defined there; fix: move the edit to shop/stock.py$",
    ):
        build(place.base(place.clone(moved)), [only])


def test_a_renamed_file_is_refused_with_its_new_name(place: Place) -> None:
    renamed = {**FILES, "shop/stock.py": STORE}
    del renamed["shop/store.py"]
    only = place.slice("label", label_layer(), LABEL_FILES)
    with pytest.raises(ExportError, match=r"store.py: KINDS: no such file in the base"):
        build(place.base(place.clone(renamed)), [only])


def test_a_function_that_is_gone_is_refused_without_a_guess(place: Place) -> None:
    gone = {**FILES, "shop/store.py": "KINDS = []\n"}
    edit = Insert("shop/store.py", "Store.put", after(Calls("self.check")), "self.mark(good)")
    only = place.slice("label", label_layer(edit, files=()), {})
    with pytest.raises(ExportError, match=r"no file has Store.put now; read what replaced it"):
        build(place.base(place.clone(gone)), [only])


def test_an_unknown_base_is_refused(place: Place) -> None:
    place.clone()
    with pytest.raises(ExportError, match=r"no such commit there; fix: fetch it, or name"):
        place.base("0" * 40)


def test_a_dirty_clone_is_refused_and_never_written_to(place: Place, tmp_path: Path) -> None:
    commit = place.clone()
    (tmp_path / "clone" / "new.txt").write_text("not committed")
    with pytest.raises(ExportError, match=r"clone: dirty tree; fix: commit or stash"):
        place.base(commit)
    (tmp_path / "clone" / "new.txt").unlink()
    before = sorted(path for path in (tmp_path / "clone").rglob("*") if path.is_file())
    only = place.slice("label", label_layer(), LABEL_FILES)
    build(place.base(commit), [only])
    assert sorted(p for p in (tmp_path / "clone").rglob("*") if p.is_file()) == before


def test_a_line_about_the_plugin_is_refused(place: Place) -> None:
    files = {**LABEL_FILES, "src/kvstrata/label/ink.py": '"""A seam."""\n'}
    only = place.slice("label", label_layer(), files)
    with pytest.raises(ExportError, match=r"shop/label/ink.py: seam: in the added line"):
        build(place.base(place.clone()), [only])


def test_a_finding_of_the_upstreams_linter_is_refused(place: Place) -> None:
    unknown = Insert("shop/store.py", "Store.put", after(Calls("self.check")), "mark(good)")
    only = place.slice("label", label_layer(unknown, files=()), {})
    with pytest.raises(ExportError, match=r"shop/store.py: F821: Undefined name `mark`"):
        build(place.base(place.clone()), [only])


def test_a_file_that_was_never_formatted_is_not_formatted_by_an_edit(place: Place) -> None:
    ragged = STORE.replace('KINDS = ["shelf", "box"]', "KINDS = ['shelf',   \"box\"]")
    only = place.slice("label", label_layer(), LABEL_FILES)
    branch = build(place.base(place.clone({**FILES, "shop/store.py": ragged})), [only])
    text = branch.base.repository.text(branch.tip, "shop/store.py") or ""
    assert 'KINDS = [\'shelf\',   "box", "label"]' in text


def test_a_file_that_the_package_lacks_is_refused(place: Place) -> None:
    only = place.slice("label", label_layer(files=(File("src/gone.py", "shop/gone.py"),)), {})
    with pytest.raises(ExportError, match=r"src/gone.py: no such file in the package"):
        build(place.base(place.clone()), [only])


def test_the_source_of_a_layer_is_not_changed_by_its_export(place: Place, tmp_path: Path) -> None:
    only = place.slice("label", label_layer(), LABEL_FILES)
    build(place.base(place.clone()), [only])
    source = tmp_path / "packages" / "label" / "src" / "kvstrata" / "label" / "__init__.py"
    assert source.read_text() == LABEL_SOURCE
