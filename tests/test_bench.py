"""The benchmark: what it says of numbers, and that its own backend and load generator agree with each other."""

import json
import os
import time
from pathlib import Path

import pytest

from bench import harness, page
from bench.__main__ import main
from bench.candidates import Address, contenders
from bench.processes import Processes, cpu_ns, memory_bytes
from bench.rounds import Bench, Candidate, CannotMeasure, compiled, measure, takers
from bench.scenarios import DROPPED, META_INFO, Load, Scenario, chat, scenarios, stream
from bench.stats import Ratio, Slice, interval, pairs, summarise

# The backend and the load are C.
needs_compiler = pytest.mark.real


def a_slice(number, *, rate=100.0, cpu_us=10.0, p50_us=5.0, p99_us=9.0, whole=50, bad=0):
    return Slice(number, rate, cpu_us, p50_us, p99_us, whole, bad)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([7], (7, 7, 7, 0.0), id="one value says nothing about where the median is"),
        pytest.param([3, 1, 2], (2, 1, 3, 0.75), id="under six values it is the whole range, and less sure"),
        pytest.param([6, 5, 4, 3, 2, 1], (3.5, 1, 6, 0.96875), id="six values are the first that do"),
        pytest.param(list(range(10)), (4.5, 1, 8, 0.978515625), id="of ten values one at either end is left out"),
        pytest.param(list(range(20)), (9.5, 5, 14, 0.9586105346679688), id="of twenty values five at either end are"),
        pytest.param([1, 1, 1, 1, 1, 1, 1, 1, 1, 900], (1, 1, 1, 0.978515625), id="an outlier moves neither"),
    ],
)
def test_an_interval_lies_between_order_statistics(values, expected):
    assert interval(values) == Ratio(*map(pytest.approx, expected))


@pytest.mark.parametrize(
    ("own", "other", "rounds"),
    [
        pytest.param([1, 2, 3], [3, 1, 2], [1, 2, 3], id="in whatever order they were run"),
        pytest.param([1, 2], [2], [2], id="a round that the other has not is left out"),
        pytest.param([1], [], [], id="nothing to pair with"),
    ],
)
def test_slices_are_paired_by_round(own, other, rounds):
    found = pairs([a_slice(n) for n in own], [a_slice(n, rate=1) for n in other])
    assert [(mine.round, theirs.round, mine.rate, theirs.rate) for mine, theirs in found] == [
        (n, n, 100.0, 1) for n in rounds
    ]


def test_ratios_are_taken_within_a_round_and_more_is_better():
    # Round 2 was disturbed for both: the ratio of the medians would be told too high.
    own = [a_slice(1, rate=50, cpu_us=20), a_slice(2, rate=5, cpu_us=200), a_slice(3, rate=40, cpu_us=25)]
    reference = [a_slice(1), a_slice(2, rate=10, cpu_us=100), a_slice(3)]
    said = summarise({"own": own, "reference": reference}, "reference")["own"]
    assert said.cpu_ratio == Ratio(0.5, 0.4, 0.5, 0.75)
    assert said.rate_ratio == Ratio(0.5, 0.4, 0.5, 0.75)
    assert (said.rate, said.cpu_us, said.whole, said.bad, said.rounds) == (40, 25, 150, 0, 3)


def test_times_are_what_a_candidate_adds_in_the_same_round():
    own = [a_slice(1, p50_us=105, p99_us=209), a_slice(2, p50_us=1005, p99_us=1009)]
    direct = [a_slice(1), a_slice(2, p50_us=905, p99_us=809)]
    said = summarise({"own": own, "direct": direct}, "nobody", "direct")["own"]
    assert (said.added_p50_us, said.added_p99_us) == (100, 200)
    assert said.cpu_ratio is None


def test_a_slice_without_work_has_no_ratio_and_a_candidate_without_slices_no_summary():
    said = summarise({"own": [a_slice(1, rate=0, cpu_us=0)], "reference": [a_slice(1)], "none": []}, "reference")
    assert said["own"].cpu_ratio is None
    assert said["own"].rate_ratio is None
    assert "none" not in said


VERDICTS = [
    pytest.param(0.5, 0.9, "loses", id="wholly below"),
    pytest.param(1.1, 1.9, "wins", id="wholly above"),
    pytest.param(0.9, 1.1, "can't be told apart", id="around it"),
]


@pytest.mark.parametrize(("low", "high", "text"), VERDICTS)
def test_an_interval_is_read_as_a_verdict(low, high, text):
    assert page.Verdict("s", "about", Ratio((low + high) / 2, low, high, 0.95)).text == text


def test_the_page_tells_losses_first_and_how_it_was_measured():
    found = [page.Verdict(name, "about", Ratio(at, at, at, 0.95)) for name, at in (("win", 2.0), ("loss", 0.5))]
    text = page.page([page.verdicts(found, "nginx")], "python -m bench --quick")
    assert text.index("| loss | about | loses | 0.5 [0.5..0.5] |") < text.index("| win | about | wins | 2 [2..2] |")
    assert "- `python -m bench --quick`\n" in text
    assert "## Against nginx, by CPU time" in text


def test_a_table_shows_what_is_missing_as_nothing():
    said = page.scenario("s", "About it", "event", summarise({"own": [a_slice(1)]}, "nobody"))
    assert "| own | 100 |  | 10.0 |  |  |  | 50 | 0 | 1 |" in said
    assert "About it; the unit is an event." in said


def test_another_harness_measures_by_our_command_and_its_tables_stand_on_our_page(tmp_path, capsys):
    program, written = tmp_path / "other.py", tmp_path / "page.md"
    program.write_text(
        "import json, sys\n"
        "out = sys.argv[sys.argv.index('--out') + 1]\n"
        "own = {'cpu_ratio': 0.5, 'cpu_ratio_95': [0.4, 0.6]}\n"
        "found = {'s': {'about': 'a', 'candidates': {'mendproxy': own}}, 't': {'about': '', 'candidates': {}}}\n"
        "json.dump({'run': {'reference': 'haproxy'}, 'scenarios': found}, open(out, 'w'))\n"
        "name, _, command = sys.argv[sys.argv.index('--proxy') + 1].partition('=')\n"
        "print('\\n### s: a\\n\\n' + name, command.split()[1:4], *sys.argv[-2:])\n"
    )
    assert main(["--harness", str(program), "--quick", "--write", str(written), "--budget=7"]) == 0
    text = written.read_text()
    assert capsys.readouterr().out == text
    assert "## Against haproxy, by CPU time" in text
    assert "| s | a | loses | 0.5 [0.4..0.6] |" in text
    assert "\n## s: a\n\nmendproxy ['-m', 'proxy', 'serve'] --quick --budget=7\n" in text
    assert "- `python -m bench --harness other.py --quick --write page.md --budget=7`" in text
    assert str(tmp_path) not in text


def test_a_harness_whose_answers_were_bad_says_so(tmp_path):
    program = tmp_path / "other.py"
    program.write_text(
        "import json, sys\n"
        "out = sys.argv[sys.argv.index('--out') + 1]\n"
        "json.dump({'run': {'reference': 'nginx'}, 'scenarios': {}}, open(out, 'w'))\n"
        "sys.exit(1)\n"
    )
    sections, bad = harness.run(program, tmp_path, [])
    assert bad == 1
    assert sections[-1] == "other.py ended with 1: some answers were bad.\n"


def test_a_scenario_that_is_not_there_is_a_fault_that_names_those_that_are(capsys):
    assert main(["--scenarios", "json-1k,nope"]) == 3
    assert "bench: There is no scenario nope; there are json-1k, " in capsys.readouterr().err


def test_a_harness_that_measures_nothing_is_a_fault(tmp_path):
    program = tmp_path / "other.py"
    program.write_text("raise SystemExit(4)\n")
    with pytest.raises(CannotMeasure, match=r"other\.py ended with 4 and wrote no numbers"):
        harness.run(program, tmp_path, [])


@pytest.mark.parametrize("size_bytes", [1024, 32 * 1024, 1024 * 1024])
def test_a_request_is_about_as_large_as_it_is_said_to_be(size_bytes):
    body = chat(size_bytes, stream=True)
    assert json.loads(body)["stream"] is True
    assert 0.8 * size_bytes < len(body) < 1.1 * size_bytes


def test_another_proxy_is_told_where_it_serves(tmp_path):
    other = contenders(["old=serve --port {port} -c '{policy}' {backend} {unknown}"])[-1]
    command = other.command(Address(tmp_path, 1, 2, 3))
    assert command == ["serve", "--port", "1", "-c", str(tmp_path / "policy-1.yaml"), "http://127.0.0.1:3", "{unknown}"]
    assert "bench-merge" in (tmp_path / "policy-1.yaml").read_text()
    assert other.name == "old"


def test_each_candidate_has_its_scenarios():
    field = [Candidate(name, 0, 0, is_repairing=True) for name in ("nginx", "mendproxy", "two workers")]
    table = scenarios()
    assert [one.name for one in takers(field, table["workers"])] == ["mendproxy", "two workers"]
    assert [one.name for one in takers(field, table["json-1k"])] == ["nginx", "mendproxy"]


def test_without_a_compiler_it_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CannotMeasure, match="There is no C compiler: install gcc or clang, or name one in CC"):
        compiled("mock", tmp_path)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Return a backend that runs, and what loads it."""
    folder = tmp_path_factory.mktemp("bench")
    with Processes(folder) as processes:
        yield Bench(folder, processes)


JSON, REFUSED = Load(chat(1024), 4), Load(chat(1024, stream=True, n=2), 1, is_stream=True)
LOADS = [
    pytest.param(JSON, True, id="JSON"),
    pytest.param(Load(chat(1024 * 1024), 2), True, id="a megabyte of JSON"),
    pytest.param(stream(4, 20, 1000, ramp_ms=10), True, id="a paced stream"),
    pytest.param(stream(4, 500, 0), True, id="a flood"),
    pytest.param(Load(chat(1024), 4, text=DROPPED), True, id="a field that is not there"),
    pytest.param(Load(chat(1024, **META_INFO), 4, text=DROPPED), False, id="a field that should have been dropped"),
    pytest.param(Load(chat(1024), 4, stamps=2), False, id="an event that is missing"),
    pytest.param(Load(chat(1024), 4, is_stream=True), False, id="JSON where a stream is due"),
    pytest.param(Load(chat(1024, stream=True), 4, events=4, stamps=4, choices=2, is_stream=True), False, id="a choice"),
    pytest.param(REFUSED, False, id="a refusal"),
]


@needs_compiler
@pytest.mark.parametrize(("load", "is_good"), LOADS)
def test_answers_are_checked_whole(load, is_good, bench):
    said = bench.result(bench.direct, bench.put(bench.direct, load, 0.1), 10)
    assert said["begun"] == said["whole"] + said["bad"] > 0
    assert (said["bad"] == 0, said["whole"] == 0) == (is_good, not is_good)
    assert bool(said["complaint"]) is not is_good


@needs_compiler
def test_a_paced_event_is_not_late_and_a_rate_is_what_was_asked_for(bench):
    load = stream(8, 20, 5000)
    said = bench.result(bench.direct, bench.put(bench.direct, load, 0.3), 10)
    assert said["events"] == said["whole"] * 20
    assert 0 < said["event_p50"] <= said["event_p99"]
    assert said["answer_p50"] >= 20 * 5000 > said["first_p50"] >= 5000


@needs_compiler
def test_rounds_end_in_time_and_weigh_the_process_that_did_the_work(bench):
    scenario = Scenario("a test", JSON, JSON, seconds=0.1)
    found = [*measure(bench, [bench.direct], {"s": scenario}, time.monotonic() + 1.5)]
    assert {(name, candidate) for name, candidate, *_ in found} == {("s", "direct")}
    assert [one.round for _, _, one, _ in found] == list(range(1, len(found) + 1))
    assert all(one.cpu_us > 0 and one.rate > 0 and one.bad == 0 for _, _, one, _ in found)


@needs_compiler
def test_a_process_that_does_not_serve_is_a_fault_with_what_it_said(bench):
    other = contenders(["broken=sh -c 'echo no such thing >&2; exit 4'"])[-1]
    with pytest.raises(CannotMeasure, match=r"broken has ended; it said:\nno such thing"):
        bench.start(other)


def test_processes_are_weighed_and_ended_with_their_children(tmp_path):
    with Processes(tmp_path) as processes:
        pid = processes.start("parent", ["sh", "-c", "sleep 60 & echo $!; wait"], os.sched_getaffinity(0))
        while not (child := processes.said("parent").strip()):
            assert processes.is_running(pid)
        assert cpu_ns(pid) > 0
        assert memory_bytes(pid) > memory_bytes(int(child)) > 0
    deadline_s = time.monotonic() + 10
    while is_alive(pid) or is_alive(int(child)):
        assert time.monotonic() < deadline_s


def is_alive(pid):
    """Return whether a process runs; one that has ended may lie there until it is asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
