"""Imports go down only; the attacks know the types alone; Flower's private names live in one module."""

import ast
from pathlib import Path

import pytest

LAYERS = [
    {"cli", "deploy", "__main__"},
    {"audit"},
    {"api"},
    {"bench"},
    {"experiments"},
    {"client_app", "server_app"},
    {"running"},
    {"config"},
    {"strategies"},
    {"enforcement"},
    {"mods"},
    {"client"},
    {"policy"},
    {"secagg"},
    {"report"},
    {"adversary"},
    {"defenses"},
    {"transforms"},
    {"training"},
    {"sketches"},
    {"data"},
    {"text"},
    {"models"},
    {"wire"},
    {"privacy"},
    {"flower", "engine", "tap"},
    {"tracking"},
    {"results"},
    {"console"},
    {"storage"},
    {"types", "seeding", "torch_backend"},
]
"""The rooms, highest first: a module may import from its own room or from a lower one."""

MOST_LOOSE_MODULES = 6
ATTACKS_MAY_IMPORT = {"fl_app.types", "fl_app.models.torchvision_cpu", "fl_app.text.word_errors"}
PUBLIC_FLOWER = ("flwr.app", "flwr.serverapp", "flwr.clientapp", "flwr.simulation")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer_of(part: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if part in layer)


def modules(repository: Path, package: str) -> list[Path]:
    return sorted((repository / package).rglob("*.py"))


def part_of(path: Path, repository: Path) -> str:
    return path.relative_to(repository / "fl_app").parts[0].removesuffix(".py")


def test_every_module_has_a_layer(repository):
    parts = {part_of(path, repository) for path in modules(repository, "fl_app")} - {"__init__"}
    assert parts <= set().union(*LAYERS)


def test_the_package_has_few_loose_modules(repository):
    assert len(list((repository / "fl_app").glob("*.py"))) <= MOST_LOOSE_MODULES


def test_imports_go_down_only(repository):
    upward = []
    for path in modules(repository, "fl_app"):
        part = part_of(path, repository)
        if part == "__init__":
            continue
        for name in imports(path):
            pieces = name.split(".")
            ours = pieces[0] == "fl_app" and len(pieces) > 1 and any(pieces[1] in layer for layer in LAYERS)
            if ours and layer_of(pieces[1]) < layer_of(part):
                upward.append(f"{path.relative_to(repository)} imports {name}")
    assert not upward


def test_fl_app_never_imports_the_attacks(repository):
    for path in modules(repository, "fl_app"):
        assert not {name for name in imports(path) if name.split(".")[0] == "attacks"}, path


def test_the_attacks_import_the_types_and_nothing_else_of_fl_app(repository):
    for path in modules(repository, "attacks"):
        names = {name for name in imports(path) if name.split(".")[0] == "fl_app"}
        allowed = {n for n in names if any(n == ok or n.startswith(ok + ".") for ok in ATTACKS_MAY_IMPORT)}
        assert names == allowed, path


def test_private_names_of_flower_live_in_one_module(repository):
    for path in modules(repository, "fl_app") + modules(repository, "attacks"):
        if path.match("flower/internals.py"):
            continue
        private = {
            name
            for name in imports(path)
            if name.split(".")[0] == "flwr" and not name.startswith(PUBLIC_FLOWER)
        }
        assert not private, path


def test_the_picture_of_the_house_shows_these_layers(repository):
    page = (repository / "docs" / "architecture.md").read_text()
    picture = page.split("## The house\n")[1].split("```\n")[1]
    assert [set(line.split("│")[0].split()) for line in picture.splitlines()] == LAYERS


@pytest.mark.parametrize("package", ["fl_app", "attacks"])
def test_every_module_says_what_it_is_for(repository, package):
    silent = [
        path for path in modules(repository, package) if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent
