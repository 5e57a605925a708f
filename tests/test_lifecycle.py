"""A process from its start to its end: readiness, reload, drain, a second signal."""

import http.client
import json
import resource
import socket
from urllib.parse import urlsplit

import pytest

POLICY = """
version: 1
backends: {main: {url: standin://sglang}}
rules:
  - {id: first-rule, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
"""
OTHER = POLICY.replace("first-rule", "second-rule")
FAULTY = """
version: 1
backends: {main: {url: standin://sglang, presets: [sglnag]}}
rules:
  - {id: first-rule, repair: [dorp: [sharp]]}
"""
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
SHARP = HELLO | {"sharp": True}
COUNT = {"model": "tiny", "messages": [{"role": "user", "content": "count to 40"}], "stream": True}
FOREVER = COUNT | {"messages": [{"role": "user", "content": "run forever"}]}
PACE = {"x-standin-pace-ms": "20"}


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def begin(connection, body):
    """Send a request for a slow stream and return the answer once its first event is there, and that event."""
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"} | PACE)
    answer = connection.getresponse()
    return answer, answer.readline()


def events_of(raw):
    return [line.removeprefix(b"data: ") for line in raw.split(b"\n") if line.startswith(b"data: ")]


def text_of(raw):
    chunks = [json.loads(data) for data in events_of(raw) if data != b"[DONE]"]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def test_a_process_that_serves_is_alive_ready_and_says_by_which_policy(serving, policy):
    with serving(policy) as proxy:
        assert proxy.get("/livez") == (200, "ok\n")
        assert proxy.get("/readyz") == (200, "ok\n")
        status, text = proxy.get("/readyz?verbose")
        assert status == 200
        assert text.splitlines()[0] == "[+]draining: no"
        assert text.splitlines()[2] == "[+]backend main: answers"
        assert "first-rule" in proxy.get("/policy")[1]


def test_as_many_files_may_be_open_as_the_process_may_have(serving, policy):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with serving(policy) as proxy:
            assert resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_sighup_takes_the_new_policy(serving, policy):
    with serving(policy) as proxy:
        assert proxy.post(SHARP)[1]["mendproxy-repairs"] == 'first-rule;loss="field sharp"'
        policy.write_text(OTHER)
        proxy.send_signal("SIGHUP")
        sha256 = proxy.until("policy.reloaded")["sha256"]
        assert proxy.post(SHARP)[1]["mendproxy-repairs"] == 'second-rule;loss="field sharp"'
        assert f"[+]policy: {sha256}\n" in proxy.get("/readyz?verbose")[1]
        assert "second-rule" in proxy.get("/policy")[1]


def test_a_new_backend_of_a_reload_is_started(serving, policy):
    with serving(policy) as proxy:
        assert "metadata" in json.loads(proxy.post(HELLO)[2])
        policy.write_text(POLICY.replace("sglang", "llamafactory"))
        proxy.send_signal("SIGHUP")
        proxy.until("policy.reloaded")
        assert json.loads(proxy.post(HELLO)[2])["id"].startswith("chatcmpl-")


def test_a_faulty_file_keeps_the_old_policy_and_every_fault_is_told(serving, policy):
    with serving(policy) as proxy:
        policy.write_text(FAULTY)
        proxy.send_signal("SIGHUP")
        preset, repair = (proxy.until("policy.fault")["fault"] for _ in range(2))
        assert preset == f'{policy}:3:52: unknown preset "sglnag": did you mean "sglang"?'
        assert repair == f'{policy}:5:31: unknown repair "dorp": did you mean "drop"?'
        kept = proxy.until("policy.kept")["sha256"]
        assert proxy.post(SHARP)[1]["mendproxy-repairs"] == 'first-rule;loss="field sharp"'
        status, text = proxy.get("/readyz?verbose")
        assert status == 200
        assert f"[-]policy: {kept} (kept: the last reload had 2 faults)\n" in text


def test_a_file_that_is_gone_keeps_the_old_policy_and_a_good_one_is_taken_again(serving, policy):
    with serving(policy) as proxy:
        policy.unlink()
        proxy.send_signal("SIGHUP")
        assert proxy.until("policy.unreadable")["file"] == str(policy)
        assert proxy.post(SHARP)[1]["mendproxy-repairs"] == 'first-rule;loss="field sharp"'
        assert "(kept: the last reload had 1 fault)" in proxy.get("/readyz?verbose")[1]
        policy.write_text(OTHER)
        proxy.send_signal("SIGHUP")
        proxy.until("policy.reloaded")
        assert "kept" not in proxy.get("/readyz?verbose")[1]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_idle_process_ends_well(serving, policy, name):
    with serving(policy, "--drain-grace", "0s") as proxy:
        proxy.send_signal(name)
        proxy.until("drained")
        assert proxy.exit_code() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_in_the_grace_every_answer_tells_its_connection_to_close(serving, policy, workers):
    with serving(policy, "--drain-grace", "3s", "--workers", workers) as proxy, proxy.connection() as kept:
        kept.request("GET", "/v1/models")
        before = kept.getresponse()
        assert (before.read() != b"", before.headers["Connection"]) == (True, None)
        proxy.send_signal("SIGTERM")
        proxy.until("draining")
        kept.request("GET", "/v1/models")
        answer = kept.getresponse()
        assert (answer.status, answer.read() != b"", answer.headers["Connection"]) == (200, True, "close")


def test_in_the_grace_no_new_traffic_is_invited_but_what_comes_is_served(serving, policy):
    with serving(policy, "--drain-grace", "1s") as proxy:
        proxy.send_signal("SIGTERM")
        assert proxy.until("draining")["grace_s"] == 1
        assert proxy.get("/readyz") == (503, "not ready\n")
        assert proxy.get("/readyz?verbose")[1].startswith("[-]draining: yes\n")
        assert proxy.get("/livez") == (200, "ok\n")
        assert proxy.post(HELLO)[0] == 200
        assert proxy.exit_code() == 0


def test_a_running_stream_is_finished_whole_while_others_are_turned_away(serving, policy):
    with serving(policy, "--drain-grace", "0s") as proxy, proxy.connection() as slow, proxy.connection() as kept:
        kept.request("GET", "/v1/models")
        assert kept.getresponse().read()
        answer, first = begin(slow, COUNT)
        proxy.send_signal("SIGTERM")
        assert proxy.until("listener.closed")["in_flight"] == 1

        kept.request("GET", "/v1/models")
        refusal = kept.getresponse()
        assert refusal.status == 503
        assert refusal.getheader("Connection") == "close"
        assert refusal.getheader("Proxy-Status") == "mendproxy;error=proxy_internal_response"
        assert json.loads(refusal.read())["error"]["code"] == "draining"

        at = urlsplit(proxy.url)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((at.hostname, at.port), timeout=1)

        raw = first + answer.read()
        assert text_of(raw) == " ".join(map(str, range(1, 41)))
        assert events_of(raw)[-1] == b"[DONE]"
        assert proxy.exit_code() == 0


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--drain-grace", "1m"), id="in the grace"),
        pytest.param(("--drain-grace", "0s", "--drain-timeout", "1m"), id="while an answer is waited for"),
    ],
)
def test_a_second_signal_ends_the_process_at_once(serving, policy, flags):
    with serving(policy, *flags) as proxy, proxy.connection() as slow:
        begin(slow, FOREVER)
        proxy.send_signal("SIGTERM")
        proxy.until("draining" if flags[1] == "1m" else "listener.closed")
        proxy.send_signal("SIGTERM")
        assert proxy.until("ending.now")["in_flight"] == 1
        assert proxy.exit_code() == 0


def test_an_answer_without_an_end_is_cut_when_the_time_to_drain_is_over(serving, policy):
    with serving(policy, "--drain-grace", "0s", "--drain-timeout", "100ms") as proxy, proxy.connection() as slow:
        answer, _ = begin(slow, FOREVER)
        proxy.send_signal("SIGTERM")
        assert proxy.until("drain.timeout")["in_flight"] == 1
        assert proxy.exit_code() == 0
        assert answer.chunked
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()


def test_a_reload_does_not_end_a_drain(serving, policy):
    with serving(policy, "--drain-grace", "0s") as proxy, proxy.connection() as slow:
        answer, first = begin(slow, COUNT)
        proxy.send_signal("SIGTERM")
        proxy.until("listener.closed")
        proxy.send_signal("SIGHUP")
        assert text_of(first + answer.read()) == " ".join(map(str, range(1, 41)))
        assert proxy.exit_code() == 0
