"""Requests that the SDKs do not make."""

import os

import httpx

URL = os.environ["E2B_API_URL"]
HEADERS = {"X-API-KEY": os.environ["E2B_API_KEY"]}


def call(method, path, body=None, headers=None):
    """Status and body of an answer."""
    answer = httpx.request(method, URL + path, json=body, headers={**HEADERS, **(headers or {})}, timeout=60)
    return answer.status_code, answer.json() if answer.content else None
