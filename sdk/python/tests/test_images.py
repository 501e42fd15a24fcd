"""Every image that the reference names, whatever is stored here."""

from __future__ import annotations

import pytest

from sloplet import Sandbox


@pytest.mark.parametrize(("image", "program"), [("python", "python3"), ("node", "node")])
def test_an_image_of_the_reference_has_its_language_and_its_folder(image: str, program: str) -> None:
    with Sandbox.create(image=image, ttl="5m") as made:
        assert made.exec("pwd -P").stdout == "/home/sandbox/app\n"
        assert made.exec(f"{program} --version").exit_code == 0
        assert made.exec("getent hosts localhost").exit_code == 0
