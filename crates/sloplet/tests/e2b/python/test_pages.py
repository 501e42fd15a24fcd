"""Web pages as clients: what their browsers ask first, and what they must see in an answer to show it to the page."""

import httpx
import pytest

from api import HEADERS, URL

PAGE = {"Origin": "https://page.example"}
ASKED = {**PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key,authorization"}


@pytest.mark.parametrize("path", ["/v2/sandboxes", "/process.Process/Start", "/files", "/execute"])
def test_a_browser_may_ask_without_a_key(path):
    answer = httpx.options(URL + path, headers=ASKED)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-headers"] == "x-api-key,authorization"
    assert "DELETE" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


def test_pages_see_answers_and_errors():
    for headers, status in [({**HEADERS, **PAGE}, 200), (PAGE, 401)]:
        answer = httpx.get(URL + "/v2/sandboxes", headers=headers)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-expose-headers"] == "*"
    assert "access-control-allow-origin" not in httpx.get(URL + "/v2/sandboxes", headers=HEADERS).headers


def test_pages_reach_a_sandbox_by_its_name(sandbox):
    name = {"Host": f"49983-{sandbox.sandbox_id}.example.com"}
    assert httpx.options(URL + "/filesystem.Filesystem/Stat", headers={**name, **ASKED}).status_code == 204
    answer = httpx.get(URL + "/files", params={"path": "/etc/hostname"}, headers={**name, **PAGE})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "*")
    token = {"X-Access-Token": sandbox._envd_access_token}
    answer = httpx.get(URL + "/files", params={"path": "/etc/hostname"}, headers={**name, **PAGE, **token})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


def test_our_own_api_and_previews_are_not_for_pages(sandbox):
    port = {"Host": f"3000-{sandbox.sandbox_id}.example.com"}
    for path, headers in [("/v1/sandboxes", {}), ("/metrics", {}), (f"/preview/{sandbox.sandbox_id}/49983/", {}), ("/", port)]:
        for answer in [httpx.options(URL + path, headers={**ASKED, **headers}),
                       httpx.get(URL + path, headers={**HEADERS, **PAGE, **headers})]:
            assert "access-control-allow-origin" not in answer.headers, path
