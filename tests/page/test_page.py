"""The operator's page as a file: whole, closed to the outside, readable in both themes, and true to what it is told."""

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from proxy.engine import Request
from proxy.explain import as_text, explain
from proxy.policy import load_policy

STATUS = json.loads((Path(__file__).parents[1] / "data" / "page" / "status.json").read_text())
TEXT = (files("proxy") / "page.html").read_text()
STYLE = TEXT[TEXT.index("<style>") : TEXT.index("</style>")]
SCRIPT = TEXT[TEXT.index("<script>") : TEXT.index("</script>")]
VOID = {"input", "link", "meta", "br", "hr", "img"}


class Page(HTMLParser):
    """Reads the page strictly: every element is closed, in order. `elements` are (path of tags, attributes, text)."""

    def __init__(self):
        super().__init__()
        self.elements = []
        self._open = []
        self.feed(TEXT)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} on line {self.getpos()[0]} has an attribute twice"
        path = [element[0][-1] for element in self._open] + [tag]
        element = (path, dict(attrs), [])
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open[-1][0][-1] == tag, f"</{tag}> on line {self.getpos()[0]} closes {self._open[-1][0][-1]}"
        self._open.pop()

    def handle_data(self, data):
        for element in self._open:
            element[2].append(data)

    def all(self, *tags):
        return [element for element in self.elements if element[0][-1] in tags]

    def values(self, *names):
        """Return every value of some attributes, those that are lists taken apart."""
        return [
            word for _, attributes, _ in self.elements for name in names for word in attributes.get(name, "").split()
        ]


PAGE = Page()
IDS = PAGE.values("id")


def test_no_address_leads_outside():
    assert re.findall(r"[a-z]+://|url\(|@import|integrity=|\bsrc=", TEXT) == []
    targets = set(PAGE.values("href")) - {f"#{name}" for name in IDS} - {"data:,"}
    assert targets == {"status", "policy", "learned", "metrics", "readyz?verbose"}
    assert set(re.findall(r'\bask\("(\w+)"', SCRIPT)) == {"status", "explain"}


def test_nothing_is_read_as_markup_or_code_and_no_prompt_is_kept():
    dangers = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(|setHTML|Parser|\bon\w+=\"|Storage"
    )
    assert re.findall(dangers, TEXT) == []
    kept = [attributes.get("autocomplete") for _, attributes, _ in PAGE.all("input", "textarea")]
    assert set(kept) - {"off"} == {None}
    assert kept.count(None) == 1  # the checkbox


def test_every_id_is_one_elements_and_what_names_one_finds_it():
    assert len(IDS) == len(set(IDS))
    named = PAGE.values("for", "list", "aria-labelledby", "aria-describedby", "aria-controls")
    named += re.findall(r'byId\("([\w-]+)"\)', SCRIPT)
    named += re.findall(r'sync\(\w+\([^()]*\), "([\w-]+)"', SCRIPT)
    assert len(named) > 40
    assert set(named) - set(IDS) == set()


def test_what_is_put_into_a_template_has_its_place_there():
    places = set(PAGE.values("data-put"))
    put = set(re.findall(r'\b(?:put|putCount|slot)\(\w+, "([\w-]+)"', SCRIPT))
    assert put == places


def test_every_control_has_a_label():
    labelled = set(PAGE.values("for"))
    for path, attributes, text in PAGE.all("input", "select", "textarea", "button"):
        has_text = path[-1] == "button" and "".join(text).strip()
        assert has_text or "label" in path or attributes["id"] in labelled, attributes


def test_every_table_has_a_caption_and_every_head_cell_says_what_it_heads():
    assert len(PAGE.all("table")) == len(PAGE.all("caption")) > 0
    assert {attributes.get("scope") for _, attributes, _ in PAGE.all("th")} == {"col", "row"}


def test_without_scripts_it_names_what_to_read_instead():
    (noscript,) = PAGE.all("noscript")
    links = [attributes["href"] for path, attributes, _ in PAGE.all("a") if "noscript" in path]
    assert links == ["status", "readyz?verbose", "policy", "learned", "metrics"]
    assert "JavaScript" in "".join(noscript[2])


# The script's own name for each object of the status, and where the status has one.
OBJECTS = {
    "status": STATUS,
    "policy": STATUS["policy"],
    "worker": STATUS["workers"][0],
    "backend": STATUS["backends"][0],
    "requests": STATUS["requests"],
    "fanouts": STATUS["fanouts"],
    "rule": STATUS["rules"][0],
    "lesson": STATUS["learned"][0],
}


def keys_read(name):
    return set(re.findall(rf"(?<!\w)(?<!\w\.){name}\.(\w+)", SCRIPT))


@pytest.mark.parametrize("name", OBJECTS)
def test_all_that_the_status_tells_is_shown_and_nothing_else_is_looked_for(name):
    assert keys_read(name) == OBJECTS[name].keys()


POLICY = """
version: 1
backends: {main: {url: "http://127.0.0.1:9", models: [m]}}
rules:
  - {id: fires, when: {body: {stream: true}}, repair: [drop: [stream]]}
  - {id: passes, when: {body: {stream: false}}, repair: [drop: [stream]]}
  - {id: waits, on_error: {status: 400}, repair: [drop: [stream]]}
  - {id: refuses, when: {body: {n: 9}}, repair: [reject: "No."]}
"""


def explained(**body):
    policy = load_policy("policy.yaml", environ={}, text=POLICY)
    told = explain(Request("POST", "/v1/chat/completions", "", [], json.dumps(body).encode()), policy)
    return told | {"text": as_text(told)}


def test_what_is_read_of_an_explanation_is_told():
    told = explained(model="m", stream=True)
    refused = explained(model="m", n=9)["refused"]
    assert keys_read("told") <= told.keys()
    assert keys_read("step") == set().union(*told["rules"])
    assert keys_read("refused") <= refused.keys()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"model": "m", "stream": True}, id="a body that is changed"),
        pytest.param({"model": "m"}, id="a body that isn't"),
    ],
)
def test_the_diffs_are_found_in_the_text(body):
    pattern = re.search(r"\.filter\(\(part\) => /(.+?)/\.test", SCRIPT)[1]
    parts = explained(**body)["text"].split("\n\n")
    assert len([part for part in parts if re.match(pattern, part)]) == 1


LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
)
# Text, and what it stands on.
READ = [
    *[(text, ground) for text in ("ink", "quiet", "link") for ground in ("paper", "panel")],
    *[(text, "panel") for text in ("good", "bad")],
    ("ink", "warn-back"),
    ("ink", "bad-back"),
    ("good", "good-back"),
    ("bad", "bad-back"),
    ("on-link", "link"),
]
# What has to be told from its surroundings: frames of controls, the ring of the focus, the marks of the outcomes.
SEEN = [("edge", "paper"), ("edge", "panel"), ("warn", "panel"), ("warn", "warn-back"), ("bad", "bad-back")]


def light_of(colour):
    """Return the relative luminance. Source: WCAG 2.2."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    darker, lighter = sorted((light_of(one), light_of(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [pytest.param(LIGHT, id="light"), pytest.param(DARK, id="dark")])
@pytest.mark.parametrize(
    ("pair", "least"), [(pair, 4.5) for pair in READ] + [(pair, 3.0) for pair in SEEN], ids=lambda value: str(value)
)
def test_a_pair_of_colours_has_enough_contrast(theme, pair, least):
    assert contrast(theme[pair[0]], theme[pair[1]]) >= least


def test_both_themes_have_the_same_colours_and_no_other_is_used():
    assert LIGHT.keys() == DARK.keys()
    # Lines separate, and tell nothing.
    assert LIGHT.keys() - {name for pair in READ + SEEN for name in pair} == {"line"}
    elsewhere = re.sub(r":root \{.*?\}", "", STYLE, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-f]{3,8}\b(?=[;, ])|\brgb|\bhsl", elsewhere) == []
