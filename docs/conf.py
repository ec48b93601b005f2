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


def _fences(app, what, name, obj, options, lines):
    """Docstrings draw their pictures between three backticks, as in Markdown; autodoc reads reStructuredText."""
    inside, result = False, []
    for line in lines:
        if line.strip() == "```":
            inside = not inside
            result += ["::", ""] if inside else [""]
        else:
            result.append(f"    {line}" if inside else line)
    lines[:] = result


def setup(app):
    app.connect("autodoc-process-docstring", _fences, priority=400)
