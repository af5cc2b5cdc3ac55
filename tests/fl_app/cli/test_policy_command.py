"""``fl-app policy check``: sentences for a good policy, an error for one that the node could not apply."""

import pytest

from fl_app.cli.policy import main
from fl_app.policy import DEFAULT, in_words, load_policy

GOOD = """
metrics = ["loss"]
[apps]
rounds = 7
seconds = 90
sandbox = ["unshare", "--net", "--"]
[[apps.allowed]]
id = "hospital/app"
[[apps.apply]]
name = "dgp"
settings = { k1 = 0.05, k2 = 0.75 }
[[apps.apply]]
name = "gaussian"
"""


def test_a_policy_of_apps_is_told_in_sentences_with_its_numbers(tmp_path, capsys):
    file = tmp_path / "policy.toml"
    file.write_text(GOOD)
    main(["check", str(file)])
    said = capsys.readouterr().out
    assert said.splitlines() == [f"- {sentence}" for sentence in in_words(load_policy(file))]
    for told in ("hospital/app", "dgp k1=0.05 k2=0.75", "gaussian", "7", "90", "loss", "num-examples"):
        assert told in said


@pytest.mark.parametrize(
    "apps",
    [
        '[[apps.apply]]\nname = "soteria"',
        '[[apps.apply]]\nname = "dpg"',
        '[[apps.apply]]\nname = "topk"\nsettings = { kk = 0.1 }',
        '[[apps.apply]]\nname = "gaussian"\nsettings = { seed = 1 }',
        '[[apps.apply]]\nname = "clip_and_noise"',
        '[[apps.allowed]]\nbundle = "xyz"',
        "[apps]\nround = 3",
        "[apps]\nseconds = 0",
        '[apps]\nmessages = ["upload"]',
    ],
)
def test_a_policy_that_the_node_could_not_apply_is_an_error_that_names_the_file(tmp_path, apps):
    file = tmp_path / "policy.toml"
    file.write_text(apps)
    with pytest.raises(ValueError, match=r"policy\.toml"):
        main(["check", str(file)])


def test_without_a_file_the_default_is_explained(capsys):
    main(["check"])
    assert len(capsys.readouterr().out.splitlines()) == len(in_words(DEFAULT))
