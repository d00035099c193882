"""New requests wait here while the service takes none, instead of being refused there."""

import collections
from dataclasses import dataclass
from typing import Any

# With no credit and no word of how long: the next keep-alive brings news.
_WITHOUT_ADVICE_S = 1.0
# Advice beyond this means nothing.
_MAX_S = 60.0
_DEADLINES = ("ttft_deadline_ms", "deadline_ms")


@dataclass
class _Held:
    until: float
    since: float
    stream: Any
    data: bytes
    fields: dict


class Throttle:
    """Of the socket's thread alone. Times are of time.monotonic()."""

    def __init__(self, on):
        self._on = on
        self._until = 0.0
        self._held = collections.deque()

    def __bool__(self):
        return bool(self._held)

    def streams(self):
        return [entry.stream for entry in self._held]

    def hold(self, now, stream, data, fields):
        """True: it waits. One whose deadline would pass meanwhile does not: the service answers it."""
        # Behind those that wait already, even if there is credit for some.
        until = max(self._until, self._held[-1].until) if self._held else self._until
        deadline = min((fields[name] / 1000 for name in _DEADLINES if name in fields),
                       default=float("inf"))
        if not self._on or until <= now or now + deadline <= until:
            return False
        self._held.append(_Held(until, now, stream, data, fields))
        return True

    def take(self, now):
        """The next one that need not wait any more: (stream, bytes, fields), or None. `fields` is
        None if the bytes are still right; else its deadlines are what is left of them."""
        if not self._held or self._held[0].until > now:
            return None
        entry = self._held.popleft()
        waited_ms = int((now - entry.since) * 1000)
        left = {name: max(1, entry.fields[name] - waited_ms)
                for name in _DEADLINES if name in entry.fields}
        return entry.stream, entry.data, {**entry.fields, **left} if left else None

    def remove(self, stream):
        self._held = collections.deque(entry for entry in self._held if entry.stream is not stream)

    def clear(self):
        streams = self.streams()
        self._held.clear()
        return streams

    def next_time(self):
        return self._held[0].until if self._held else float("inf")

    def on_connected(self):
        """What another connection was told counts no more."""
        self.on_credit(0, len(self._held) + 1)

    def on_credit(self, now, credit):
        """How many more requests the service said that it takes; None: it did not say."""
        if credit is None:
            return
        if credit == 0:
            self._until = max(self._until, now + _WITHOUT_ADVICE_S)
            return
        self._until = 0.0
        for index in range(min(credit, len(self._held))):
            self._held[index].until = 0.0

    def on_error(self, now, error):
        """An older service does not say that it takes none."""
        credit = error.details.get("credit")
        retry_after_ms = error.details.get("retry_after_ms")
        none = credit == 0 if credit is not None else error.code == "overloaded"
        if none and retry_after_ms is not None:
            self._until = max(self._until, now + min(retry_after_ms / 1000, _MAX_S))
        else:
            self.on_credit(now, credit)
