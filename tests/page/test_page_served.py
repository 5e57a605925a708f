"""The operator's page by the real admin port: it is served closed, and what it reads is what is told."""

import json
from pathlib import Path

import pytest

CANNED = json.loads((Path(__file__).parents[1] / "data" / "page" / "status.json").read_text())
POLICY = """
version: 1
backends: {main: {url: standin://sglang}}
rules:
  - {id: named, about: Said of it., mode: observe, when: {body: {stream: true}}, repair: [default: {user: anyone}]}
  - {id: cold, on_error: {status: 400}, repair: [drop: [temperature]], learn: {for: 1h}}
"""
COLD = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": -1}
CLOSED = {
    "default-src 'none'",
    "style-src 'unsafe-inline'",
    "script-src 'unsafe-inline'",
    "connect-src 'self'",
    "img-src data:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
}


@pytest.fixture
def proxy(serving, tmp_path):
    """Return a proxy that has learned a repair."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    with serving(policy) as running:
        assert running.post(COLD)[0] == 200
        yield running


def shape_of(value):
    """Return what a value is made of: keys with the types of what they hold, and the same of a list's items."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return "number" if type(value) in (int, float) else type(value).__name__


def of_canned():
    """Return the canned status as a proxy without faults would tell it, its first rule one that was never seen."""
    shape = shape_of(CANNED | {"policy": CANNED["policy"] | {"faults": []}})
    shape["rules"][0]["last_seen"] = "NoneType"
    return shape


def test_the_canned_status_has_the_real_ones_shape(proxy):
    code, text = proxy.get("/status")
    assert code == 200
    assert shape_of(json.loads(text)) == of_canned()


def test_the_page_is_served_as_it_is_and_closed_to_the_outside(proxy):
    with proxy.connection(proxy.admin_url) as connection:
        connection.request("GET", "/")
        answer = connection.getresponse()
        body = answer.read()
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert {part.strip() for part in answer.getheader("Content-Security-Policy").split(";")} == CLOSED
    assert body == (Path(__file__).parents[2] / "proxy" / "page.html").read_bytes()


@pytest.mark.browser
async def test_it_works_before_the_real_proxy(proxy, tab):
    await tab.open(proxy.admin_url)
    assert await tab.texts("#summary") == ["Serving · 1 of 1 backend up"]
    assert await tab.texts("#rule-rows th > code") == ["named", "cold"]
    assert await tab.texts("#repaired") == ["1"]
    assert len(await tab.texts(".lesson")) == 1
    await tab.do("byId('ask').requestSubmit()")
    await tab.until("!['', 'Asking …'].includes(byId('verdict').textContent)")
    assert await tab.texts("#fired-rows th > code") == ["named"]
    assert await tab.texts("#verdict") == ["Untouched · backend main · the backend's answer is relayed as it comes"]


@pytest.mark.browser
async def test_a_body_that_is_too_large_to_be_explained_is_told(proxy, tab):
    await tab.open(proxy.admin_url)
    await tab.do("byId('body').value = 'x'.repeat(5 << 20)")
    await tab.do("byId('ask').requestSubmit()")
    await tab.until("!['', 'Asking …'].includes(byId('verdict').textContent)")
    assert (await tab.texts("#verdict"))[0].startswith("It can't be explained: ")
    assert await tab.texts("#told") == []
