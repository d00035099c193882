"""One ZeroMQ socket and the thread that owns it.

The thread sends what others queue, says hello after each (re)connection, speaks each second while
requests are open, and hands each request's events to its stream. Nobody else touches the socket.
"""

import collections
import os
import secrets
import socket
import threading
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvern import _reply, _request
from kvern._throttle import Throttle
from kvern._types import KvernError

_HANDSHAKE_SUCCEEDED = 0x1000  # zmq.EVENT_HANDSHAKE_SUCCEEDED of newer pyzmq
_MAX_MESSAGE_BYTES = 64 << 20
# How long sockets may linger at the end, so that the last cancellations are sent.
_LINGER_MS = 500
# Messages are handled for so long before the other sources get their turn.
_MAX_PASS_S = 0.01
# What a router answers to one whose Hello it does not know: it forgets who was quiet for long when it
# has too many clients, and whoever left too much unread.
_HELLO_FIRST = "the first message must be Hello"
# How often Hello is said again before the router has taken anything.
_MAX_HELLOS_AGAIN = 3
# Streams in one message of what was taken.
_MAX_CONSUMED = 4096


class Connection:
    """`timeout`: seconds of the router's silence after which what is open ends as unavailable."""

    def __init__(self, endpoint, timeout, tenant, throttle=True):
        _request.check_timeout(timeout)
        _request.check_endpoint(endpoint)
        self._endpoint = endpoint
        self._timeout = float(timeout)
        self._incarnation = secrets.randbits(64) or 1
        self._hello = _request.encode_hello(self._incarnation, "" if tenant is None else tenant,
                                            f"python/{os.getpid()}")
        self._lock = threading.Lock()
        # Appended to by any thread, with _lock where a command must not be lost at the end; emptied
        # by the socket's thread without it.
        self._commands = collections.deque()
        self._closed = False                  # guarded by _lock
        self._failure = None                  # why the thread ended, when not by close()
        self._open_socket()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        # Of the thread alone:
        self._streams = {}       # request id -> stream, in the order they were sent
        self._unanswered = {}    # of these, the bytes of those that were not accepted yet
        self._waiting = []       # streams and queries not sent yet: (stream or query, bytes)
        self._throttle = Throttle(throttle)
        self._queries = []       # capacity queries sent: (query, bytes)
        self._outbox = collections.deque()
        self._connected = False
        self._welcome = None
        self._hello_due = False  # the router refused the last one: the next request says it again
        self._hellos_again = 0   # on this connection, since the router took something
        self._keep_alive_s = 1.0
        self._report_every = 0   # tokens of a stream; 0: the router asks for no credit
        self._last_heard = self._last_spoken = time.monotonic()
        self._welcome_waiters = []
        self._running = True
        self._thread = threading.Thread(target=self._run, name="kvern-client", daemon=True)
        self._thread.start()

    def _open_socket(self):
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        # Not IMMEDIATE: it drops what was received and not yet read when the connection breaks.
        for option, value in ((zmq.LINGER, _LINGER_MS),
                              (zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES), (zmq.RCVHWM, 0),
                              (zmq.RECONNECT_IVL, 50), (zmq.RECONNECT_IVL_MAX, 1000),
                              # Not ZMTP heartbeats: one that is due on a connection that broke
                              # while its input was stopped aborts the process (libzmq 4.3).
                              (zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 15),
                              (zmq.TCP_KEEPALIVE_INTVL, 5), (zmq.TCP_KEEPALIVE_CNT, 3)):
            self._socket.setsockopt(option, value)
        self._monitor = self._socket.get_monitor_socket(_HANDSHAKE_SUCCEEDED
                                                        | zmq.EVENT_DISCONNECTED)
        try:
            self._socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            self._close_socket()
            raise KvernError("invalid_argument",
                             f"endpoint: {self._endpoint!r}: {error}, allowed: tcp://HOST:PORT, "
                             "ipc://PATH") from None

    def _close_socket(self, linger=None):
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger)

    # ---- for any thread

    def call(self, function, *arguments):
        """Runs function(*arguments) on the socket's thread, soon."""
        with self._lock:
            if self._closed:
                raise self._failure or KvernError("cancelled", "the client is closed")
            self._commands.append((function, arguments))
        self._wake()

    def _wake(self):
        try:
            self._wake_write.send(b"w")
        except (BlockingIOError, OSError):
            pass  # Full: it will wake anyway. Closed: nobody to wake.

    def wait_welcome(self, waiter):
        """waiter(welcome, error) is called once, on the socket's thread."""
        self.call(self._add_welcome_waiter, waiter)

    def generate(self, fields, stream):
        """Sends a checked request; stream.put(event) gets its events, on the socket's thread."""
        data = _request.encode_generate(self._incarnation, fields)
        self.call(self._submit, stream, data, fields)

    def took(self, stream, tokens):
        """The stream's reader has taken so many more; each half window the router is told."""
        before = stream.taken
        stream.taken += tokens
        every = self._report_every
        if every and before // every != stream.taken // every:
            try:
                self.call(self._report, [stream])
            except KvernError:
                pass  # Closed: there is nobody to tell.

    def cancel(self, stream):
        """The stream gets nothing more. No effect on one that is over, nor on another of its id."""
        try:
            self.call(self._cancel, stream)
        except KvernError:
            pass  # Closed: then the router was told already.

    def drop(self, stream):
        """cancel() for a finalizer, which the garbage collector may run at any allocation, also of a
        thread that holds the lock: takes none. After the end it is forgotten with the connection."""
        self._commands.append((self._cancel, (stream,)))
        self._wake()

    def query_status(self, query):
        self.call(self._submit, query, _request.encode_capacity_query(self._incarnation))

    def close(self):
        """Cancels what is open and ends the thread. A second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._commands.append((self._stop, ()))
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # ---- on the socket's thread

    def _run(self):
        try:
            while self._running:
                poller = zmq.Poller()
                poller.register(self._monitor, zmq.POLLIN)
                poller.register(self._wake_read, zmq.POLLIN)
                events = zmq.POLLIN | (zmq.POLLOUT if self._connected and self._outbox else 0)
                poller.register(self._socket, events)
                poller.poll(self._poll_ms())
                self._turn()
            self._fail_all(KvernError("cancelled", "the client was closed"))
        except Exception as error:  # Whoever waits must hear of it, whatever it was.
            self._failure = KvernError("internal", f"the client's thread ended: {error!r}")
            self._fail_all(self._failure)
        finally:
            with self._lock:
                self._closed = True
            self._close_socket()
            self._wake_read.close()
            self._wake_write.close()

    def _turn(self):
        # Answers first: when the connection is lost, what came before it still counts.
        self._receive()
        while self._monitor.poll(0):
            self._on_monitor(recv_monitor_message(self._monitor)["event"])
        try:
            while self._wake_read.recv(4096):
                pass
        except BlockingIOError:
            pass
        for _ in range(len(self._commands)):
            function, arguments = self._commands.popleft()
            function(*arguments)
        self._keep_time()
        self._flush()

    def _anything_open(self):
        return bool(self._streams or self._queries or self._waiting or self._throttle
                    or self._welcome_waiters)

    def _poll_ms(self):
        if not self._anything_open():
            return None
        next_time = self._last_heard + self._timeout
        if self._welcome is not None:
            next_time = min(next_time, self._last_spoken + self._keep_alive_s,
                            self._throttle.next_time())
        return max(1, int((next_time - time.monotonic()) * 1000) + 1)

    def _keep_time(self):
        now = time.monotonic()
        if not self._anything_open():
            return
        if now - self._last_heard >= self._timeout:
            self._last_heard = now
            what = "silent" if self._connected else "not reachable"
            self._hello_due = self._hellos_again > 0 and self._welcome is None
            self._fail_all(KvernError("unavailable", f"the router at {self._endpoint} is {what} "
                                                     f"for {self._timeout:g} s"))
        else:
            self._speak(now)
        self._send_held()

    def _speak(self, now):
        """The keep-alive, when it is due, also in the middle of what there is to read: it may take
        longer than a client may be silent."""
        if (self._welcome is None or now - self._last_spoken < self._keep_alive_s
                or not self._anything_open()):
            return
        self._report(list(self._streams.values()))
        self._outbox.append(_request.encode_keep_alive(self._incarnation))
        self._last_spoken = now
        self._flush()

    def _on_monitor(self, event):
        if event == _HANDSHAKE_SUCCEEDED:
            self._connected = True
            self._outbox.clear()
            self._hellos_again = 0
            self._say_hello()
        elif event == zmq.EVENT_DISCONNECTED:
            while self._receive():
                pass
            was_connected = self._connected
            self._lose("the connection to the router was lost")
            if was_connected:
                # What was not sent yet must not reach the next router before the next Hello.
                self._close_socket(linger=0)
                self._open_socket()

    def _say_hello(self):
        self._welcome = None
        self._hello_due = False
        self._outbox.append(self._hello)

    def _on_forgotten(self):
        """The router does not know this client any more. It ended what it had accepted; the rest, and
        what it has just refused, is sent again behind Hello, and nobody notices."""
        if self._welcome is None:
            return  # Said of what was sent before the Hello that is under way.
        if self._hellos_again == _MAX_HELLOS_AGAIN:
            self._welcome, self._hello_due, self._hellos_again = None, True, 0
            self._fail_all(KvernError("unavailable", f"the router at {self._endpoint} does not know "
                                      f"this client after {_MAX_HELLOS_AGAIN + 1} Hellos"))
            return
        self._hellos_again += 1
        again = [(stream, self._unanswered[key]) for key, stream in self._streams.items()
                 if key in self._unanswered]
        lost = [stream for key, stream in self._streams.items() if key not in self._unanswered]
        self._waiting = again + self._queries + self._waiting
        self._streams, self._unanswered, self._queries = {}, {}, []
        self._say_hello()
        for stream in lost:
            stream.fail(KvernError("unavailable", "the router forgot this client, and this request "
                                                  "with it: ask again"))

    def _lose(self, why):
        """What was sent is gone with the connection; what waits is sent to the next one."""
        if self._connected:
            self._last_heard = time.monotonic()  # The silence counts from now.
        self._connected = False
        self._welcome = None
        self._outbox.clear()
        lost = list(self._streams.values()) + [query for query, _ in self._queries]
        self._streams, self._unanswered, self._queries = {}, {}, []
        # ZeroMQ connects again by itself.
        for stream in lost:
            stream.fail(KvernError("unavailable", why))

    def _fail_all(self, error):
        waiting, self._waiting = [entry[0] for entry in self._waiting], []
        failed = (list(self._streams.values()) + [query for query, _ in self._queries] + waiting
                  + self._throttle.clear())
        if self._connected:
            for request_id in self._streams:
                self._outbox.append(_request.encode_cancel(self._incarnation, request_id))
            self._flush()
        self._streams, self._unanswered, self._queries = {}, {}, []
        for stream in failed:
            stream.fail(error)
        waiters, self._welcome_waiters = self._welcome_waiters, []
        for waiter in waiters:
            waiter(None, error)

    def _flush(self):
        try:
            while self._connected and self._outbox:
                self._socket.send(self._outbox[0], zmq.DONTWAIT)
                self._outbox.popleft()
        except zmq.Again:
            pass  # POLLOUT will tell.

    def _receive(self):
        """Reads for a while; True if there may be more."""
        end = time.monotonic() + _MAX_PASS_S
        while self._last_heard < end:
            try:
                data = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return False
            self._last_heard = time.monotonic()
            try:
                incarnation, reply = _reply.decode(data[-1])
            except ValueError as error:
                self._fail_all(KvernError("internal", f"{self._endpoint} sent {error}"))
                continue
            known = self._welcome.router_incarnation if self._welcome is not None else 0
            if incarnation and known and incarnation != known:
                self._lose("the router was restarted")
                self._connected = True
                self._say_hello()
            try:
                self._on_reply(reply)
            except ValueError as error:
                self._fail_all(KvernError("internal", f"{self._endpoint} sent {error}"))
            # Again: the router was not silent while this was handled.
            self._last_heard = time.monotonic()
        return True

    def _on_reply(self, reply):
        if isinstance(reply, _reply.DeltasReply):
            for item in reply.deltas:
                self._on_delta(item)
                self._speak(time.monotonic())
        elif isinstance(reply, _reply.AcceptedReply):
            self._hellos_again = 0
            self._unanswered.pop(reply.request_id, None)
            if reply.request_id in self._streams:
                self._streams[reply.request_id].put(reply)
            self._throttle.on_credit(self._last_heard, reply.credit)
        elif isinstance(reply, _reply.KeepAliveReply):
            self._hellos_again = 0
            self._throttle.on_credit(self._last_heard, reply.credit)
        elif isinstance(reply, _reply.ErrorReply):
            self._on_error(reply)
        elif isinstance(reply, _reply.StatusReply):
            self._hellos_again = 0
            if self._queries:
                self._queries.pop(0)[0].put(reply.status)
        elif isinstance(reply, _reply.WelcomeReply):
            self._on_welcome(reply)

    def _on_delta(self, item):
        stream = self._streams.get(item.request_id)
        if stream is None:
            return  # Cancelled here while it was on its way.
        if item.delta.usage is not None:
            del self._streams[item.request_id]
            self._unanswered.pop(item.request_id, None)
        stream.put(item.delta)

    def _on_error(self, reply):
        if reply.error.message == _HELLO_FIRST:
            self._on_forgotten()
            return
        self._throttle.on_error(self._last_heard, reply.error)
        if reply.error.details.get("still_open"):
            return  # Refuses a second request of this id; the stream is the first one's.
        if reply.request_id is not None:
            self._unanswered.pop(reply.request_id, None)
            stream = self._streams.pop(reply.request_id, None)
            if stream is not None:
                stream.fail(reply.error)
            return
        # The router could not read a message, so it cannot say which: all that it has not accepted.
        unanswered, self._unanswered = self._unanswered, {}
        for request_id in unanswered:
            self._streams.pop(request_id).fail(reply.error)
        if self._welcome is None:
            self._hello_due = True
            self._fail_all(reply.error)

    def _on_welcome(self, welcome):
        self._welcome = welcome
        if welcome.keep_alive_s > 0:
            self._keep_alive_s = welcome.keep_alive_s
        waiters, self._welcome_waiters = self._welcome_waiters, []
        for waiter in waiters:
            waiter(welcome, None)
        self._report_every = (welcome.stream_window + 1) // 2
        self._throttle.on_connected()
        self._send_held()
        waiting, self._waiting = self._waiting, []
        for stream, data in waiting:
            self._send(stream, data)

    def _add_welcome_waiter(self, waiter):
        if self._welcome is not None:
            waiter(self._welcome, None)
            return
        self._begin_wait()
        self._welcome_waiters.append(waiter)

    def _begin_wait(self):
        """Silence is counted from when somebody began to wait."""
        if not self._anything_open():
            self._last_heard = time.monotonic()
        if self._hello_due and self._connected:
            self._say_hello()

    def _is_open(self, request_id):
        waiting = [entry[0] for entry in self._waiting] + self._throttle.streams()
        return request_id in self._streams or any(stream.request_id == request_id
                                                  for stream in waiting)

    def _submit(self, stream, data, fields=None):
        if stream.request_id is not None and self._is_open(stream.request_id):
            stream.fail(KvernError("invalid_argument",
                                   f"request_id: {stream.request_id} is already open"))
            return
        self._begin_wait()
        if self._welcome is None:
            self._waiting.append((stream, data))
        elif fields is None or not self._throttle.hold(time.monotonic(), stream, data, fields):
            self._send(stream, data)

    def _send_held(self):
        while self._welcome is not None:
            held = self._throttle.take(time.monotonic())
            if held is None:
                return
            stream, data, fields = held
            if fields is not None:
                data = _request.encode_generate(self._incarnation, fields)
            self._send(stream, data)

    def _report(self, streams):
        taken = []
        for stream in streams:
            tokens = stream.taken
            if tokens == stream.reported or self._streams.get(stream.request_id) is not stream:
                continue
            stream.reported = tokens
            taken.append((stream.request_id, tokens))
        if not taken or not self._report_every:
            return
        for start in range(0, len(taken), _MAX_CONSUMED):
            self._outbox.append(_request.encode_consumed(self._incarnation,
                                                         taken[start:start + _MAX_CONSUMED]))

    def _send(self, stream, data):
        if stream.request_id is None:
            self._queries.append((stream, data))
        else:
            self._streams[stream.request_id] = stream
            self._unanswered[stream.request_id] = data
        self._outbox.append(data)
        self._last_spoken = time.monotonic()

    def _cancel(self, stream):
        self._waiting = [entry for entry in self._waiting if entry[0] is not stream]
        self._throttle.remove(stream)
        if self._streams.get(stream.request_id) is stream:
            del self._streams[stream.request_id]
            self._unanswered.pop(stream.request_id, None)
            self._outbox.append(_request.encode_cancel(self._incarnation, stream.request_id))

    def _stop(self):
        self._running = False
