"""Several processes that serve as one: the same policy in all, one admin port, what is lost when one of them dies."""

import json
import os
import signal
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.options import CannotStart
from proxy.several import held_port, own_file

POLICY = r"""
version: 1
backends: {main: {url: standin://sglang}}
rules:
  - {id: first-rule, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
  - id: refused
    on_error: {status: 400, message: "(?P<field>temperature)"}
    repair: [drop: ["{field}"]]
    learn: {for: 1h}
"""
SECOND = POLICY.replace("first-rule", "second-rule")
THIRD = POLICY.replace("first-rule", "third-rule")
FAULTY = POLICY.replace("drop: [sharp]", "dorp: [sharp]")
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
SHARP = HELLO | {"sharp": True}
HOT = HELLO | {"temperature": -1}
COUNT = {"model": "tiny", "messages": [{"role": "user", "content": "count to 30"}], "stream": True}
FOREVER = COUNT | {"messages": [{"role": "user", "content": "run forever"}]}
PACED = {"Content-Type": "application/json", "x-standin-pace-ms": "20"}
# The kernel picks a worker for each connection: that one of two is never picked has a chance of 2 to the minus 39.
MANY = 40


def pids_of(proxy):
    return {worker["pid"] for worker in json.loads(proxy.get("/status")[1])["workers"]}


def ask_many(proxy, body):
    """Return what the answers on many connections said was repaired; both workers have answered some."""
    answers = [proxy.post(body) for _ in range(MANY)]
    assert {status for status, _, _ in answers} == {200}
    served = {proxy.until("request")["pid"] for _ in range(MANY)}
    assert served == pids_of(proxy)
    return {headers.get("mendproxy-repairs", "").partition(";")[0] for _, headers, _ in answers}


def requests_counted(proxy):
    families = text_string_to_metric_families(proxy.get("/metrics")[1])
    return sum(
        sample.value for family in families for sample in family.samples if sample.name == "mendproxy_requests_total"
    )


def test_all_work_by_one_policy_whatever_happens_to_the_file_and_to_one_of_them(serving, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    with serving(policy, "--workers", "2", "--drain-grace", "1m") as proxy, ExitStack() as stack:
        assert ask_many(proxy, SHARP) == {"first-rule"}
        assert requests_counted(proxy) == MANY
        (rule, _) = json.loads(proxy.get("/status")[1])["rules"]
        assert (rule["id"], rule["lossy"]) == ("first-rule", MANY)

        policy.write_text(SECOND)
        proxy.send_signal("SIGHUP")
        proxy.until("policy.reloaded")
        assert ask_many(proxy, SHARP) == {"second-rule"}

        policy.write_text(FAULTY)
        proxy.send_signal("SIGHUP")
        proxy.until("policy.kept")
        assert ask_many(proxy, SHARP) == {"second-rule"}
        verbose = proxy.get("/readyz?verbose")[1].splitlines()
        assert f'[-]{policy}:5:60: unknown repair "dorp": did you mean "drop"?' in verbose
        assert verbose[-2:] == ["[+]workers: 2 of 2 answer", "ok"]
        assert "mendproxy_policy_last_reload_successful 0.0" in proxy.get("/metrics")[1]

        # A worker that comes when the file is faulty has the policy that the others have.
        counted = requests_counted(proxy)
        victim = min(pids_of(proxy))
        os.kill(victim, signal.SIGKILL)
        died = proxy.until("worker.died")
        assert (died["worker"], died["how"]) == (victim, "signal SIGKILL")
        assert requests_counted(proxy) == counted
        assert proxy.until("worker.started")["worker"] not in (victim, None)
        assert ask_many(proxy, SHARP) == {"second-rule"}
        assert requests_counted(proxy) == counted + MANY

        policy.write_text(THIRD)  # seen by itself
        proxy.until("policy.reloaded")
        assert ask_many(proxy, SHARP) == {"third-rule"}

        begin(stack, proxy, FOREVER)
        proxy.send_signal("SIGTERM")
        assert proxy.until("draining")["in_flight"] == 1
        proxy.send_signal("SIGTERM")  # a second one ends all at once
        proxy.until("ending.now")
        assert proxy.exit_code() == 0


def begin(stack, proxy, body):
    """Send a request for a slow stream and return its answer, once its first event is there, and that event."""
    connection = stack.enter_context(proxy.connection())
    connection.request("POST", "/v1/chat/completions", json.dumps(body), PACED)
    answer = connection.getresponse()
    return answer, answer.readline()


def test_what_one_was_refused_all_repair_and_a_drain_ends_all_when_they_are_done(serving, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    with serving(policy, "--workers", "2", "--drain-grace", "0s") as proxy, ExitStack() as stack:
        assert proxy.post(HOT)[1]["mendproxy-repairs"].startswith("refused;")
        learners = {proxy.until("learned.adopted")["pid"] for _ in range(2)}  # the other worker, and the supervisor
        assert len(learners & pids_of(proxy)) == 1
        assert all(name.startswith("learned/refused-") for name in ask_many(proxy, HOT))
        assert "refused-" in proxy.get("/learned")[1]
        assert "mendproxy_learned_repairs 1.0" in proxy.get("/metrics")[1]

        streams = [begin(stack, proxy, COUNT) for _ in range(6)]
        proxy.send_signal("SIGTERM")
        assert proxy.until("draining")["in_flight"] == len(streams)
        assert proxy.get("/readyz") == (503, "not ready\n")
        proxy.until("listener.closed")
        at = urlsplit(proxy.url)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((at.hostname, at.port), timeout=1)
        for answer, first in streams:
            assert (first + answer.read()).endswith(b"data: [DONE]\n\n")
        assert proxy.exit_code() == 0


def test_workers_end_with_a_supervisor_that_is_killed_and_leave_nothing_behind(serving, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    with serving(policy, "--workers", "2") as proxy, ExitStack() as stack:
        begin(stack, proxy, FOREVER)
        [serves] = [line for line in map(json.loads, proxy.output) if line["event"] == "serving"]
        file = Path(serves["learned"])
        assert file.parent.is_dir()
        proxy.send_signal("SIGKILL")
        # The pipe that they all write to ends with the last of them.
        said = [json.loads(line)["event"] for line in iter(proxy.next_line, None)]
        assert said == ["request"]
        assert not file.parent.exists()


# The port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_port_is_held_for_workers_alone(host):
    with held_port(host, 0) as port:
        assert port > 0
        family = socket.AF_INET6 if host == "::1" else socket.AF_INET
        with closing(socket.socket(family)) as worker, closing(socket.socket(family)) as other:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            worker.bind((host, port))
            worker.listen()
            with pytest.raises(OSError, match="in use"):
                other.bind((host, port))
    with held_port(host, port) as again:
        assert again == port


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "by workers of another"])
def test_a_port_that_somebody_listens_on_is_not_taken(is_shared):
    with closing(socket.socket()) as other:
        if is_shared:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CannotStart, match=f"can't listen on 127.0.0.1:{port}: Address already in use"):
            held_port("127.0.0.1", port).__enter__()


def test_a_host_that_nobody_knows_is_told():
    with pytest.raises(CannotStart, match=r"can't listen on 256\.0\.0\.1:0: "):
        held_port("256.0.0.1", 0).__enter__()


def test_a_file_of_the_workers_own_goes_with_them():
    with ExitStack() as stack:
        file = Path(own_file(stack))
        file.write_text("[]")
    assert not file.parent.exists()
