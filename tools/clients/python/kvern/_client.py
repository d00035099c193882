"""The synchronous client."""

import queue

from kvern import _reply, _request
from kvern._connection import Connection
from kvern._types import KvernError, collect


class _Inbox:
    """What the socket's thread hands over to the thread that waits."""

    def __init__(self, request_id=None):
        self.request_id = request_id
        self.taken = 0     # tokens, by the reader
        self.reported = 0  # of these, to the router
        self._queue = queue.SimpleQueue()

    def put(self, event):
        self._queue.put(event)

    def fail(self, error):
        self._queue.put(error)

    def get(self):
        event = self._queue.get()
        if isinstance(event, KvernError):
            raise event
        return event


class Stream:
    """The deltas of one request, as they come. Closing it, or dropping it before its end, cancels the
    request; one that has a name is not dropped while the name lasts. `seed` and `prompt_tokens` are known from the first delta on."""

    def __init__(self, connection, fields):
        self.request_id = fields["request_id"]
        self.seed = None
        self.prompt_tokens = None
        self._connection = connection
        self._with_logprobs = "logprobs" in fields
        self._inbox = _Inbox(self.request_id)
        self._open = False
        connection.generate(fields, self._inbox)
        self._open = True

    def __iter__(self):
        return self

    def __next__(self):
        while self._open:
            try:
                event = self._inbox.get()
            except KvernError:
                self._open = False
                raise
            if isinstance(event, _reply.AcceptedReply):
                self.seed, self.prompt_tokens = event.seed, event.prompt_tokens
                continue
            if event.usage is not None:
                self._open = False
            else:
                self._connection.took(self._inbox, len(event.token_ids))
            if not self._with_logprobs:
                event.logprobs = None
            return event
        raise StopIteration

    def close(self):
        if self._open:
            self._open = False
            self._connection.cancel(self._inbox)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def __del__(self):
        if getattr(self, "_open", False):
            self._open = False
            self._connection.drop(self._inbox)


class Client:
    """A connection to a router. Any thread may use it.

    `timeout` is the router's silence in seconds, not the length of an answer. `tenant` is said once.
    `throttle`: while the service says that it takes no more, new requests wait here, for as long as
    it said or until it takes some; False: they are sent, and refused there."""

    def __init__(self, endpoint="tcp://127.0.0.1:5570", timeout=30, tenant=None, throttle=True):
        self._connection = Connection(endpoint, timeout, tenant, throttle)
        welcome = _Inbox()
        try:
            self._connection.wait_welcome(
                lambda reply, error: welcome.put(error if error is not None else reply))
            self._welcome = welcome.get()
        except BaseException:
            self._connection.close()
            raise

    @property
    def model(self):
        """The served model's name."""
        return self._welcome.model

    @property
    def max_seq_len(self):
        """The longest prompt and answer together, in tokens."""
        return self._welcome.max_seq_len

    def generate(self, **fields):
        """An iterator over the deltas of one request; see the service's request fields."""
        return Stream(self._connection, _request.check_fields(fields))

    def complete(self, **fields):
        """The whole answer, as a Completion."""
        with self.generate(**fields) as stream:
            deltas = list(stream)
            return collect(stream.request_id, stream.seed, deltas)

    def status(self):
        """Block counts of all groups: what /v1/capacity returns."""
        query = _Inbox()
        self._connection.query_status(query)
        return query.get()

    def close(self):
        self._connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()
