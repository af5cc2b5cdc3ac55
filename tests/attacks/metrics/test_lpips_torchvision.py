import hashlib
import io
import socket
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
import torch

from attacks.metrics import lpips_torchvision
from attacks.metrics.lpips_torchvision import from_torchvision
from fl_app.models.torchvision_cpu import import_torchvision

STATE = {"features.0.weight": torch.arange(4.0).view(1, 1, 2, 2), "classifier.0.weight": torch.zeros(3)}


def saved(state: dict) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


class Server(BaseHTTPRequestHandler):
    """Sends one file; with a pause, byte after byte."""

    asked: ClassVar[list[str]] = []

    def __init__(self, *args, content: bytes, pause: float, **kwargs):
        self.content, self.pause = content, pause
        super().__init__(*args, **kwargs)

    def do_GET(self):
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        parts = [self.content] if not self.pause else [self.content[i : i + 1] for i in range(50)]
        try:
            for part in parts:
                self.wfile.write(part)
                time.sleep(self.pause)
        except OSError:
            pass  # the other side has given up

    def log_message(self, *_):
        pass


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """Start a server in place of torchvision's for the file of "alex"; TORCH_HOME is an empty folder."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(Server, "asked", [])
    servers = []

    def start(content: bytes, *, pause: float = 0, promise: bytes | None = None) -> str:
        name = f"tiny-{hashlib.sha256(promise or content).hexdigest()[:8]}.pth"
        handler = partial(Server, content=content, pause=pause)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        monkeypatch.setattr(lpips_torchvision, "SERVER", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setitem(lpips_torchvision.FILES, "alex", name)
        return name

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("net", "weights"), [("alex", "AlexNet_Weights"), ("vgg", "VGG16_Weights")])
def test_the_files_are_those_that_torchvision_names(net, weights):
    url = getattr(import_torchvision("models"), weights).IMAGENET1K_V1.url
    assert lpips_torchvision.SERVER + lpips_torchvision.FILES[net] == url


def test_convolutions_come_from_the_server_and_linear_weights_from_the_package(serve):
    serve(saved(STATE))
    weights = from_torchvision("alex")
    assert set(weights) == {"features.0.weight", *(f"lin{k}.weight" for k in range(5))}
    torch.testing.assert_close(weights["features.0.weight"], STATE["features.0.weight"])
    assert weights["lin0.weight"].shape == (1, 64, 1, 1)


def test_a_file_that_torchvision_kept_is_used_without_the_server(serve, tmp_path):
    name = serve(saved(STATE))
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(saved(STATE))
    assert "features.0.weight" in from_torchvision("alex")
    assert Server.asked == []


def test_a_file_with_another_checksum_than_its_name_says_is_refused(serve):
    serve(saved({"features.0.weight": torch.zeros(1)}), promise=saved(STATE))
    with pytest.raises(OSError, match=r"has checksum .* expected it to begin"):
        from_torchvision("alex")


def test_a_file_that_asks_for_more_than_tensors_is_refused(serve):
    serve(saved({"features.0.weight": threading.Thread}))
    with pytest.raises(OSError, match="not a file of tensors"):
        from_torchvision("alex")


def test_a_server_that_says_nothing_is_given_up(monkeypatch, serve):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        serve(saved(STATE))
        monkeypatch.setattr(lpips_torchvision, "SERVER", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        monkeypatch.setattr(lpips_torchvision, "SILENCE", 0.2)
        with pytest.raises(OSError, match=r"could not fetch .*timed out"):
            from_torchvision("alex")


def test_a_server_that_only_trickles_is_given_up(monkeypatch, serve):
    serve(saved(STATE), pause=0.05)
    monkeypatch.setattr(lpips_torchvision, "PATIENCE", 0.2)
    with pytest.raises(OSError, match=r"could not fetch .*not complete after"):
        from_torchvision("alex")
    assert len(Server.asked) == 1


def test_without_a_server_the_reason_is_said(monkeypatch, serve):
    serve(saved(STATE))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(lpips_torchvision, "SERVER", f"http://127.0.0.1:{port}/")
    with pytest.raises(OSError, match=r"could not fetch http://127\.0\.0\.1.*refused"):
        from_torchvision("alex")
