"""Code in README and docs runs."""

import pathlib
import re
import shlex

import pytest
from typer.testing import CliRunner

import tfdist
from tfdist.cli.app import app

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [(page.name, block) for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[page for page, _ in BLOCKS])
def test_block_runs(page, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, page, "exec"), {"__name__": page})


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def commands(beginning):
    """Commands of all pages that begin so: indented lines, without what follows as a remark, and those between backticks."""
    line = re.compile(rf"^ {{4,}}(?:sudo |until )?({beginning} .*?)(?:;.*|  +.*|  # .*)?$", re.MULTILINE)
    inline = re.compile(rf"`({beginning} [^`]*)`")
    pages = [(page.name, page.read_text()) for page in PAGES]
    found = [(name, command) for name, text in pages for command in [*line.findall(text), *inline.findall(text)]]
    return [(name, command) for name, command in found if "..." not in command]


@pytest.mark.parametrize(("page", "line"), commands("tfdist (?:run|check|plan)"), ids=lambda value: value)
def test_our_commands_have_these_options(page, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("hosts").write_text("a slots=4\n")
    command, *words = shlex.split(line)[1:]
    if command == "run":
        result = CliRunner().invoke(app, ["run", "--dry-run", *words])
        assert result.exit_code == 0, result.output
    else:
        known = CliRunner(env={"COLUMNS": "200"}).invoke(app, [command, "--help"]).output
        assert not [word for word in words if word.startswith("-") and word not in known]


def test_other_commands_name_what_is_there():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page, line in commands("make"):
        assert line.split()[1] in targets, f"{page}: {line}"
    for page, line in commands("(?:python|docker|kubectl|sbatch)"):
        for file in re.findall(r"(?:examples|benchmarks|docker)/[\w./]+", line):
            assert (ROOT / file).exists(), f"{page}: {line}"


def test_each_paper_is_named_where_its_rule_is():
    rows = re.findall(r"^\| (.*) \| .* \| \[.*\]\(\.\./(.*)\) \|$", (ROOT / "docs" / "paper_to_code.md").read_text(), re.MULTILINE)
    assert len(rows) > 25
    paper = ""
    for named, file in rows:
        paper = paper if named.startswith("the same") else named
        text = (ROOT / file).read_text()
        number = re.search(r"arXiv ([\d.]+)", paper)
        assert (number.group(1) if number else paper.split(",")[0].split(" ")[0]) in " ".join(text.split()), f"{named}: {file}"


@pytest.mark.parametrize("module", ["callbacks", "optimizers", "pipeline"])
def test_what_is_public_is_in_the_reference(module):
    listed = (ROOT / "docs" / "api.md").read_text()
    for name in vars(getattr(tfdist, module)):
        if name[0].isupper() and name != "Any":
            assert re.search(rf":: tfdist\.{module}\.(\w+\.)?{name}$", listed, re.MULTILINE), name


def test_there_is_something_to_run():
    assert BLOCKS
