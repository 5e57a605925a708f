"""`mendproxy serve --traces otlp`: spans arrive at a collector, or it says which packages are missing."""

import os
import queue
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ROOT = Path(__file__).parent.parent
PATIENCE_S = 20.0
POLICY = """
version: 1
backends: {main: {url: standin://sglang}}
rules: [{id: looks, when: {body: {odd: true}}, repair: [drop: [odd]]}]
"""
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
# As where the extra is not installed.
WITHOUT = "import sys; sys.modules['opentelemetry'] = None; import proxy.cli; proxy.cli.main()"


class Collector(BaseHTTPRequestHandler):
    """Takes what is exported."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.put((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments):
        """Say nothing."""


@pytest.fixture
def collector():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.taken = queue.SimpleQueue()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join(PATIENCE_S)
    server.server_close()


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def strings(attributes):
    return {one.key: one.value.string_value for one in attributes if one.value.HasField("string_value")}


@pytest.mark.parametrize("workers", ["1", "2"], ids=["one process", "two workers"])
def test_spans_of_the_last_moment_arrive_at_the_collector(serving, policy, collector, workers):
    environ = {
        "MENDPROXY_TRACES": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    with serving(policy, "--workers", workers, "--drain-grace", "0s", environ=environ) as proxy:
        assert proxy.post(HELLO)[0] == 200
        proxy.send_signal("SIGTERM")
        assert proxy.exit_code() == 0
        path, exported = collector.taken.get(timeout=PATIENCE_S)
    [resource] = exported.resource_spans
    said = strings(resource.resource.attributes)
    assert (path, said["service.name"], said["deployment.environment.name"]) == ("/v1/traces", "mendproxy", "test")
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    assert spans.keys() == {"POST /v1/chat/completions", "chat tiny"}
    assert spans["chat tiny"].parent_span_id == spans["POST /v1/chat/completions"].span_id


def test_the_operators_name_of_the_service_is_taken(serving, policy, collector):
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_SERVICE_NAME": "front",
    }
    with serving(policy, "--traces", "otlp", "--drain-grace", "0s", environ=environ) as proxy:
        assert proxy.post(HELLO)[0] == 200
        proxy.send_signal("SIGTERM")
        assert proxy.exit_code() == 0
        _, exported = collector.taken.get(timeout=PATIENCE_S)
    assert strings(exported.resource_spans[0].resource.attributes)["service.name"] == "front"


def test_a_collector_that_is_away_costs_no_request_anything_and_is_told(serving, policy):
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS": "key=SECRET"}
    environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"
    with serving(policy, "--traces", "otlp", "--drain-grace", "0s", environ=environ) as proxy:
        assert proxy.post(HELLO)[0] == 200
        proxy.send_signal("SIGTERM")
        assert proxy.exit_code() == 0
        assert "SECRET" not in "".join(proxy.output)
        assert any("xport" in line for line in proxy.output)


@pytest.mark.parametrize("workers", ["1", "2"], ids=["one process", "two workers"])
def test_missing_packages_are_named_with_what_installs_them(policy, workers, tmp_path):
    own = {name: value for name, value in os.environ.items() if not name.startswith("MENDPROXY_")}
    # A worker is a process of its own, which is told by its site.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry'] = None\n")
    command = [sys.executable, "-c", WITHOUT, "serve", "-c", str(policy), "--port", "0", "--admin-port", "0"]
    done = subprocess.run(  # noqa: S603 the command is this test's own
        [*command, "--traces", "otlp", "--workers", workers],
        cwd=ROOT,
        env=own | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 3
    assert "mendproxy: --traces otlp takes packages that are not installed" in done.stderr
    assert "pip install 'mendproxy[otel]'" in done.stderr
    assert "Traceback" not in done.stderr
