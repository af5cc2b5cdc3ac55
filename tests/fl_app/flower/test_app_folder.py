import pytest

from fl_app.config.compose import split_overrides
from fl_app.flower import fuse, parse_pairs, read_app

PROJECT = """
[tool.flwr.app.components]
serverapp = "my_app.server:app"
clientapp = "my_app.client:app"
[tool.flwr.app.config]
rounds = 3
[tool.flwr.app.config.model]
name = "net"
"""


def test_an_app_is_found_from_its_root_and_from_a_package_folder_in_it(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "my_app").mkdir()
    for path in (tmp_path, tmp_path / "my_app"):
        app = read_app(path)
        assert app.root == tmp_path.resolve()
        assert (app.server_ref, app.client_ref) == ("my_app.server:app", "my_app.client:app")
        assert app.config == {"rounds": 3, "model.name": "net"}


def test_this_project_is_an_app(repository):
    server, client = read_app(repository / "fl_app").load()
    assert type(server).__name__ == "ServerApp"
    assert type(client).__name__ == "ClientApp"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "no pyproject.toml"),
        ("", "expected .*serverapp and clientapp"),
        (PROJECT, "cannot be loaded"),
        (PROJECT.replace("my_app.server:app", "os:path"), "expected a ServerApp"),
    ],
)
def test_what_is_no_app_is_refused(tmp_path, text, complaint):
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_app(tmp_path).load()


def test_a_run_config_is_read_as_flower_reads_it():
    assert parse_pairs("rounds=5 lr=0.1 name=net flag=true") == {
        "rounds": 5,
        "lr": 0.1,
        "name": "net",
        "flag": True,
    }
    (overrides,) = parse_pairs('overrides="defense=adgp attack=ig rounds=20"').values()
    assert split_overrides(overrides) == ["defense=adgp", "attack=ig", "rounds=20"]
    with pytest.raises(ValueError, match="expected key=value, got 'rounds'"):
        parse_pairs("rounds")


def test_a_run_config_may_come_as_a_toml_file_and_later_ones_win(tmp_path):
    (tmp_path / "run.toml").write_text("rounds = 7\n")
    config = {"rounds": 3, "name": "net"}
    assert fuse(config, [str(tmp_path / "run.toml"), "name=other"]) == {"rounds": 7, "name": "other"}
    with pytest.raises(ValueError, match="'unknown' is not one of name, rounds"):
        fuse(config, ["unknown=1"])
