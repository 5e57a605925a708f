"""The soak: a short one passes against the real process, and what a long one would look for is found."""

import json

import pytest

from soak import page, texts
from soak.__main__ import main
from soak.judge import Wrong, echo, judge, judge_part, judge_tunnel, request_id
from soak.ledger import Ledger, Outcome
from soak.messages import Message
from soak.run import Report, Settings
from soak.scripts import Drawer, Due, Fault, Script, Shape
from soak.watch import GROWTH_BYTES, MIB, Sample, at_share, grown, growth, left_over, slope


def test_a_short_soak_of_the_real_process_finds_nothing(capsys):
    # What only time can end, a backend that never answers, is left to the long ones.
    faults = ",".join(fault.name.lower() for fault in Fault if fault is not Fault.SILENT)
    code = main(["--seconds", "3", "--streams", "30", "--pace", "0.1", "--seed", "4", "--faults", faults, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["findings"], told["verdict"], code) == ([], "good", 0)
    requests = told["requests"]
    assert requests["begun"] == sum(requests.values()) - requests["begun"] > 100
    assert requests["wrong"] == 0
    assert min(requests["whole"], requests["failed as injected"], requests["cut as injected"]) > 0
    assert all(told["shapes"][shape] > 0 for shape in Shape)
    assert sum(told["faults"].values()) > 20
    assert told["reloads"]["good"] > 0
    assert told["peak"]["in_flight"] > 5


def test_a_proxy_that_cannot_start_is_told(capsys):
    assert main(["--seconds", "1", "--streams", "1", "--no-such-flag"]) == 3
    assert "No such option" in capsys.readouterr().err


def sample(at_s=0.0, **numbers):
    seen = {"rss_bytes": 100 * MIB, "descriptors": 15, "threads": 5, "in_flight": 0, "streams_open": 0, "upstream": 0}
    return Sample(at_s, **(seen | numbers))


def memory(bytes_at):
    return [sample(at_s, rss_bytes=int(bytes_at(at_s))) for at_s in range(0, 900, 2)]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        pytest.param([], 0.0, id="no points"),
        pytest.param([(1, 5)], 0.0, id="one point"),
        pytest.param([(1, 5), (1, 9)], 0.0, id="two points at one time"),
        pytest.param([(0, 1), (1, 3), (2, 5)], 2.0, id="a line"),
        pytest.param([(0, 0), (1, 0), (2, 900), (3, 0), (4, 0)], 0.0, id="an outlier does not count"),
    ],
)
def test_the_slope_is_the_median_of_all_slopes(points, expected):
    assert slope(points) == expected


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(memory(lambda at_s: 100 * MIB + at_s * 8000), id="8 kB a second, all the time"),
        pytest.param(memory(lambda at_s: 100 * MIB + at_s * 8000 + at_s % 6 * MIB), id="as much under a saw"),
        pytest.param(memory(lambda at_s: 100 * MIB + max(0, at_s - 400) * 8000), id="growth that begins late"),
    ],
)
def test_memory_that_grows_is_found(samples):
    (found,) = grown(samples)
    assert found.startswith("memory grows: 3.")


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([], id="nothing was seen"),
        pytest.param(memory(lambda at_s: 100 * MIB), id="flat"),
        pytest.param(memory(lambda at_s: (200 - 100 * 0.98**at_s) * MIB), id="it doubles while it is warmed up"),
        pytest.param(memory(lambda at_s: 100 * MIB + (at_s > 898) * 50 * MIB), id="one sample is far off"),
        pytest.param(memory(lambda at_s: 200 * MIB - at_s * 8000), id="it shrinks"),
        pytest.param(memory(lambda at_s: 100 * MIB + at_s * MIB)[:20], id="the time was too short to tell"),
    ],
)
def test_memory_that_does_not_grow_is_let_pass(samples):
    assert grown(samples) == []


def test_a_large_process_may_grow_by_its_share():
    assert growth(memory(lambda at_s: 1000 * MIB)).allowed_bytes == 20 * MIB
    assert growth(memory(lambda at_s: 10 * MIB)).allowed_bytes == GROWTH_BYTES


@pytest.mark.parametrize(
    ("after", "found"),
    [
        pytest.param({"descriptors": 16}, ["left over: descriptors 16, 15 before the load"], id="a descriptor"),
        pytest.param({"in_flight": 1}, ["left over: in_flight 1, 0 before the load"], id="a request"),
        pytest.param({"streams_open": 1}, ["left over: streams_open 1, 0 before the load"], id="a stream"),
        pytest.param({"upstream": 2}, ["left over: upstream 2, 0 before the load"], id="connections to the backend"),
        pytest.param({"threads": 14}, ["left over: threads 14, 5 before the load"], id="threads, one for each reload"),
        pytest.param({"threads": 13}, [], id="the threads of a pool may stay"),
        pytest.param({"descriptors": 14, "rss_bytes": 900 * MIB}, [], id="memory is judged by its slope"),
    ],
)
def test_what_is_left_over_is_found(after, found):
    assert left_over(sample(), sample(900.0, **after)) == found


def test_samples_are_told_by_their_share_of_the_time():
    samples = memory(lambda at_s: at_s)
    assert [at_share(samples, share).at_s for share in (0.0, 0.5, 1.0)] == [0, 448, 898]


RELAYED = Script(7, Shape.RELAYED, words=3)
PLAIN = Script(7, Shape.PLAIN, words=3)
FANNED = Script(7, Shape.FANNED, words=3, choices=2)
ERROR = b'data: {"error": {"message": "It broke off."}}\n\n'


def answer(script, body, *, status=200, is_whole=True, about=None):
    return Message(f"HTTP/1.1 {status} X", {"x-request-id": request_id(about or script)}, bytearray(body), is_whole)


def stream(number):
    return b"".join(texts.events(number * 16, 3, 0))


def two_choices(first, second):
    """Return the stream of a fan-out: its choices' events one after another, by the seeds that they are of."""
    ends = [texts.events(seed, 3, 0)[:-1] for seed in (first, second)]
    second_one = [event.replace(b'"index": 0', b'"index": 1') for event in ends[1]]
    return b"".join([*ends[0], *second_one, texts.DONE])


def faulty(script, fault):
    return Script(script.number, script.shape, fault, words=script.words, choices=script.choices)


@pytest.mark.parametrize(
    ("script", "body", "due"),
    [
        pytest.param(RELAYED, stream(7), Due.WHOLE, id="the backend's bytes"),
        pytest.param(RELAYED, b": waiting\n\n" + stream(7), Due.WHOLE, id="with a comment before them"),
        pytest.param(FANNED, two_choices(112, 113), Due.WHOLE, id="each choice its own words"),
        pytest.param(PLAIN, texts.answer(112, 3, 0), Due.WHOLE, id="the backend's JSON"),
        pytest.param(faulty(RELAYED, Fault.CUT), stream(7)[:200] + b"\n\n" + ERROR, Due.CUT, id="cut, and says so"),
        pytest.param(faulty(FANNED, Fault.STALL), ERROR, Due.CUT, id="cut before the first word"),
    ],
)
def test_an_answer_that_is_right_is_let_pass(script, body, due):
    assert judge(script, answer(script, body)) is due


@pytest.mark.parametrize(
    ("script", "body", "what"),
    [
        pytest.param(RELAYED, stream(8), "not the backend's", id="another request's words"),
        pytest.param(RELAYED, stream(7).replace(b"70.1 ", b"80.1 "), "not the backend's", id="one word of another's"),
        pytest.param(RELAYED, stream(7).replace(b'": ', b'":'), "not the backend's", id="the same JSON in other bytes"),
        pytest.param(RELAYED, stream(7) * 2, "not the backend's", id="an answer twice"),
        pytest.param(RELAYED, stream(7)[:300] + ERROR, "an error event", id="an error that nobody made"),
        pytest.param(FANNED, two_choices(113, 112), "not the backend's", id="two choices that were swapped"),
        pytest.param(FANNED, two_choices(112, 129), "not the backend's", id="a choice of another request"),
        pytest.param(FANNED, two_choices(112, 113)[:-14], r"\[DONE\]", id="no end"),
        pytest.param(PLAIN, texts.answer(128, 3, 0), "not the backend's", id="another request's JSON"),
        pytest.param(faulty(RELAYED, Fault.CUT), stream(7), "looks like a whole one", id="a cut that shows nowhere"),
        pytest.param(faulty(RELAYED, Fault.CUT), ERROR + texts.DONE, r"\[DONE\]", id="an end after the error"),
        pytest.param(
            faulty(RELAYED, Fault.CUT), stream(8)[:200] + ERROR, "not the backend's", id="cut, another's words"
        ),
        pytest.param(faulty(FANNED, Fault.CUT), two_choices(113, 112)[:-14] + ERROR, "not the back", id="cut, swapped"),
        pytest.param(faulty(PLAIN, Fault.CUT), texts.answer(112, 3, 0), "looks like a whole", id="JSON, a cut unseen"),
    ],
)
def test_an_answer_that_is_wrong_is_found(script, body, what):
    with pytest.raises(Wrong, match=what):
        judge(script, answer(script, body))


@pytest.mark.parametrize(
    ("script", "came", "what"),
    [
        pytest.param(RELAYED, answer(RELAYED, stream(7), about=FANNED), None, id="its own id"),
        pytest.param(RELAYED, answer(RELAYED, stream(7), about=Script(8, Shape.PLAIN)), "id soak-8", id="another's id"),
        pytest.param(RELAYED, answer(RELAYED, b"{}", status=502), "status 502", id="a failure that nobody made"),
        pytest.param(faulty(RELAYED, Fault.SILENT), answer(RELAYED, b"{}", status=502), "status 502", id="another one"),
        pytest.param(RELAYED, answer(RELAYED, stream(7)[:99], is_whole=False), "no end", id="it just ended"),
        pytest.param(RELAYED, Message(), "without an answer", id="no answer"),
    ],
)
def test_an_answer_has_to_be_the_requests_own(script, came, what):
    if what is None:
        assert judge(script, came) is Due.WHOLE
        return
    with pytest.raises(Wrong, match=what):
        judge(script, came)


def test_what_had_come_when_a_client_left_is_judged_too():
    judge_part(RELAYED, answer(RELAYED, stream(7)[:150], is_whole=False))
    with pytest.raises(Wrong):
        judge_part(RELAYED, answer(RELAYED, stream(8)[:150], is_whole=False))


def test_a_tunnel_is_judged_by_its_echoes():
    script = Script(7, Shape.TUNNEL, words=2)
    whole = echo(script, 0) + echo(script, 1)
    assert judge_tunnel(script, whole) is Due.WHOLE
    assert judge_tunnel(faulty(script, Fault.RESET), echo(script, 0)) is Due.CUT
    with pytest.raises(Wrong):
        judge_tunnel(script, echo(script, 0))
    with pytest.raises(Wrong):
        judge_tunnel(script, echo(Script(8, Shape.TUNNEL), 0) + echo(script, 1))
    with pytest.raises(Wrong):
        judge_tunnel(faulty(script, Fault.RESET), whole)


def test_a_ledger_tells_what_has_no_end():
    ledger = Ledger()
    ledger.begin(RELAYED)
    ledger.begin(other := Script(8, Shape.PLAIN))
    ledger.end(other, Outcome.LEFT)
    assert ledger.findings() == ["2 requests were begun and 1 ended"]
    ledger.end(RELAYED, Outcome.WHOLE)
    assert (ledger.findings(), ledger.streams_finished, ledger.running) == ([], 1, 0)


def test_a_request_ends_once():
    ledger = Ledger()
    ledger.begin(RELAYED)
    ledger.end(RELAYED, Outcome.CUT)
    with pytest.raises(KeyError):
        ledger.end(RELAYED, Outcome.WHOLE)


def test_a_ledger_keeps_so_many_complaints_and_counts_all():
    ledger = Ledger()
    for number in range(100):
        ledger.begin(script := Script(number, Shape.PLAIN))
        ledger.wrong(script, "it is wrong")
    assert len(ledger.findings()) == 41
    assert ledger.findings()[-1] == "100 answers were wrong, of which the first 40 are told"


def test_the_same_seed_draws_the_same_scripts_and_a_script_survives_its_header():
    drawers = [Drawer("3.1", 1.0, Shape, Fault) for _ in range(2)]
    drawn = [[drawer.draw(number) for number in range(200)] for drawer in drawers]
    assert drawn[0] == drawn[1] == [Script.parse(script.told()) for script in drawn[0]]
    assert {script.shape for script in drawn[0]} == set(Shape)


def test_only_what_is_asked_for_is_drawn():
    drawer = Drawer("3.1", 1.0, [Shape.FANNED], [Fault.CUT])
    drawn = [drawer.draw(number) for number in range(200)]
    assert {(script.shape, script.fault) for script in drawn} == {
        (Shape.FANNED, Fault.NONE),
        (Shape.FANNED, Fault.CUT),
    }


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [pytest.param([], "good", id="nothing was found"), pytest.param(["left over: a task"], "bad", id="something was")],
)
def test_the_table_tells_all_and_what_was_found(findings, verdict):
    report = Report(Settings(900, 500, 1), Ledger(), sample(), memory(lambda at_s: 100 * MIB), sample(), findings)
    text = page.as_text(report)
    assert text.splitlines()[0].split(maxsplit=1) == ["load", "500 clients for 900 s, seed 1"]
    assert f"\nverdict           {verdict}\n" in text
    assert text.endswith("".join(f"  - {finding}\n" for finding in findings))
    assert "10% 100.0, 25% 100.0, 50% 100.0, 75% 100.0, 100% 100.0, after 100.0" in text
