# SPDX-License-Identifier: Apache-2.0
"""Sphinx settings; `nox -s docs` builds the site with warnings as errors."""

project = "kvstrata"
project_copyright = "the kvstrata authors"
extensions = ["myst_parser", "sphinx_copybutton"]
# Parts of the page "performance", which includes them.
exclude_patterns = ["_build", "guide/performance-*.md"]
html_theme = "furo"
html_title = "kvstrata"
html_static_path = ["_static"]
html_copy_source = False
myst_heading_anchors = 3
nitpicky = True
copybutton_prompt_text = "$ "
