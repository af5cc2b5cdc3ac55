"""Run folders that a stranger made: the commands read them, refuse them in one line, or leave values out."""

import json
import logging
import os
import shutil
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from federations import SMALL
from run_folders import write_run
from safetensors import safe_open
from signed_files import write_facts, write_seen

from fl_app.cli.guard import MISTAKE, guarded
from fl_app.cli.new_attack import attack_again
from fl_app.cli.reports import main as report
from fl_app.client_app import app
from fl_app.flower import InlineGrid
from fl_app.report.charts.plots import Curve
from fl_app.report.data.thinning import MOST_POINTS, MOST_ROWS, extremes, thinned
from fl_app.running.federation import run_federation
from fl_app.storage.plain_folder import MOST_BYTES, MOST_DEPTH

ESCAPES = "\x1b[31m\x1b]0;owned\x07\u202e\r"
MARKUP = '"><img src=x onerror=alert(1)><script>alert(1)</script>' + ESCAPES
SECRET = "TOP-SECRET-42"


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def reported(folder: Path) -> int:
    """Return the exit code of ``fl-app-report``; any error that is not one line comes through."""
    try:
        guarded("fl-app-report", lambda: report([str(folder)]))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def is_plain(text: str) -> bool:
    return not {"\x1b", "\x07", "\u202e", "\r"} & set(text)


# fl-app-report


def link(place: Path, elsewhere: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(elsewhere)


def pipe(place: Path, elsewhere: Path) -> None:
    place.unlink(missing_ok=True)
    os.mkfifo(place)


@pytest.mark.parametrize("make", [link, pipe])
@pytest.mark.parametrize(
    "name", ["result.json", "config.yaml", "report.html", "gallery.png", "attacks/r1-c0-truth.png", "new/x"]
)
def test_no_link_and_no_pipe_in_a_folder_is_opened(make, name, tmp_path, capsys):
    folder = write_run(tmp_path / "run", rounds=2)
    elsewhere = tmp_path / "victim"
    elsewhere.write_text(SECRET)
    (folder / name).parent.mkdir(exist_ok=True)
    make(folder / name, elsewhere)
    assert reported(folder) == MISTAKE
    assert elsewhere.read_text() == SECRET
    assert SECRET not in "".join(capsys.readouterr())
    assert name == "report.html" or not (folder / "report.html").exists()


def test_a_folder_that_is_a_link_within_a_folder_is_not_gone_into(tmp_path):
    private = write_run(tmp_path / "private", rounds=1)
    given = tmp_path / "given"
    write_run(given / "run", rounds=1)
    (given / "other").symlink_to(private)
    reported(given)
    assert not (private / "report.html").exists()


def with_markup(value):
    if isinstance(value, dict):
        return {key: with_markup(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_markup(inner) for inner in value]
    return value + MARKUP if isinstance(value, str) else value


def test_escapes_and_markup_of_a_folder_reach_no_terminal_and_no_page(tmp_path, capsys):
    folder = write_run(tmp_path / f"run{MARKUP.replace('/', '')}", rounds=2)
    result = json.loads((folder / "result.json").read_text())
    pictures = [attack["images"] for attack in result["attacks"]]
    result = {**with_markup(result), "status": "finished", "error": MARKUP}
    for attack, images in zip(result["attacks"], pictures, strict=True):
        attack |= {"images": images, "labels_from": MARKUP, "notes": [MARKUP], MARKUP: 3.0}
    result["config"][MARKUP] = {MARKUP: MARKUP}
    result["rounds"][0] |= {"failures": [{"client": MARKUP, "reason": MARKUP}], "notes": [MARKUP]}
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "config.yaml").write_text(MARKUP)
    reported(folder)
    assert is_plain("".join(capsys.readouterr()))
    page = (folder / "report.html").read_text()
    assert is_plain(page)
    assert "<img src=x" not in page
    assert "<script>alert" not in page


def set_rounds(**values):
    def change(result: dict) -> None:
        for row in result["rounds"]:
            row.update(values)

    return change


ODD = {
    "a round beyond floats": set_rounds(round=10**400),
    "a round of 1e9": set_rounds(round=10**9),
    "a negative round": set_rounds(round=-5),
    "numbers at the end of floats": set_rounds(accuracy=1e308, loss=1e308, uplink_bytes=10**308),
    "bytes beyond floats": set_rounds(uplink_bytes=10**400, downlink_bytes=-(10**400)),
    "negative numbers": set_rounds(
        accuracy=-1e308, epsilon=-1, epsilon_server=-5, dense_bytes=-1, clients=-1
    ),
    "infinities": set_rounds(accuracy=float("inf"), loss=float("-inf"), seconds=float("inf")),
    "lists for numbers": set_rounds(accuracy=[1], loss={"a": 1}, failures=7, notes="x", attacked={"a": 1}),
    "a picture that is a folder": lambda r: r["attacks"][0].update(images="attacks"),
    "a picture elsewhere": lambda r: r["attacks"][0].update(images="../victim"),
    "a picture by its whole path": lambda r: r["attacks"][0].update(images="/etc/hostname"),
    "formulas": lambda r: r["config"]["choices"].update(defense="$\\frac{x$", model="$\\foo"),
    "scores of every kind": lambda r: r["attacks"][0].update(psnr=[None, "x", 1e308, -1.0], ssim=7, mse={}),
    "attacks that are no rows": lambda r: r.update(attacks=[7, "x", None, [], {}]),
    "a config that is a list": lambda r: r.update(config=[1], versions=3, summary=[], notes={}),
    "a schema of text": lambda r: r.update(schema="9"),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD.keys())
def test_values_that_cannot_be_do_not_stop_a_report(change, tmp_path, capsys):
    folder = write_run(tmp_path / "run", rounds=3, change=change)
    (tmp_path / "victim").write_text(SECRET)
    assert reported(folder) in (0, MISTAKE)
    assert "Traceback" not in "".join(capsys.readouterr())
    page = folder / "report.html"
    assert not page.exists() or SECRET not in page.read_text()


def test_numbers_beyond_a_chart_leave_the_rest_of_a_report(tmp_path, recwarn):
    """Axes go a little beyond their curves, and so beyond floats."""
    changes = {"big": 1e308, "small": -1e308}
    for name, value in changes.items():
        change = set_rounds(accuracy=value, loss=value, epsilon=value, residual_norm=value, seconds=value)
        folder = write_run(tmp_path / name, rounds=3, change=change)
        assert reported(folder) == 0
        assert (folder / "report.html").is_file()
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]


def grow(file: Path) -> None:
    """Make a file larger than any text or picture, of zeros that take no room on the disk."""
    with file.open("ab") as stream:
        stream.truncate(MOST_BYTES + 1)


@pytest.mark.parametrize("name", ["config.yaml", "partition.png"])
def test_a_file_too_large_for_what_it_should_be_is_one_line(name, tmp_path, capsys):
    folder = write_run(tmp_path / "run", rounds=1)
    grow(folder / name)
    assert reported(folder) == MISTAKE
    assert name in "".join(capsys.readouterr())


def test_folders_without_end_are_one_line(tmp_path, capsys):
    deepest = write_run(tmp_path / "run", rounds=1)
    for _ in range(MOST_DEPTH + 2):
        deepest = deepest / "d"
        deepest.mkdir()
    assert reported(tmp_path / "run") == MISTAKE
    assert len("".join(capsys.readouterr())) < 1000


def test_a_picture_of_ten_thousand_million_pixels_is_left_out(tmp_path):
    folder = write_run(tmp_path / "run", rounds=1)
    sides = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    header = struct.pack(">I", 13) + b"IHDR" + sides + struct.pack(">I", zlib.crc32(b"IHDR" + sides))
    for name in ("attacks/r1-c0-truth.png", "attacks/r1-c0-defended.png", "partition.png"):
        (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n" + header + zlib.compress(bytes(1000)))
    assert reported(folder) == 0


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 50_000, '{"rounds":' + "9" * 5000 + "}", "\0", "[]"]
)
def test_a_result_that_is_no_result_is_one_line(text, tmp_path, capsys):
    folder = write_run(tmp_path / "run", rounds=1)
    (folder / "result.json").write_text(text)
    assert reported(folder) == MISTAKE
    assert len("".join(capsys.readouterr())) < 1000


def test_a_page_of_a_long_run_has_a_bounded_number_of_rows(tmp_path):
    def lengthen(result: dict) -> None:
        row = result["rounds"][0] | {"notes": ["x"], "failures": [{"client": 1, "reason": "y"}]}
        result["rounds"] = [row | {"round": number} for number in range(1, 5001)]

    folder = write_run(tmp_path / "run", rounds=1, change=lengthen)
    assert reported(folder) == 0
    page = (folder / "report.html").read_text()
    assert page.count("<tr") < 2.5 * MOST_ROWS
    assert page.count("<li") < 1.5 * MOST_ROWS
    for number in (1, 5000):
        assert f">{number}</td>" in page
    curve = Curve.of("x", ((number, float(number % 97)) for number in range(100_000)))
    assert len(curve.x) <= MOST_POINTS


def test_thinning_keeps_the_ends_and_the_extremes_of_a_line():
    assert thinned(range(5), 5) == range(5)
    rows = thinned(range(100_001), 11)
    assert list(rows) == list(range(0, 100_001, 10_000))
    points = [(float(x), 0.0) for x in range(9999)]
    points[4321], points[8765] = (4321.0, 7.0), (8765.0, -7.0)
    kept = extremes(points, 100)
    assert len(kept) <= 100
    assert {(4321.0, 7.0), (8765.0, -7.0)} <= set(kept)
    assert list(kept) == sorted(kept)


# fl-app-attack


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("attacked") / "run"
    text = f"{SMALL} attack=ig attack.steps=2 rounds=1 attack.clients=[1] attack.rounds=[1] defense=none"
    text += f" run_dir={folder}"
    run_federation(InlineGrid(app, 5, run_config={"overrides": text}), text)
    return folder


def spec(**settings):
    def change(public: dict) -> None:
        model = json.loads(public["model"])
        model["settings"].update(settings)
        public["model"] = json.dumps(model)

    return change


def built_by(target: str, **settings):
    def change(facts: dict) -> None:
        facts["model"] = json.dumps(json.loads(facts["model"]) | {"target": target, "settings": settings})

    return change


PUBLIC = {
    "a model that is a command": built_by("os.system", command="touch mark"),
    "a model that is a pickle": built_by("torch.load", f="observations/r1-c1.safetensors"),
    "classes by the billion": spec(num_classes=10**9),
    "a huge shape": lambda facts: facts["public"].update(input_shape=[3, 10**5, 10**5]),
    "a negative shape": lambda facts: facts["public"].update(input_shape=[-3, 32, 32]),
    "too many classes": lambda facts: facts["public"].update(num_classes=10**12),
    "a version of text": lambda facts: facts.update(version="1"),
    "no model": lambda facts: facts.update(model=None),
    "a vocabulary of numbers": lambda facts: facts["public"].update(vocabulary=[1]),
}


@pytest.mark.parametrize("change", PUBLIC.values(), ids=PUBLIC.keys())
def test_public_facts_that_cannot_be_are_refused_before_anything_is_built(change, attacked, tmp_path):
    folder = shutil.copytree(attacked, tmp_path / "run")
    file = folder / "observations" / "public.json"
    facts = json.loads(file.read_text())
    change(facts)
    write_facts(file, facts)
    with pytest.raises(ValueError):
        attack_again(folder, ["attack=ig", "attack.steps=2"])


def test_public_facts_without_end_are_not_read(attacked, tmp_path):
    folder = shutil.copytree(attacked, tmp_path / "run")
    grow(folder / "observations" / "public.json")
    with pytest.raises(ValueError, match=f"at most {MOST_BYTES}"):
        attack_again(folder, ["attack=ig", "attack.steps=2"])


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_a_defense_that_is_a_command_is_not_run(adaptive, attacked, tmp_path):
    folder = shutil.copytree(attacked, tmp_path / "run")
    file, mark = folder / "observations" / "public.json", tmp_path / "mark"
    facts = json.loads(file.read_text())
    facts["public"]["defense"] = {"_target_": "os.system", "command": f"touch {mark}"}
    write_facts(file, facts)
    with suppress(ValueError):
        attack_again(folder, ["attack=ig", "attack.steps=2", f"attack.adaptive={adaptive}"])
    assert not mark.exists()


def answer(**values):
    def change(told: dict, tensors: dict) -> None:
        told["answer"] = json.dumps(json.loads(told["answer"]) | values)

    return change


def order(**values):
    def change(told: dict, tensors: dict) -> None:
        told["order"] = json.dumps(json.loads(told["order"]) | values)

    return change


def fill(part: str, value: float):
    def change(told: dict, tensors: dict) -> None:
        for name, tensor in tensors.items():
            if name.startswith(part):
                tensor.fill_(value)

    return change


def shrink(told: dict, tensors: dict) -> None:
    tensors.update({name: torch.zeros(3) for name in tensors if name.startswith("update/")})


SEEN = {
    "samples without end": answer(samples=10**12),
    "steps without end": answer(steps=10**9),
    "samples of text": answer(samples="8"),
    "a round below 0": order(round=-5),
    "a round that is a path": order(round="../../x"),
    "a label that is none": fill("truth/labels", 10**9),
    "a label below those that count for nothing": fill("truth/labels", -(10**9)),
    "an update of another shape": shrink,
    "a header that nests": lambda told, tensors: told.update(order="[" * 100_000),
}


@pytest.mark.parametrize("change", SEEN.values(), ids=SEEN.keys())
def test_observations_that_cannot_be_are_refused_before_an_attack(change, attacked, tmp_path):
    folder = shutil.copytree(attacked, tmp_path / "run")
    file = folder / "observations" / "r1-c1.safetensors"
    with safe_open(file, framework="pt") as stored:
        told = dict(stored.metadata())
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    change(told, tensors)
    write_seen(file, told, tensors)
    with pytest.raises(ValueError):
        attack_again(folder, ["attack=ig", "attack.steps=2"])


def test_an_update_that_is_no_number_is_attacked_without_an_error(attacked, tmp_path):
    folder = shutil.copytree(attacked, tmp_path / "run")
    file = folder / "observations" / "r1-c1.safetensors"
    with safe_open(file, framework="pt") as stored:
        told = dict(stored.metadata())
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    fill("update/", float("nan"))(told, tensors)
    write_seen(file, told, tensors)
    try:
        attack_again(folder, ["attack=ig", "attack.steps=2"])
    except ValueError:
        return  # refused is as good
    assert json.loads((folder / "result.json").read_text())["attacks"]


@pytest.mark.parametrize("make", [link, pipe])
@pytest.mark.parametrize("name", ["public.json", "r1-c1.safetensors", "r1-model.safetensors"])
def test_an_attack_opens_no_link_and_no_pipe(make, name, attacked, tmp_path):
    folder = shutil.copytree(attacked, tmp_path / "run")
    make(folder / "observations" / name, tmp_path / "victim")
    with pytest.raises(ValueError):
        attack_again(folder, ["attack=ig", "attack.steps=2"])
