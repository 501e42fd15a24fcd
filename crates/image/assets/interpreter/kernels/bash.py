"""The kernel for bash: one shell that keeps its variables, functions and directory."""

from __future__ import annotations

import asyncio
import itertools
import shlex
from typing import Any

from child_kernel import INTERRUPTED, ChildKernel

from ipykernel.kernelapp import IPKernelApp


class BashKernel(ChildKernel):
    """Feeds an interactive shell, because only that one survives an interrupt."""

    language = "bash"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._marks = itertools.count(1)
        self._answer_descriptor = -1
        self._set_up = self._after = ""

    def command(self, requests: int, answers: int) -> list[str]:
        """Interactive, but without terminal and start files."""
        self._answer_descriptor = answers
        # What an interactive shell says about its missing terminal, and its first prompt, are of no interest.
        aside = next(number for number in (7, 8, 9) if number not in (requests, answers))
        self._set_up = f"PS1= PS2=; set +m +o history; exec 2>&{aside} {aside}>&-\n"
        start = f"exec {aside}>&2 2>/dev/null; exec bash --norc --noprofile --noediting -i <&{requests} {requests}<&-"
        return ["bash", "-c", start]

    async def run(self, code: str, env_vars: dict[str, str]) -> dict[str, Any] | None:
        """The variables are set before, and put back after, the code."""
        before = after = ""
        for name, value in env_vars.items():
            if not (name.isascii() and name.isidentifier()):
                continue
            saved = f"__sloplet_{name}"
            before += f"[[ -v {name} ]] && {saved}=${{{name}}}; export {name}={shlex.quote(value)}; "
            after += f"if [[ -v {saved} ]]; then export {name}=${{{saved}}}; else unset {name}; fi; unset {saved}; "
        descriptor = self._answer_descriptor
        # A dangling quote in the code stays inside of `eval`.
        line = f"{self._set_up}{before}\neval {shlex.quote(code)} </dev/null {descriptor}>&-\n"
        # Plain words first: after a syntax error in `eval` the shell misreads a brace.
        line += f"__sloplet_status=$?\n{after}\necho $__sloplet_status >&{descriptor}\n"
        self._set_up, self._after = "", after
        await self.request(line.encode("utf-8", "replace"))
        # A mark that was late is no answer.
        while b"mark" in (answer := await self.answer()):
            pass
        status = int(answer)
        if status == 0:
            return None
        if self.interrupted:
            return INTERRUPTED
        return {"ename": "ExitStatus", "evalue": str(status), "traceback": [f"exit status {status}"]}

    async def recover(self) -> bool:
        """The rest of what was asked was dropped, or is still unread: a mark tells where that ends.

        A second interrupt can drop the mark, too, so that it is repeated.
        """
        while True:
            mark = f"mark{next(self._marks)}."
            await self.request(f"\n{self._after}\necho {mark} >&{self._answer_descriptor}\n".encode())
            try:
                await asyncio.wait_for(self._until(mark), 1.0)
            except asyncio.TimeoutError:
                continue
            return True

    async def _until(self, mark: str) -> None:
        while mark.encode() not in await self.answer():
            pass


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=BashKernel)
