"""The documentation names only what is there: links, commands, modules, and numbers that it repeats."""

import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import own_apps
import pytest
from documents import code_blocks
from flwr.app import Context, RecordDict

from fl_app.cli.choose import DEFAULTS
from fl_app.config.compose import compose
from fl_app.experiments.papers import PAPERS
from fl_app.flower import InlineGrid

PAGES = sorted(Path(__file__).resolve().parents[1].glob("docs/*.md"))
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
VERDICTS = ("holds", "refuted", "equivalent", "not decided", "not measured")
OF_THE_SWEEP = ("jobs=", "scale=", "parts=")
"""Settings that the sweep takes out before it composes."""


def all_pages(repository: Path) -> list[Path]:
    return [*PAGES, *(repository / name for name in ROOT_PAGES)]


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(text: str) -> set[str]:
    """The fragments of a page, as renderers make them of headings, and those that it names itself."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


def test_the_index_links_every_page(repository):
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (repository / "docs" / "index.md").read_text()))
    assert {page.name for page in PAGES} - {"index.md"} == linked


def test_every_relative_link_and_its_anchor_resolve(repository):
    broken = []
    for page in all_pages(repository):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", without_code(text)):
            path, _, fragment = "".join(target).partition("#")
            if "://" in path:
                continue
            file = page.parent / path if path else page
            if not file.exists() or (fragment and fragment not in anchors(file.read_text(encoding="utf-8"))):
                broken.append(f"{page.name}: {path}#{fragment}")
    assert not broken


def test_python_of_the_readme_runs(repository):
    attack, _ = code_blocks((repository / "README.md").read_text(), "python")
    assert "steps=1200" in attack
    names: dict[str, Any] = {}
    exec(compile(attack.replace("steps=1200", "steps=2"), "README.md", "exec"), names)
    assert tuple(names["found"].images.shape) == (1, 3, 32, 32)


def test_the_readmes_app_trains_a_model_of_ones_own(repository, monkeypatch):
    _, block = code_blocks((repository / "README.md").read_text(), "python")
    task = ModuleType("my_task")
    x, y = own_apps.rows(9)
    vars(task).update(net=own_apps.net, train=own_apps.train, x=x, y=y)
    monkeypatch.setitem(sys.modules, "my_task", task)
    names: dict[str, Any] = {}
    exec(compile(block.replace("0.005", "0.2"), "README.md", "exec"), names)
    names["server"](InlineGrid(names["client"], 3), Context(1, 0, {}, RecordDict(), {}))


def test_snippets_of_the_library_run_as_an_app_in_an_empty_folder(repository, tmp_path):
    text = (repository / "docs" / "library.md").read_text()
    app, *others = code_blocks(text, "python")
    (tmp_path / "my_app.py").write_text(app)
    (tmp_path / "pyproject.toml").write_text("\n".join(code_blocks(text, "toml")))
    imported = set(re.findall(r"^(?:from|import) (\w+)", app, flags=re.MULTILINE))
    assert imported == {"flwr", "torch", "fl_app"}
    simulate = "from fl_app.cli import simulate; simulate()"
    ran = subprocess.run(
        [sys.executable, "-c", simulate, "--app", ".", "--num-supernodes", "4"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repository)},
        check=False,
    )
    names: dict[str, Any] = {}
    exec(compile("\n".join([app, *others]), "library.md", "exec"), names)
    assert ran.returncode == 0


def test_the_app_with_a_mod_trains_and_its_packed_form_too(repository):
    app, packed = code_blocks((repository / "docs" / "mods.md").read_text(), "python")
    names: dict[str, Any] = {}
    exec(compile(app + packed, "mods.md", "exec"), names)
    grid = InlineGrid(names["client"], 4)
    names["server"](grid, Context(1, 0, {}, RecordDict(), {}))
    assert len(grid.memories()) == 4
    sent = grid.context(next(iter(grid.get_node_ids()))).state
    assert any(name.startswith("fl_app.mods/") for name in sent)
    assert names["strategy"].strategy.min_available_nodes == 4


def test_the_snippet_of_secure_means_runs(repository):
    blocks = code_blocks((repository / "docs" / "secure-aggregation.md").read_text(), "python")
    names: dict[str, Any] = {}
    exec(compile(next(block for block in blocks if "secure_mod" in block), "secure.md", "exec"), names)
    assert names["strategy"].summed.max_weight == 500


def test_verdicts_in_the_index_are_those_of_the_results(repository):
    results = (repository / "docs" / "results.md").read_text(encoding="utf-8")
    counted = {}
    for section in re.split(r"^## ", results, flags=re.MULTILINE)[1:]:
        if section.startswith(("In short", "Counts")):
            continue
        found = Counter(
            re.findall(rf"^\|.*?\| \*\*({'|'.join(VERDICTS)})\*\* \| (?!repeats)", section, re.MULTILINE)
        )
        counted[section.splitlines()[0]] = [str(found[verdict]) for verdict in VERDICTS]
    assert list(counted) == list(PAPERS.values())
    rows = re.findall(
        r"^\| (.*?\]\(.*?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$",
        (repository / "docs" / "index.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    named = {
        re.sub(r"\[(.*?)\]\(.*?\)|\s*\(\w[\w-]*\)$", r"\1", name).strip(): counts for name, *counts in rows
    }
    assert named == counted


@pytest.mark.parametrize("page", ["README.md", "docs/recipes.md"])
def test_every_setting_in_a_documented_command_exists(repository, page):
    text = (repository / page).read_text(encoding="utf-8")
    lines = "\n".join(code_blocks(text, "")).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    scripts = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["scripts"]
    called = [words for words in commands if words and words[0] in scripts]
    assert len(called) >= 5
    for words in called:
        swept = "-m" in words
        own = tuple(f"{key}=" for key in DEFAULTS) if words[1:2] == ["choose"] else OF_THE_SWEEP
        given = [word for word in words[1:] if "=" in word and not word.startswith(own)]
        given = [word.removeprefix("overrides=").strip('"') for word in given]
        compose(" ".join(word.split(",")[0] if swept else word for word in given))


def test_every_make_target_that_is_named_exists(repository):
    targets = set(re.findall(r"^([\w-]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    for page in all_pages(repository):
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"`make ([\w-]+)`", text)
        named += re.findall(r"^make ([\w-]+)", "\n".join(code_blocks(text, "")), re.MULTILINE)
        assert set(named) <= targets, page.name


def resolve(name: str) -> object:
    """Import as much of a dotted name as is a module, and take the rest as attributes."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_dotted_name_of_the_packages_resolves(page):
    names = re.findall(r"`((?:fl_app|attacks|benchmarks)(?:\.\w+)+)\b", page.read_text(encoding="utf-8"))
    for name in set(names):
        assert resolve(name) is not None, name


def test_life_of_an_update_has_ten_steps(repository):
    page = (repository / "docs" / "architecture.md").read_text()
    section = page.split("## Life of an update\n")[1].split("\n## ")[0]
    steps = re.findall(r"^(\d+)\. .*", section, re.MULTILINE)
    assert steps == [str(number) for number in range(1, 11)]
    assert len(re.findall(r"`fl_app\.[\w.]+`", section)) >= 10
