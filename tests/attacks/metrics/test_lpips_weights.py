import logging

import pytest
import torch
from safetensors.torch import save_file

from attacks.metrics import lpips_weights
from attacks.metrics.lpips_weights import fingerprint, load, prepare

TINY = {"features.0.weight": torch.arange(6.0).view(2, 3), "lin0.weight": torch.ones(1, 2, 1, 1)}


class Fake:
    """A source that gives tensors, or fails."""

    def __init__(self, answer: dict | OSError):
        self.answer, self.asked, self.__name__ = answer, 0, "fake"

    def __call__(self, net: str) -> dict:
        self.asked += 1
        if isinstance(self.answer, OSError):
            raise self.answer
        return dict(self.answer)


@pytest.fixture
def sources(monkeypatch):
    """Two sources of a network called tiny; what they answer is set by a test."""
    fakes = Fake(TINY), Fake(TINY)
    monkeypatch.setattr(lpips_weights, "SOURCES", fakes)
    monkeypatch.setitem(lpips_weights.FINGERPRINTS, "tiny", fingerprint(TINY))
    return fakes


def test_what_is_prepared_is_loaded_and_fetched_once(sources, tmp_path):
    path = prepare(tmp_path / "cache", "tiny")
    assert prepare(tmp_path / "cache", "tiny") == path
    assert [source.asked for source in sources] == [1, 0]
    loaded = load(tmp_path / "cache", "tiny")
    assert loaded is not None
    assert fingerprint(loaded) == fingerprint(TINY)


@pytest.mark.parametrize("bad", [OSError("no network"), {"features.0.weight": torch.zeros(2, 3)}])
def test_the_second_source_is_asked_if_the_first_fails_or_has_other_tensors(sources, bad, tmp_path):
    sources[0].answer = bad
    prepare(tmp_path, "tiny")
    assert [source.asked for source in sources] == [1, 1]
    assert load(tmp_path, "tiny") is not None


def test_without_a_source_nothing_is_kept_and_all_reasons_are_said(sources, tmp_path):
    sources[0].answer = OSError("no network")
    sources[1].answer = TINY | {"lin0.weight": torch.zeros(1, 2, 1, 1)}
    with pytest.raises(
        OSError, match=r"no source has the weights of tiny: no network; fake: .*not the expected"
    ):
        prepare(tmp_path, "tiny")
    assert list(tmp_path.iterdir()) == []


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-4])


def other_numbers(path):
    save_file(TINY | {"features.0.weight": torch.zeros(2, 3)}, path)


@pytest.mark.parametrize("damage", [flip_a_bit, cut_off, other_numbers])
def test_a_damaged_cache_is_reported_and_not_used_and_fetched_anew(sources, damage, tmp_path, caplog):
    damage(prepare(tmp_path, "tiny"))
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path, "tiny") is None
    assert "is damaged" in caplog.text
    prepare(tmp_path, "tiny")
    assert sources[0].asked == 2
    assert load(tmp_path, "tiny") is not None


def test_the_fingerprint_sees_names_shapes_and_every_number():
    weight = torch.arange(6.0)
    others = [
        {"b": weight},
        {"a": weight.view(2, 3)},
        {"a": weight.double()},
        {"a": weight + torch.eye(6)[5]},
    ]
    assert len({fingerprint(weights) for weights in [{"a": weight}, *others]}) == 5


def test_the_set_up_goes_on_without_a_network(sources, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("FL_APP_CACHE", str(tmp_path))
    for source in sources:
        source.answer = OSError("no network")
    lpips_weights.main([])
    assert "LPIPS will be missing" in caplog.text
    assert "no source has the weights of alex: no network; no network" in caplog.text


def test_the_set_up_fetches_what_it_is_asked_for(sources, tmp_path, monkeypatch):
    monkeypatch.setenv("FL_APP_CACHE", str(tmp_path))
    monkeypatch.setitem(lpips_weights.FINGERPRINTS, "vgg", fingerprint(TINY))
    lpips_weights.main(["vgg"])
    assert [path.name for path in tmp_path.iterdir()] == ["lpips-vgg.safetensors"]


def test_unknown_networks_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"\['alex', 'vgg'\], got 'squeeze'"):
        load(net="squeeze")
