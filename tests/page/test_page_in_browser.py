"""The operator's page as people meet it, in Chromium: read, used by keys alone, told by a screen reader, left open."""

import asyncio
import json

import pytest

pytestmark = pytest.mark.browser

# How long a page that keeps still is watched: its polls are two seconds apart.
STILL_S = 3
STRANGE = "<img src=x onerror=alert(1)>"
CONTROL = 2
# The contrast of every text that is shown with what is painted behind it.
CONTRASTS = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const light = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const shares = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((share) => share / 255)
      .map((share) => share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
    return 0.2126 * shares[0] + 0.7152 * shares[1] + 0.0722 * shares[2];
  };
  const ground = (node) => {
    const painted = node && getComputedStyle(node).backgroundColor;
    return !painted || painted === "rgba(0, 0, 0, 0)" ? ground(node.parentElement) : painted;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    const lights = [light(getComputedStyle(node).color), light(ground(node))].sort((one, other) => one - other);
    found.push([(lights[1] + 0.05) / (lights[0] + 0.05), walker.currentNode.data.trim()]);
  }
  return found;
})()"""


async def explain(tab, path="/v1/chat/completions", body=None, headers=""):
    """Fill in the form and send it, and wait for the verdict."""
    raw = body if isinstance(body, str) else json.dumps(body or {"model": "m", "messages": [], "stream": True, "n": 2})
    for name, value in (("path", path), ("body", raw), ("headers", headers)):
        await tab.do(f"byId('{name}').value = {json.dumps(value)}")
    await tab.do("byId('ask').requestSubmit()")
    await tab.until("!['', 'Asking …'].includes(byId('verdict').textContent)")
    return await tab.do("byId('verdict').textContent")


async def test_it_tells_the_whole_status_at_a_glance(tab, stub):
    await tab.open(stub.url)
    assert await tab.texts("#summary") == ["Draining · 1 of 2 backends up"]
    assert await tab.texts(".tiles dd > span") == ["18,234", "2,107", "12", "3", "3", "311"]
    assert await tab.texts(".tiles small") == [
        "89.6%",
        "10.4%",
        "0.1%",
        "0.0%",
        "2 open streams",
        "into 1,244 branches",
    ]
    assert await tab.texts("#backend-rows .state") == ["✓ up", "✗ down"]
    assert await tab.texts("#worker-rows th") == ["1234", "1235"]
    assert await tab.texts("#policy-sha") == [stub.status["policy"]["sha256"]]
    assert await tab.texts("#filter-count") == ["7 of 7 rules"]


async def test_the_rules_that_fired_are_told_the_latest_first(tab, stub):
    await tab.open(stub.url)
    fired = ["sglang/meta-info-streamed", STRANGE, "sglang/nulls", "n-streamed", "n-too-big", "sglang/stop-regex"]
    assert await tab.texts("#repairing-rows th > code") == fired
    assert await tab.texts("#repairing-rows tr:first-child td") == ["0", "290", "0", "0", "just now"]
    assert await tab.texts("#rule-rows th > code") == [rule["id"] for rule in stub.status["rules"]]
    assert await tab.texts("#rule-rows .mark") == ["reactive", "observe"]


async def test_what_fired_in_the_last_minute_is_counted_from_poll_to_poll(tab, stub):
    await tab.open(stub.url)
    stub.status["rules"][0]["exact"] += 5
    await tab.poll()
    await tab.until("document.querySelector('#rule-rows [data-put=exact]').textContent === '1,508'")
    assert await tab.texts("#rule-rows [data-put=recent]") == ["5", "0", "0", "0", "0", "0", "0"]


async def test_a_policys_words_are_text_and_never_markup(tab, stub):
    stub.status["policy"]["faults"] = [STRANGE]
    stub.status["learned"][0]["id"] = STRANGE
    stub.status["backends"][0]["why"] = STRANGE
    await tab.open(stub.url)
    assert STRANGE in await tab.texts("#rule-rows th > code")
    assert '<b>not markup</b> & "quoted"' in await tab.texts("#rule-rows .about")
    assert await tab.texts("#alerts li") == [STRANGE]
    assert await tab.do("document.querySelectorAll('img, b').length") == 0


async def test_draining_and_faults_of_a_reload_are_alerts(tab, stub):
    await tab.open(stub.url)
    assert await tab.texts("[role=alert] strong") == ["Draining.", "The policy file has faults."]
    assert await tab.texts("[role=alert] li") == stub.status["policy"]["faults"]
    stub.status["draining"] = False
    stub.status["policy"]["faults"] = []
    for backend in stub.status["backends"]:
        backend["up"] = False
    await tab.poll()
    await tab.until("byId('summary').textContent === 'Serving · 0 of 2 backends up'")
    assert await tab.texts("[role=alert] strong") == ["No backend is up."]


async def test_a_proxy_that_has_done_nothing_says_so(tab, stub):
    stub.status |= {"rules": [], "learned": [], "requests": dict.fromkeys(stub.status["requests"], 0)}
    await tab.open(stub.url)
    assert await tab.texts("#repairing-none, #learned-none") == [
        "No rule has fired yet.",
        "Nothing has been learned from refusals, or it has been forgotten since.",
    ]
    assert await tab.texts("[id$=-share]") == [""] * 4


@pytest.mark.parametrize(
    ("words", "fired_only", "expected"),
    [
        pytest.param("NULLS", False, ["sglang/nulls"], id="by a rule's id, in any case"),
        pytest.param("sglang drop", False, ["sglang/nulls", "sglang/stop-regex"], id="by several words, in any place"),
        pytest.param("observe", False, ["n-too-big"], id="by its mode"),
        pytest.param("reactive", False, ["sglang/stop-regex"], id="by being reactive"),
        pytest.param("top-p", True, [], id="and by having fired"),
        pytest.param("nowhere", False, [], id="to nothing"),
    ],
)
async def test_the_rules_are_filtered(tab, stub, words, fired_only, expected):
    await tab.open(stub.url)
    if fired_only:
        await tab.do("byId('fired-only').click()")
    await tab.do("byId('filter').focus()")
    await tab.send("Input.insertText", text=words)
    assert await tab.texts("#rule-rows th > code") == expected
    assert await tab.texts("#filter-count") == [f"{len(expected)} of 7 rules"]


async def test_a_learned_repair_is_copied_as_it_would_stand_in_a_policy(tab, stub):
    await tab.open(stub.url)
    await tab.do("document.querySelector('.lesson button').click()")
    await tab.until("document.querySelector('.lesson [role=status]').textContent === 'Copied.'")
    assert await tab.do("navigator.clipboard.readText()") == stub.status["learned"][1]["yaml"]


async def test_where_there_is_no_clipboard_the_text_is_selected(tab, stub):
    await tab.open(stub.url)
    await tab.do("navigator.clipboard.writeText = () => Promise.reject(new Error('not here'))")
    await tab.do("document.querySelector('.lesson button').click()")
    await tab.until("document.querySelector('.lesson [role=status]').textContent.startsWith('Selected')")
    # What is selected is told without the end of its last line.
    assert await tab.do("getSelection().toString()") == stub.status["learned"][1]["yaml"].rstrip("\n")


async def test_a_request_is_explained(tab, stub):
    await tab.open(stub.url)
    body = '{"model": "m", "messages": [], "stream": true, "n": 2, "seed": 9007199254740993}'
    told = await explain(tab, body=body, headers="Prefer: handling=strict\n\nX-One:  two")
    assert told == "1 rule fires · backend main · 2 upstream requests, restored to an event stream of 2 choices"
    assert stub.origins == [stub.url.rstrip("/")]
    assert stub.asked[0]["body"] == body
    assert stub.asked[0]["headers"] == [["Prefer", "handling=strict"], ["X-One", "two"]]
    assert await tab.texts("#fired-rows th > code") == ["n-streamed", "named"]
    assert await tab.texts("#fired-rows .mark") == ["observe: would fire"]
    assert await tab.texts("#told-notes") == ['Mendproxy-Repairs: n-streamed;loss="none"']
    assert len(await tab.texts("#diffs pre")) == 2
    assert '+  "seed": 9007199254740994' in "\n".join(await tab.texts("#diffs .plus"))
    assert await tab.texts("#passed-title") == ["Why 1 rule doesn't fire"]
    await tab.do("byId('passed').open = true")
    assert await tab.texts("#passed-rows td") == ["body.n: {gt: 8}", '"absent"']


@pytest.mark.parametrize(
    ("asked", "verdict", "note"),
    [
        pytest.param({"path": "/refused"}, "It can't be explained: Not this one.", None, id="a refusal"),
        pytest.param(
            {"headers": "nonsense"},
            "It can't be explained: the header “nonsense” is not name: value",
            None,
            id="a header that is none",
        ),
        pytest.param(
            {"body": {"model": "m", "n": 9}},
            "Refused: 400, Ask for 8 choices at most. (rule 'n-too-big')",
            'Mendproxy-Repairs: n-too-big;loss="none"',
            id="a rule's rejection",
        ),
        pytest.param(
            {"body": '{"model": '},
            "Untouched · backend main · the backend's answer is relayed as it comes",
            "The body is not JSON (Unexpected end of JSON input), so no rule can test it.",
            id="a body that is not JSON",
        ),
    ],
)
async def test_what_is_wrong_with_a_request_is_told_in_words(tab, stub, asked, verdict, note):
    await tab.open(stub.url)
    assert await explain(tab, **asked) == verdict
    assert await tab.texts("#told-notes") == ([] if note is None else [note])


async def test_a_path_without_a_slash_is_not_even_sent(tab, stub):
    await tab.open(stub.url)
    await tab.do("byId('path').value = 'v1/models'; byId('ask').requestSubmit()")
    assert await tab.do("byId('path').matches(':invalid') && document.activeElement.id") == "path"
    assert stub.asked == []


@pytest.mark.parametrize(
    ("is_offline", "why"),
    [
        pytest.param(True, "the connection failed.", id="to nowhere"),
        pytest.param(False, "it answered 502 Bad Gateway and no JSON.", id="behind somebody else"),
    ],
)
async def test_a_proxy_that_went_away_is_told_and_what_was_seen_stays(tab, stub, is_offline, why):
    await tab.open(stub.url)
    stub.is_broken = True
    await tab.set_offline(is_offline)
    await tab.poll()
    await tab.until("byId('summary').textContent === 'Not reachable'")
    first, *others = await tab.texts("[role=alert] > div")
    assert first.startswith("Not reachable since ")
    assert why in first
    assert len(others) == 2
    assert len(await tab.texts("#rule-rows tr")) == 7
    stub.is_broken = False
    await tab.set_offline(False)
    await tab.poll()
    await tab.until("byId('summary').textContent.startsWith('Draining')")
    assert len(await tab.texts("[role=alert] > div")) == 2


async def test_a_poll_leaves_the_reader_where_they_are(tab, stub):
    await tab.open(stub.url)
    await tab.do("document.querySelectorAll('.lesson details')[1].open = true")
    await tab.do("getSelection().selectAllChildren(document.querySelectorAll('#repairing-rows code')[1])")
    await tab.do("document.querySelectorAll('.lesson button')[1].focus()")
    stub.status["rules"][2] |= {"exact": 1, "last_seen": "2026-11-30T12:00:04Z"}
    stub.status["learned"][0] |= {"hits": 98, "last": "2026-11-30T12:00:04Z"}
    await tab.poll()
    await tab.until("document.querySelectorAll('#rule-rows [data-put=exact]')[2].textContent === '1'")
    assert await tab.do("document.activeElement === document.querySelectorAll('.lesson button')[1]") is True
    assert await tab.do("document.querySelectorAll('.lesson details')[1].open") is True
    assert await tab.do("getSelection().toString()") == STRANGE


async def test_who_was_at_a_repair_that_is_forgotten_is_left_at_its_heading(tab, stub):
    await tab.open(stub.url)
    await tab.do("document.querySelector('.lesson button').focus()")
    stub.status["learned"].pop()
    await tab.poll()
    await tab.until("document.querySelectorAll('.lesson').length === 1")
    assert await tab.do("document.activeElement.id") == "learned-title"


@pytest.mark.parametrize(
    "still",
    [
        pytest.param("byId('pause').click()", id="when it was paused"),
        pytest.param(
            "Object.defineProperty(document, 'hidden', {value: true});"
            "document.dispatchEvent(new Event('visibilitychange'))",
            id="when nobody looks at it",
        ),
    ],
)
async def test_it_asks_for_nothing(tab, stub, still):
    await tab.open(stub.url)
    await tab.do(still)
    await tab.do("(async () => { while (isAsking) await new Promise(requestAnimationFrame); })()")
    while not stub.polls.empty():
        stub.polls.get_nowait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stub.polls.get(), STILL_S)


async def test_it_polls_by_itself(tab, stub):
    await tab.open(stub.url)
    for _ in range(2):
        await asyncio.wait_for(stub.polls.get(), STILL_S)


NAME_OF = "((node) => (node.id || node.getAttribute('aria-labelledby') || node.textContent).trim())"


async def test_the_tab_key_reaches_everything_in_the_order_of_the_page(tab, stub):
    await tab.open(stub.url)
    reached = []
    while not reached or reached[-1] != "metrics":
        await tab.press("Tab")
        reached.append(await tab.do(f"{NAME_OF}(document.activeElement)"))
        assert len(reached) < 60, reached
        ring = await tab.do("getComputedStyle(document.activeElement).outlineStyle")
        assert ring == "solid", reached[-1]
    everything = await tab.do(
        "[...document.querySelectorAll('a, button, input, select, textarea, summary, [tabindex=\"0\"]')]"
        f".filter((node) => node.checkVisibility()).map({NAME_OF})"
    )
    assert reached == everything
    assert reached[0] == "Skip to what is repaired"


async def test_keys_alone_do_all_that_a_mouse_does(tab, stub):
    await tab.open(stub.url)
    await tab.press("Tab")
    await tab.press("Enter")
    await tab.until("location.hash === '#main'")
    await tab.do("byId('fired-only').focus()")
    await tab.press("Space")
    assert await tab.texts("#filter-count") == ["6 of 7 rules"]
    await tab.do("document.querySelector('.lesson button').focus()")
    await tab.press("Enter")
    await tab.until("document.querySelector('.lesson [role=status]').textContent === 'Copied.'")
    await tab.do("byId('body').focus()")
    await tab.press("Enter", CONTROL)
    await tab.until("byId('verdict').textContent.startsWith('1 rule fires')")
    await tab.do("byId('pause').focus()")
    await tab.press("Space")
    assert ("button", "Pause updates") in await tab.controls()
    assert await tab.do("byId('pause').getAttribute('aria-pressed')") == "true"


async def test_a_screen_reader_is_told_what_everything_is(tab, stub):
    await tab.open(stub.url)
    await explain(tab)
    told = await tab.controls()
    wanted = [
        ("banner", ""),
        ("navigation", "Parts of this page"),
        ("main", ""),
        ("contentinfo", ""),
        ("alert", ""),
        ("search", "Rules"),
        ("region", "What is being repaired"),
        ("region", "Rules that fired, the latest first; in the last minute as far as this page has looked"),
        ("table", "Every rule, in the order of evaluation"),
        ("table", "Rules that fire"),
        ("columnheader", "Last seen"),
        ("searchbox", "Filter rules"),
        ("checkbox", "Fired only"),
        ("combobox", "Method"),
        ("combobox", "Path"),
        ("textbox", "Body"),
        ("button", "Explain"),
        ("button", "Pause updates"),
        ("button", "Copy as YAML of learned/penalty-dropped-99ab"),
        ("DisclosureTriangle", "YAML of learned/penalty-dropped-99ab"),
        ("cell", "✗ down"),
    ]
    assert [item for item in wanted if item not in told] == []
    operable = {
        "button",
        "link",
        "textbox",
        "searchbox",
        "combobox",
        "checkbox",
        "DisclosureTriangle",
        "table",
        "search",
    }
    assert [role for role, name in told if role in operable and not name.strip()] == []


@pytest.mark.parametrize(
    ("width", "height"), [pytest.param(320, 640, id="a narrow screen"), pytest.param(640, 400, id="200% zoom")]
)
async def test_it_fits_without_scrolling_sideways(tab, stub, width, height):
    await tab.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=True)
    await tab.open(stub.url)
    await explain(tab)
    assert await tab.do("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_can_be_read_in_both_themes(tab, stub, scheme, tmp_path):
    await tab.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await tab.open(stub.url)
    await explain(tab)
    await tab.do("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    contrasts = await tab.do(CONTRASTS)
    assert len(contrasts) > 100
    assert [(ratio, text) for ratio, text in contrasts if ratio < 4.5] == []
    darkness = await tab.do("getComputedStyle(document.body).backgroundColor")
    assert darkness == {"light": "rgb(244, 246, 248)", "dark": "rgb(15, 19, 23)"}[scheme]
    (tmp_path / "page.png").write_bytes(await tab.picture())


async def test_who_wants_less_motion_gets_none(tab, stub):
    await tab.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    await tab.open(stub.url)
    assert await tab.do("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    assert await tab.do("document.getAnimations().length") == 0


async def test_without_scripts_it_says_what_to_read(tab, stub):
    await tab.send("Emulation.setScriptExecutionDisabled", value=True)
    await tab.send("Page.navigate", url=stub.url)
    while ("link", "readyz?verbose") not in (told := await tab.controls()):
        await asyncio.wait_for(tab.send("Page.getFrameTree"), STILL_S)
    assert {("link", name) for name in ("status", "policy", "learned", "metrics")} <= set(told)
