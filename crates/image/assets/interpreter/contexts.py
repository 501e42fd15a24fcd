"""All contexts, and the default one of each language."""

from __future__ import annotations

import asyncio
import os

from interpreter import languages
from interpreter.context import Context
from interpreter.http11 import HttpError

MAX_CONTEXTS = 100


class Contexts:
    """Contexts by id, oldest first."""

    def __init__(self, cwd: str, env: dict[str, str]) -> None:
        self._cwd = cwd
        self._env = env
        self._by_id: dict[str, Context] = {}
        self._defaults: dict[str, Context] = {}
        # The two that clients expect to find listed; their kernels start when they are needed.
        for language in ("python", "javascript"):
            if languages.available(language):
                self.default(language)

    def list(self) -> list[Context]:
        """All of them, the newest last."""
        return list(self._by_id.values())

    def get(self, context_id: str) -> Context:
        """The one with this id."""
        context = self._by_id.get(context_id)
        if context is None:
            shown = "".join(c for c in context_id[:80] if c.isprintable())
            raise HttpError(404, f"Context {shown} not found")
        return context

    def default(self, language: str) -> Context:
        """The one that code of this language runs in when no other is named."""
        context = self._defaults.get(language)
        if context is None or context.id not in self._by_id:
            context = self._add(language, self._cwd)
            self._defaults[language] = context
        return context

    async def create(self, language: str, cwd: str | None) -> Context:
        """Makes a context and starts its kernel."""
        folder = cwd or self._cwd
        if "\0" in folder or not os.path.isdir(folder) or not os.access(folder, os.X_OK):
            raise HttpError(400, "The working directory does not exist or cannot be entered")
        context = self._add(language, folder)
        try:
            await context.start()
        except BaseException:
            self._by_id.pop(context.id, None)
            await context.close()
            raise
        return context

    async def remove(self, context_id: str) -> None:
        """Ends a context. A default one comes back, empty, when it is next needed."""
        context = self.get(context_id)
        del self._by_id[context_id]
        await context.close()

    async def close(self) -> None:
        """Ends all of them."""
        contexts = self.list()
        self._by_id.clear()
        await asyncio.gather(*(context.close() for context in contexts), return_exceptions=True)

    def _add(self, language: str, cwd: str) -> Context:
        if len(self._by_id) >= MAX_CONTEXTS:
            raise HttpError(429, f"There are {MAX_CONTEXTS} contexts already; remove one first")
        context = Context(language, cwd, self._env)
        self._by_id[context.id] = context
        return context
