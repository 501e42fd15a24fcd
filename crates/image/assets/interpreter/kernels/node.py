"""The kernel for JavaScript and TypeScript: one node that keeps its globals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from child_kernel import STUBBORN_SECONDS, ChildKernel

from ipykernel.kernelapp import IPKernelApp
from traitlets import Bool

DRIVER = Path(__file__).with_name("node_driver.js")


class NodeKernel(ChildKernel):
    """Sends code to the driver and passes its answers on, each a line of JSON."""

    language = "javascript"
    # The driver answers an interrupt itself; one that does not is beyond help.
    grace = STUBBORN_SECONDS
    typescript = Bool(False, help="Strip types before the code runs.").tag(config=True)

    def command(self, requests: int, answers: int) -> list[str]:
        """The driver finds the descriptors in its arguments."""
        return ["node", "--no-warnings", str(DRIVER), str(requests), str(answers)]

    async def run(self, code: str, env_vars: dict[str, str]) -> dict[str, Any] | None:
        """Every answer but the last is a value to show."""
        request = {"code": code, "env": env_vars, "typescript": self.typescript}
        await self.request(json.dumps(request).encode() + b"\n")
        while True:
            answer = json.loads(await self.answer())
            if "display" in answer:
                content = {"data": answer["display"], "metadata": {}, "transient": {}}
                self.send_response(self.iopub_socket, "display_data", content)
                continue
            if answer.get("result"):
                content = {"data": answer["result"], "metadata": {}, "execution_count": self.execution_count}
                self.flush_pipes()
                self.send_response(self.iopub_socket, "execute_result", content)
            return answer.get("error")


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=NodeKernel)
