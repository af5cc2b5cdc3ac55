"""The proxy as a process: what it passes on to a SuperLink, and for whom."""

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from deployed import SMALL, harness, needs_flower, operator, run
from disturbed_runs import DGP
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType

from fl_app.deploy.certificates import make_secrets
from fl_app.deploy.flower_command import flower_command
from fl_app.deploy.proxy import command, write_config
from fl_app.deploy.tunnel import tunnel

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None, reason="nginx is not installed"
)
pytestmark = needs_nginx
HOST = "127.0.0.1"


class Upstream(BaseHTTPRequestHandler):
    """Stands for a SuperLink: says which path it was asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = self.path.encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *words): ...


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secrets")
    make_secrets(folder / "ours", ["localhost", HOST], 0)
    make_secrets(folder / "theirs", ["localhost", HOST], 0)
    return folder


@pytest.fixture(scope="module")
def proxy(secrets, tmp_path_factory):
    """Return the port of a proxy before an upstream that answers everything."""
    ours = secrets / "ours"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours / "server" / "server.pem", ours / "server" / "server.key")
    upstream = ThreadingHTTPServer((HOST, 0), Upstream)
    upstream.socket = context.wrap_socket(upstream.socket, server_side=True)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    file = write_config(
        tmp_path_factory.mktemp("proxy"),
        listen=f"{HOST}:{port}",
        superlink=f"{HOST}:{upstream.server_port}",
        certificate=ours / "server" / "server.pem",
        key=ours / "server" / "server.key",
        authority=ours / "trust" / "ca.crt",
    )
    nginx = subprocess.Popen(command(file))
    try:
        until_open(port)
        yield port
    finally:
        nginx.terminate()
        nginx.wait()
        upstream.shutdown()


def until_open(port):
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("nginx does not listen")


def ask(port, path, certified=None, trusted=None, method="POST"):
    """Return the status of a request, with the certificate of a folder or without any."""
    context = ssl.create_default_context(cafile=trusted)
    if trusted is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certified is not None:
        context.load_cert_chain(*certified)
    connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=30)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    finally:
        connection.close()


def operator_of(folder):
    return folder / "operator" / "operator.pem", folder / "operator" / "operator.key"


def test_nodes_get_the_fleet_api_and_anybody_the_health(proxy, secrets):
    trusted = secrets / "ours" / "trust" / "ca.crt"
    assert ask(proxy, "/v1/fleet/pull-messages", trusted=trusted) == 200
    assert ask(proxy, "/health", trusted=trusted, method="GET") == 200


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/control/list-runs"]
)
def test_control_is_for_operators(proxy, secrets, path):
    server = secrets / "ours" / "server"
    assert ask(proxy, path) == 403
    assert ask(proxy, path, certified=operator_of(secrets / "ours")) == 200
    # another authority's operator, and the server's own certificate, are none
    assert ask(proxy, path, certified=operator_of(secrets / "theirs")) == 400
    assert ask(proxy, path, certified=(server / "server.pem", server / "server.key")) == 400


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runtime/acquire-task",
        "/v1/runtime/pull-messages",
        "/v1/fleet/../runtime/acquire-task",
        "/v1/fleet/%2e%2e/runtime/acquire-task",
        "/v1/fleet/..%2fruntime/acquire-task",
        "//v1/runtime/acquire-task",
        "/v1//runtime/acquire-task",
        "/V1/RUNTIME/acquire-task",
        "/v1/control/../runtime/acquire-task",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/",
        "/openapi.json",
        "/docs",
        "/metrics",
        "/",
    ],
)
def test_the_runtime_and_everything_else_is_for_nobody(proxy, secrets, path):
    for certified in (None, operator_of(secrets / "ours")):
        if "control/start-run" in path and certified is not None:
            continue  # nginx resolves the dots: it is the control API by another name
        assert ask(proxy, path, certified=certified) in (400, 403, 404)


def test_a_tunnel_shows_the_operators_certificate(proxy, secrets):
    ours = secrets / "ours"
    with tunnel(f"localhost:{proxy}", ours / "trust" / "ca.crt", *operator_of(ours)) as address:
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request("POST", "/v1/control/start-run", body=b"x" * 100_000)
        assert connection.getresponse().read() == b"/v1/control/start-run"
        connection.close()


def test_a_tunnel_leads_to_no_server_of_another_authority(proxy, secrets):
    ours, theirs = secrets / "ours", secrets / "theirs"
    with tunnel(f"localhost:{proxy}", theirs / "trust" / "ca.crt", *operator_of(ours)) as address:
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request("POST", "/v1/control/start-run")
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.getresponse()


def test_a_path_that_nginx_would_read_as_words_is_refused(tmp_path):
    with pytest.raises(ValueError, match="signs"):
        write_config(
            tmp_path / "a; daemon on",
            listen=f"{HOST}:1",
            superlink=f"{HOST}:2",
            certificate=tmp_path,
            key=tmp_path,
            authority=tmp_path,
        )


@contextmanager
def stranger(address):
    """Give a function that posts to a SuperLink without a certificate, key or account."""
    host, port = address.rsplit(":", 1)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)

    def post(path, body=b""):
        connection.request("POST", path, body=body, headers={"content-type": "application/protobuf"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    yield post
    connection.close()


@needs_flower
@pytest.mark.slow
def test_a_stranger_at_the_port_of_a_federation_starts_registers_and_takes_nothing(tmp_path):
    with harness(tmp_path) as federation:
        federation.up("proxy")
        federation.wait_for_health("proxy")
        address = f"{federation.address('superlink')}:8000"
        trust = federation.volume("trust") / "ca.crt"
        with stranger(address) as post:
            for path in ("register-node", "start-run", "list-runs", "stop-run"):
                assert post(f"/v1/control/{path}")[0] == 403
            for path in ("acquire-task", "pull-messages", "get-nodes", "push-logs"):
                assert post(f"/v1/runtime/{path}")[0] == 404
        # ca.crt alone, which every node has, is no credential either
        with flower_command(address, trust) as flower:
            assert "403" in flower.run("list", "--format", "json").stdout
        with flower_command(address, trust, operator(federation)) as flower:
            assert json.loads(flower.run("supernode", "list", "--format", "json").stdout)["success"] is True


@needs_flower
@pytest.mark.slow
def test_a_stranger_that_asks_for_the_tasks_of_a_run_all_the_time_takes_none_of_them(tmp_path):
    """Whoever gets a task of a run has its token: it reads the orders and answers in the node's place."""
    asked = AcquireTaskRequest(supported_task_types=[*TaskType]).SerializeToString()
    with harness(tmp_path) as federation:
        federation.up()
        over, answers = threading.Event(), Counter()

        def take():
            with stranger(f"{federation.address('superlink')}:8000") as post:
                while not over.wait(0.02):
                    answers[post("/v1/runtime/acquire-task", asked)[0]] += 1

        thief = threading.Thread(target=take, daemon=True)
        thief.start()
        try:
            result = run(federation, f"{SMALL} {DGP} rounds=2")
        finally:
            over.set()
            thief.join(60)
    assert not thief.is_alive()
    assert answers.keys() == {404}
    assert answers[404] > 20
    assert [row["clients"] for row in result["rounds"]] == [3, 3]
    assert not any(row["failures"] for row in result["rounds"])
