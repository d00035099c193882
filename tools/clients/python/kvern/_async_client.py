"""The asyncio client. The same thread owns the socket; events cross into the loop."""

import asyncio

from kvern import _reply, _request
from kvern._connection import Connection
from kvern._types import KvernError, collect


class _Inbox:
    """What the socket's thread hands over to a task of the event loop."""

    def __init__(self, request_id=None):
        self.request_id = request_id
        self.taken = 0     # tokens, by the reader
        self.reported = 0  # of these, to the router
        self._loop = asyncio.get_running_loop()
        self._queue = asyncio.Queue()

    def put(self, event):
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:
            pass  # The loop is closed: nobody waits any more.

    fail = put

    async def get(self):
        event = await self._queue.get()
        if isinstance(event, KvernError):
            raise event
        return event


class AsyncStream:
    """The deltas of one request, as they come. Closing it, dropping it before its end, or cancelling
    the task that waits cancels the request. One that has a name is not dropped while the name lasts:
    `async with client.generate(…) as stream`, or `await stream.aclose()`."""

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

    def __aiter__(self):
        return self

    async def __anext__(self):
        while self._open:
            try:
                event = await self._inbox.get()
            except KvernError:
                self._open = False
                raise
            except asyncio.CancelledError:
                self.close()
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
        raise StopAsyncIteration

    def close(self):
        if self._open:
            self._open = False
            self._connection.cancel(self._inbox)

    async def aclose(self):
        """As close(), by the name that contextlib.aclosing and asynchronous generators have."""
        self.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *unused):
        self.close()

    def __del__(self):
        if getattr(self, "_open", False):
            self._open = False
            self._connection.drop(self._inbox)


class AsyncClient:
    """As Client, for asyncio: `async with AsyncClient(endpoint) as client`."""

    def __init__(self, endpoint="tcp://127.0.0.1:5570", timeout=30, tenant=None, throttle=True):
        self._arguments = (endpoint, timeout, tenant, throttle)
        self._connection = None
        self._welcome = None

    async def connect(self):
        """Waits for the router's welcome; `async with` does it."""
        if self._connection is not None:
            raise KvernError("invalid_argument", "the client is connected already")
        connection = Connection(*self._arguments)
        welcome = _Inbox()
        try:
            connection.wait_welcome(
                lambda reply, error: welcome.put(error if error is not None else reply))
            self._welcome = await welcome.get()
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _connected(self):
        if self._connection is None:
            raise KvernError("invalid_argument",
                             "the client is not connected: use `async with` or await connect()")
        return self._connection

    @property
    def model(self):
        """The served model's name."""
        self._connected()
        return self._welcome.model

    @property
    def max_seq_len(self):
        """The longest prompt and answer together, in tokens."""
        self._connected()
        return self._welcome.max_seq_len

    def generate(self, **fields):
        """An asynchronous iterator over the deltas of one request."""
        return AsyncStream(self._connected(), _request.check_fields(fields))

    async def complete(self, **fields):
        """The whole answer, as a Completion."""
        async with self.generate(**fields) as stream:
            deltas = [delta async for delta in stream]
            return collect(stream.request_id, stream.seed, deltas)

    async def status(self):
        """Block counts of all groups: what /v1/capacity returns."""
        query = _Inbox()
        self._connected().query_status(query)
        return await query.get()

    async def close(self):
        if self._connection is not None:
            # The thread ends within milliseconds, but joining it is still a wait.
            await asyncio.get_running_loop().run_in_executor(None, self._connection.close)

    async def __aenter__(self):
        await self.connect()
        return self

    async def __aexit__(self, *unused):
        await self.close()
