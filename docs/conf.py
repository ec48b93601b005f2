import tfdist

project = "tfdist"
author = "The tfdist developers"
version = release = tfdist.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_mock_imports: list[str] = []
