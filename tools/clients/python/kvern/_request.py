"""Keyword arguments -> the bytes of a request. Types and ranges of the wire are checked here; what
the service allows is the service's to say."""

import math
import re
import secrets

import flatbuffers

from kvern._types import KvernError
from kvern.wire import (CancelRequest, CapacityQuery, ChatMessage, ClientBody, ClientToRouter,
                        Consumed, GenerateRequest, Hello, KeepAlive, RequestId, SamplingParams,
                        ServiceClass, StreamConsumed, TokenValue)

PROTOCOL_VERSION = 1

_UINT32_MAX = 2**32 - 1
_UINT64_MAX = 2**64 - 1
# The largest that the wire's 32 bits hold.
_FLOAT_MAX = 3.4028234663852886e38
# ZeroMQ counts milliseconds in 31 bits.
_TIMEOUT_MAX_S = 1_000_000
# A larger message would end the connection, and with it every open stream.
_MAX_MESSAGE_BYTES = 8 << 20
# Those of the schema; the service refuses batch.
_CLASSES = {"guaranteed": ServiceClass.ServiceClass.Guaranteed,
            "standard": ServiceClass.ServiceClass.Standard,
            "batch": ServiceClass.ServiceClass.Batch}


def _invalid(name, value, allowed):
    return KvernError("invalid_argument", f"{name}: {_shown(value)} is not {allowed}")


def _shown(value):
    try:
        shown = repr(value)
    except ValueError:  # A whole number of more digits than Python shows.
        shown = f"{type(value).__name__} that is too long to show"
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _integer(low, high):
    def check(name, value):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _invalid(name, value, f"a whole number from {low} to {high}")
        return value
    return check


def _number(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _invalid(name, value, "a number")
    if _FLOAT_MAX < abs(value) != math.inf:  # What is infinite or no number the service refuses.
        raise _invalid(name, value, f"a number from {-_FLOAT_MAX:g} to {_FLOAT_MAX:g}")
    return float(value)


def _boolean(name, value):
    if not isinstance(value, bool):
        raise _invalid(name, value, "True or False")
    return value


def _text(name, value):
    if not isinstance(value, str):
        raise _invalid(name, value, "a string")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise _invalid(name, value, "well-formed text (it holds a lone surrogate)") from None


def _list_of(check, what):
    def check_all(name, value):
        if isinstance(value, (str, bytes, dict)):
            raise _invalid(name, value, f"a list of {what}")
        try:
            items = list(value)
        except TypeError:
            raise _invalid(name, value, f"a list of {what}") from None
        return [check(f"{name}[{index}]", item) for index, item in enumerate(items)]
    return check_all


def _object(name, value, keys):
    """Errors name keys and types: values may be a prompt."""
    allowed = " and ".join(keys)
    if not isinstance(value, dict):
        raise KvernError("invalid_argument", f"{name} is of type {type(value).__name__}, allowed: "
                                             f"an object with {allowed}")
    for key in value:
        if key not in keys:
            raise KvernError("invalid_argument", f"{name}: {_shown(key)} is not known, allowed: "
                                                 f"{allowed}")
    for key in keys:
        if key not in value:
            raise KvernError("invalid_argument", f"{name}: {key} is missing, needed: {allowed}")


def _message(name, value):
    _object(name, value, ("role", "content"))
    return (_text(f"{name}.role", value["role"]), _content(f"{name}.content", value["content"]))


def _content(name, value):
    """A string, or parts of type text, which are joined as they are."""
    if isinstance(value, (list, tuple)):
        return b"".join(_part(f"{name}[{index}]", part) for index, part in enumerate(value))
    return _text(name, value)


def _part(name, value):
    # First, as parts of other types have other keys.
    if isinstance(value, dict) and value.get("type", "text") != "text":
        raise _invalid(f"{name}.type", value["type"], "text, the only type of part that is taken")
    _object(name, value, ("type", "text"))
    return _text(f"{name}.text", value["text"])


def _logit_bias(name, value):
    if not isinstance(value, dict):
        raise _invalid(name, value, "an object of token id and number")
    pairs = []
    for key, bias in value.items():
        if isinstance(key, str) and re.fullmatch("0|[1-9][0-9]{0,9}", key):
            key = int(key)
        pairs.append((_uint32(f"{name} key", key), _number(f"{name}[{key}]", bias)))
    return pairs


def _service_class(name, value):
    if not isinstance(value, str) or value not in _CLASSES:
        raise _invalid(name, value, "one of guaranteed, standard")
    return _CLASSES[value]


def _request_id(name, value):
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{32}", value) or not int(value, 16):
        raise _invalid(name, value, "32 hexadecimal digits, not all zero")
    return value


_uint32 = _integer(0, _UINT32_MAX)
_positive = _integer(1, _UINT32_MAX)

# Field -> check. The order of the table is the order of help texts and error messages.
_FIELDS = {
    "prompt": _text,
    "prompt_token_ids": _list_of(_uint32, "token ids"),
    "messages": _list_of(_message, "messages"),
    "max_tokens": _positive,
    "temperature": _number,
    "top_k": _uint32,
    "top_p": _number,
    "min_p": _number,
    "repetition_penalty": _number,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "logit_bias": _logit_bias,
    "seed": _integer(0, _UINT64_MAX),
    "n": _positive,
    "stop": _list_of(_text, "strings"),
    "stop_token_ids": _list_of(_uint32, "token ids"),
    "ignore_eos": _boolean,
    "min_tokens": _uint32,
    "logprobs": _uint32,
    "prompt_logprobs": _uint32,
    "class": _service_class,
    "priority": _integer(-2**31, 2**31 - 1),
    "ttft_deadline_ms": _uint32,
    "deadline_ms": _uint32,
    "detach_ms": _uint32,
    "request_id": _request_id,
    "model": _text,
}


def check_timeout(value):
    if (isinstance(value, bool) or not isinstance(value, (int, float))
            or not 0 < value <= _TIMEOUT_MAX_S):
        raise _invalid("timeout", value, "a time in seconds, allowed: a number above 0, at most "
                                         f"{_TIMEOUT_MAX_S}")


def check_endpoint(value):
    if b"\0" in _text("endpoint", value):
        raise _invalid("endpoint", value, "text without zero bytes")


def check_fields(fields):
    """Keyword arguments -> checked fields with a request_id. A field that is None counts as absent.
    `service_class` is another name of `class`, which is a word of Python."""
    if "service_class" in fields:
        if "class" in fields:
            raise TypeError("class and service_class are the same request field, given twice")
        fields = dict(fields)
        fields["class"] = fields.pop("service_class")
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        known = ["service_class" if name == "class" else name for name in _FIELDS]
        raise TypeError(f"unknown request field {unknown[0]!r}; known: {', '.join(known)}")
    checked = {name: _FIELDS[name](name, fields[name]) for name in _FIELDS
               if fields.get(name) is not None}
    inputs = [name for name in ("prompt", "prompt_token_ids", "messages") if name in checked]
    if len(inputs) != 1:
        given = ", ".join(inputs) or "none"
        raise KvernError("invalid_argument",
                         f"needs exactly one of prompt, prompt_token_ids, messages; given: {given}")
    checked.setdefault("request_id", f"{secrets.randbits(128) or 1:032x}")
    return checked


def _uint32_vector(builder, start, values):
    start(builder, len(values))
    for value in reversed(values):
        builder.PrependUint32(value)
    return builder.EndVector()


def _offset_vector(builder, start, offsets):
    start(builder, len(offsets))
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _messages(builder, messages):
    offsets = []
    for role, content in messages:
        role_offset, content_offset = builder.CreateString(role), builder.CreateString(content)
        ChatMessage.ChatMessageStart(builder)
        ChatMessage.ChatMessageAddRole(builder, role_offset)
        ChatMessage.ChatMessageAddContent(builder, content_offset)
        offsets.append(ChatMessage.ChatMessageEnd(builder))
    return _offset_vector(builder, GenerateRequest.GenerateRequestStartMessagesVector, offsets)


def _sampling(builder, fields):
    wire = SamplingParams
    ids = bias = None
    if "stop_token_ids" in fields:
        ids = _uint32_vector(builder, wire.SamplingParamsStartStopTokenIdsVector,
                             fields["stop_token_ids"])
    if "logit_bias" in fields:
        wire.SamplingParamsStartLogitBiasVector(builder, len(fields["logit_bias"]))
        for token_id, value in reversed(fields["logit_bias"]):
            TokenValue.CreateTokenValue(builder, token_id, value)
        bias = builder.EndVector()
    wire.SamplingParamsStart(builder)
    for name, add in (("temperature", wire.SamplingParamsAddTemperature),
                      ("top_k", wire.SamplingParamsAddTopK),
                      ("top_p", wire.SamplingParamsAddTopP),
                      ("min_p", wire.SamplingParamsAddMinP),
                      ("repetition_penalty", wire.SamplingParamsAddRepetitionPenalty),
                      ("presence_penalty", wire.SamplingParamsAddPresencePenalty),
                      ("frequency_penalty", wire.SamplingParamsAddFrequencyPenalty),
                      ("min_tokens", wire.SamplingParamsAddMinTokens),
                      ("ignore_eos", wire.SamplingParamsAddIgnoreEos),
                      ("logprobs", wire.SamplingParamsAddLogprobs),
                      ("prompt_logprobs", wire.SamplingParamsAddPromptLogprobs)):
        if name in fields:
            add(builder, fields[name])
    if ids is not None:
        wire.SamplingParamsAddStopTokenIds(builder, ids)
    if bias is not None:
        wire.SamplingParamsAddLogitBias(builder, bias)
    return wire.SamplingParamsEnd(builder)


def _add_request_id(builder, add, request_id):
    value = int(request_id, 16)
    add(builder, RequestId.CreateRequestId(builder, value >> 64, value & _UINT64_MAX))


def _generate(builder, fields):
    wire = GenerateRequest
    offsets = []
    for name, add in (("model", wire.GenerateRequestAddModel),
                      ("prompt", wire.GenerateRequestAddPrompt)):
        if name in fields:
            offsets.append((add, builder.CreateString(fields[name])))
    if "prompt_token_ids" in fields:
        ids = _uint32_vector(builder, wire.GenerateRequestStartPromptTokenIdsVector,
                             fields["prompt_token_ids"])
        offsets.append((wire.GenerateRequestAddPromptTokenIds, ids))
    if "messages" in fields:
        offsets.append((wire.GenerateRequestAddMessages, _messages(builder, fields["messages"])))
    if "stop" in fields:
        strings = [builder.CreateString(text) for text in fields["stop"]]
        vector = _offset_vector(builder, wire.GenerateRequestStartStopVector, strings)
        offsets.append((wire.GenerateRequestAddStop, vector))
    offsets.append((wire.GenerateRequestAddSampling, _sampling(builder, fields)))
    wire.GenerateRequestStart(builder)
    _add_request_id(builder, wire.GenerateRequestAddRequestId, fields["request_id"])
    for add, offset in offsets:
        add(builder, offset)
    # On the wire an absent class is `guaranteed`; the service's default is `standard`.
    fields = {"class": _CLASSES["standard"], **fields}
    for name, add in (("seed", wire.GenerateRequestAddSeed),
                      ("max_tokens", wire.GenerateRequestAddMaxTokens),
                      ("n", wire.GenerateRequestAddN),
                      ("class", wire.GenerateRequestAddServiceClass),
                      ("priority", wire.GenerateRequestAddPriority),
                      ("ttft_deadline_ms", wire.GenerateRequestAddTtftDeadlineMs),
                      ("deadline_ms", wire.GenerateRequestAddDeadlineMs),
                      ("detach_ms", wire.GenerateRequestAddDetachMs)):
        if name in fields:
            add(builder, fields[name])
    return wire.GenerateRequestEnd(builder)


def _finish(builder, incarnation, kind, body):
    wire = ClientToRouter
    wire.ClientToRouterStart(builder)
    wire.ClientToRouterAddProtocolVersion(builder, PROTOCOL_VERSION)
    wire.ClientToRouterAddIncarnation(builder, incarnation)
    wire.ClientToRouterAddBodyType(builder, kind)
    wire.ClientToRouterAddBody(builder, body)
    builder.Finish(wire.ClientToRouterEnd(builder), file_identifier=b"KVCR")
    return bytes(builder.Output())


def encode_generate(incarnation, fields):
    """`fields` as check_fields returns them."""
    builder = flatbuffers.Builder(1024)
    body = _generate(builder, fields)
    message = _finish(builder, incarnation, ClientBody.ClientBody.GenerateRequest, body)
    if len(message) > _MAX_MESSAGE_BYTES:
        raise KvernError("invalid_argument", f"the request has {len(message)} bytes, "
                                             f"allowed: {_MAX_MESSAGE_BYTES}")
    return message


def encode_hello(incarnation, tenant, client_name):
    """The client gives credit: it will say what its readers have taken."""
    builder = flatbuffers.Builder(256)
    tenant_offset = builder.CreateString(_text("tenant", tenant))
    name_offset = builder.CreateString(client_name)
    Hello.HelloStart(builder)
    Hello.HelloAddClientIncarnation(builder, incarnation)
    Hello.HelloAddTenant(builder, tenant_offset)
    Hello.HelloAddClientName(builder, name_offset)
    Hello.HelloAddGivesCredit(builder, True)
    return _finish(builder, incarnation, ClientBody.ClientBody.Hello, Hello.HelloEnd(builder))


def encode_cancel(incarnation, request_id):
    builder = flatbuffers.Builder(256)
    CancelRequest.CancelRequestStart(builder)
    _add_request_id(builder, CancelRequest.CancelRequestAddRequestId, request_id)
    body = CancelRequest.CancelRequestEnd(builder)
    return _finish(builder, incarnation, ClientBody.ClientBody.CancelRequest, body)


def encode_consumed(incarnation, streams):
    """`streams`: pairs of a request id and how many of its tokens were taken, all choices together."""
    builder = flatbuffers.Builder(64 + 32 * len(streams))
    Consumed.ConsumedStartStreamsVector(builder, len(streams))
    for request_id, tokens in reversed(streams):
        value = int(request_id, 16)
        StreamConsumed.CreateStreamConsumed(builder, value >> 64, value & (2**64 - 1), tokens)
    offset = builder.EndVector()
    Consumed.ConsumedStart(builder)
    Consumed.ConsumedAddStreams(builder, offset)
    return _finish(builder, incarnation, ClientBody.ClientBody.Consumed,
                   Consumed.ConsumedEnd(builder))


def encode_keep_alive(incarnation):
    builder = flatbuffers.Builder(128)
    KeepAlive.KeepAliveStart(builder)
    body = KeepAlive.KeepAliveEnd(builder)
    return _finish(builder, incarnation, ClientBody.ClientBody.KeepAlive, body)


def encode_capacity_query(incarnation):
    builder = flatbuffers.Builder(128)
    CapacityQuery.CapacityQueryStart(builder)
    body = CapacityQuery.CapacityQueryEnd(builder)
    return _finish(builder, incarnation, ClientBody.ClientBody.CapacityQuery, body)
