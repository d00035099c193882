"""A router that answers by script: what a prompt says is what it does. For tests of clients; it speaks
the wire format through the package's generated code and knows nothing of memory or models."""

import socket
import threading
import time

import flatbuffers
import zmq

from kvern.wire import (Accepted, CancelRequest, CapacityReply, ClientBody, ClientToRouter, Consumed,
                        Delta, Deltas, ErrorDetails, GenerateRequest, GroupCapacity, Hello,
                        KeepAliveReply, RankCapacity, RequestError, RequestId, RouterToClient,
                        RouterToClientBody, TokenLogprob, TokenValue, Usage, Welcome)

BODY = RouterToClientBody.RouterToClientBody
KIND = ClientBody.ClientBody


def _id(builder, request_id):
    value = int(request_id, 16)
    return RequestId.CreateRequestId(builder, value >> 64, value & (2**64 - 1))


class NoRouter:
    """A server of another protocol: says something else and hangs up, each time."""

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = "tcp://127.0.0.1:%d" % self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


class ScriptedRouter:
    """Runs in a thread from construction to close(). `log` is what it heard, as tuples."""

    def __init__(self, port=None, incarnation=7, keep_alive_ms=50, leaves_after_answer=False):
        self.incarnation = incarnation
        self.keep_alive_ms = keep_alive_ms
        self.silent = False
        self._leaves_after_answer = leaves_after_answer  # like a router that drains
        self.stream_window = 0
        self.forgets = False  # each client as soon as it has said Hello
        self._known = set()
        self.credit = None  # said in replies; None: nothing
        self.retry_after_ms = 60_000
        self.gives_credit = None  # as the last Hello said
        self.log = []
        self.requests = {}  # request id -> GenerateRequest table
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 5000 if leaves_after_answer else 0)
        if port is None:
            port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        else:
            self._bind(port)
        self.port = port
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._running = True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _bind(self, port):
        end = time.monotonic() + 20
        while True:
            try:
                return self._socket.bind(f"tcp://127.0.0.1:{port}")
            except zmq.ZMQError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def forget(self):
        """Whoever said Hello so far."""
        self._known = set()

    def close(self):
        self._running = False
        self._thread.join()

    def count(self, kind):
        return sum(1 for entry in self.log if entry[0] == kind)

    def _run(self):
        while self._running:
            if not self._socket.poll(5):
                continue
            peer, data = self._socket.recv_multipart()
            self._on_message(peer, data)
        self._socket.close()

    def _on_message(self, peer, data):
        root = ClientToRouter.ClientToRouter.GetRootAs(data, 0)
        kind, body = root.BodyType(), root.Body()
        if kind == KIND.Hello:
            hello = Hello.Hello()
            hello.Init(body.Bytes, body.Pos)
            self.log.append(("hello", (hello.Tenant() or b"").decode()))
            self.gives_credit = hello.GivesCredit()
            self._known.add(peer)
            if not self.silent:
                self._send(peer, self.welcome)
        elif self.forgets or peer not in self._known:
            self._refuse_stranger(peer, kind, body)
        elif kind == KIND.KeepAlive:
            self.log.append(("keep_alive",))
            if not self.silent:
                self._send(peer, self.keep_alive_reply)
        elif kind == KIND.Consumed:
            consumed = Consumed.Consumed()
            consumed.Init(body.Bytes, body.Pos)
            for index in range(consumed.StreamsLength()):
                stream = consumed.Streams(index)
                wire_id = stream.RequestId(RequestId.RequestId())
                self.log.append(("consumed", f"{(wire_id.High() << 64) | wire_id.Low():032x}",
                                 stream.Tokens()))
        elif kind == KIND.CapacityQuery:
            self.log.append(("capacity",))
            self._send(peer, self.capacity)
        elif kind == KIND.CancelRequest:
            cancel = CancelRequest.CancelRequest()
            cancel.Init(body.Bytes, body.Pos)
            wire_id = cancel.RequestId()
            self.log.append(("cancel", f"{(wire_id.High() << 64) | wire_id.Low():032x}"))
        elif kind == KIND.GenerateRequest:
            request = GenerateRequest.GenerateRequest()
            request.Init(body.Bytes, body.Pos)
            wire_id = request.RequestId()
            request_id = f"{(wire_id.High() << 64) | wire_id.Low():032x}"
            self.requests[request_id] = request
            self.log.append(("generate", request_id))
            self._answer(peer, request_id, request)
            self._running = self._running and not self._leaves_after_answer

    def _refuse_stranger(self, peer, kind, body):
        request_id = None
        if kind == KIND.GenerateRequest:
            request = GenerateRequest.GenerateRequest()
            request.Init(body.Bytes, body.Pos)
            wire_id = request.RequestId()
            request_id = f"{(wire_id.High() << 64) | wire_id.Low():032x}"
        self.log.append(("refused", request_id))
        self._send(peer, lambda b: self.error(b, request_id, 1, "the first message must be Hello"))

    def _send(self, peer, make):
        builder = flatbuffers.Builder(256)
        kind, body = make(builder)
        RouterToClient.RouterToClientStart(builder)
        RouterToClient.RouterToClientAddProtocolVersion(builder, 1)
        RouterToClient.RouterToClientAddIncarnation(builder, self.incarnation)
        RouterToClient.RouterToClientAddBodyType(builder, kind)
        RouterToClient.RouterToClientAddBody(builder, body)
        builder.Finish(RouterToClient.RouterToClientEnd(builder), file_identifier=b"KVRC")
        self._socket.send_multipart([peer, bytes(builder.Output())])

    def _answer(self, peer, request_id, request):
        prompt = request.Prompt()
        if prompt is None and request.MessagesLength() > 0:
            prompt = request.Messages(request.MessagesLength() - 1).Content()
        prompt = (prompt or b"").decode()
        if prompt == "refuse":
            return self._send(peer, lambda b: self.error(
                b, request_id, 3, "needs 99 blocks", needed_blocks=99, available_blocks=64,
                needed_total_tokens=1100, largest_total_tokens=1024))
        if prompt == "busy":
            advice = {"retry_after_ms": self.retry_after_ms}
            if self.credit is not None:
                advice["credit"] = self.credit
            return self._send(peer, lambda b: self.error(b, request_id, 4, "busy", **advice))
        if prompt == "late":
            return self._send(peer, lambda b: self.error(b, request_id, 5, "too late"))
        if prompt == "garbage":
            return self._socket.send_multipart([peer, b"\0" * 40])
        if prompt == "unreadable":
            return self._send(peer, lambda b: self.error(b, None, 1, "message cannot be read"))
        self._send(peer, lambda b: self.accepted(b, request_id))
        if prompt == "doubled":  # As if another writer on this connection had sent the id again.
            self._send(peer, lambda b: self.error(b, request_id, 1, "already in use",
                                                  still_open=True))
        words = prompt.split()
        n = request.N()
        for index, word in enumerate(words):
            last = index == len(words) - 1 and words[0] != "hang"
            self._send(peer, lambda b: self.deltas(b, request_id, index, word + " ", last, n,
                                                   prompt == "with logprobs"))
        return None

    # ---- bodies: builder -> (kind, offset)

    def welcome(self, builder):
        model = builder.CreateString("scripted")
        Welcome.WelcomeStart(builder)
        Welcome.WelcomeAddRouterIncarnation(builder, self.incarnation)
        Welcome.WelcomeAddModel(builder, model)
        Welcome.WelcomeAddHasTokenizer(builder, True)
        Welcome.WelcomeAddMaxSeqLen(builder, 2048)
        Welcome.WelcomeAddKeepAliveMs(builder, self.keep_alive_ms)
        Welcome.WelcomeAddStreamWindow(builder, self.stream_window)
        return BODY.Welcome, Welcome.WelcomeEnd(builder)

    def keep_alive_reply(self, builder):
        KeepAliveReply.KeepAliveReplyStart(builder)
        if self.credit is not None:
            KeepAliveReply.KeepAliveReplyAddCredit(builder, self.credit)
        return BODY.KeepAliveReply, KeepAliveReply.KeepAliveReplyEnd(builder)

    def accepted(self, builder, request_id):
        Accepted.AcceptedStart(builder)
        Accepted.AcceptedAddRequestId(builder, _id(builder, request_id))
        Accepted.AcceptedAddSeed(builder, 2**63 + 5)
        Accepted.AcceptedAddPromptTokens(builder, 3)
        if self.credit is not None:
            Accepted.AcceptedAddCredit(builder, self.credit)
        return BODY.Accepted, Accepted.AcceptedEnd(builder)

    def error(self, builder, request_id, code, message, **details):
        text = builder.CreateString(message)
        ErrorDetails.ErrorDetailsStart(builder)
        for name, add in (("needed_blocks", ErrorDetails.ErrorDetailsAddNeededBlocks),
                          ("available_blocks", ErrorDetails.ErrorDetailsAddAvailableBlocks),
                          ("largest_total_tokens", ErrorDetails.ErrorDetailsAddLargestTotalTokens),
                          ("needed_total_tokens", ErrorDetails.ErrorDetailsAddNeededTotalTokens),
                          ("retry_after_ms", ErrorDetails.ErrorDetailsAddRetryAfterMs),
                          ("credit", ErrorDetails.ErrorDetailsAddCredit),
                          ("still_open", ErrorDetails.ErrorDetailsAddStillOpen)):
            if name in details:
                add(builder, details[name])
        detail_table = ErrorDetails.ErrorDetailsEnd(builder)
        RequestError.RequestErrorStart(builder)
        if request_id is not None:
            RequestError.RequestErrorAddRequestId(builder, _id(builder, request_id))
        RequestError.RequestErrorAddCode(builder, code)
        RequestError.RequestErrorAddMessage(builder, text)
        RequestError.RequestErrorAddDetails(builder, detail_table)
        return BODY.RequestError, RequestError.RequestErrorEnd(builder)

    def _usage(self, builder):
        Usage.UsageStart(builder)
        Usage.UsageAddPromptTokens(builder, 3)
        Usage.UsageAddCompletionTokens(builder, 5)
        Usage.UsageAddTtftMs(builder, 1.5)
        return Usage.UsageEnd(builder)

    def _logprobs(self, builder, tokens):
        Delta.DeltaStartLogprobsTopVector(builder, 2 * len(tokens))
        for token in reversed(tokens):
            TokenValue.CreateTokenValue(builder, token + 1, -2.0)
            TokenValue.CreateTokenValue(builder, token, -0.5)
        top = builder.EndVector()
        Delta.DeltaStartLogprobsVector(builder, len(tokens))
        for token in reversed(tokens):
            TokenLogprob.CreateTokenLogprob(builder, token, -0.5, 2)
        return builder.EndVector(), top

    def _delta(self, builder, request_id, choice, position, text, last_of_choice, last, logprobs):
        tokens = [10 * position, 10 * position + 1]
        text_offset = builder.CreateString(text)
        stop = builder.CreateString("END") if last_of_choice else None
        lists = self._logprobs(builder, tokens) if logprobs else None
        Delta.DeltaStartTokenIdsVector(builder, 2)
        for token in reversed(tokens):
            builder.PrependUint32(token)
        token_ids = builder.EndVector()
        usage = self._usage(builder) if last else None
        Delta.DeltaStart(builder)
        Delta.DeltaAddRequestId(builder, _id(builder, request_id))
        Delta.DeltaAddChoice(builder, choice)
        Delta.DeltaAddPosition(builder, 2 * position)
        Delta.DeltaAddTokenIds(builder, token_ids)
        Delta.DeltaAddText(builder, text_offset)
        if lists is not None:
            Delta.DeltaAddLogprobs(builder, lists[0])
            Delta.DeltaAddLogprobsTop(builder, lists[1])
        if last_of_choice and text == "cut ":
            Delta.DeltaAddFinishReason(builder, 2)
        elif last_of_choice:
            Delta.DeltaAddFinishReason(builder, 1)
            Delta.DeltaAddStopString(builder, stop)
        if usage is not None:
            Delta.DeltaAddUsage(builder, usage)
        return Delta.DeltaEnd(builder)

    def deltas(self, builder, request_id, index, text, last, n, logprobs):
        offsets = [self._delta(builder, request_id, choice, index, text, last,
                               last and choice == n - 1, logprobs) for choice in range(n)]
        Deltas.DeltasStartDeltasVector(builder, len(offsets))
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        vector = builder.EndVector()
        Deltas.DeltasStart(builder)
        Deltas.DeltasAddDeltas(builder, vector)
        return BODY.Deltas, Deltas.DeltasEnd(builder)

    def capacity(self, builder):
        name, model = builder.CreateString("group-0"), builder.CreateString("scripted")
        GroupCapacity.GroupCapacityStartRanksVector(builder, 2)
        for rank in (1, 0):
            RankCapacity.CreateRankCapacity(builder, rank, 100 * (rank + 1))
        ranks = builder.EndVector()
        GroupCapacity.GroupCapacityStart(builder)
        GroupCapacity.GroupCapacityAddId(builder, name)
        GroupCapacity.GroupCapacityAddModel(builder, model)
        GroupCapacity.GroupCapacityAddTotalBlocks(builder, 64)
        GroupCapacity.GroupCapacityAddReservedBlocks(builder, 10)
        GroupCapacity.GroupCapacityAddUsedBlocks(builder, 4)
        GroupCapacity.GroupCapacityAddRanks(builder, ranks)
        group = GroupCapacity.GroupCapacityEnd(builder)
        CapacityReply.CapacityReplyStartGroupsVector(builder, 1)
        builder.PrependUOffsetTRelative(group)
        groups = builder.EndVector()
        CapacityReply.CapacityReplyStart(builder)
        CapacityReply.CapacityReplyAddBlockSize(builder, 16)
        CapacityReply.CapacityReplyAddGroups(builder, groups)
        return BODY.CapacityReply, CapacityReply.CapacityReplyEnd(builder)
