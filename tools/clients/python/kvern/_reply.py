"""The bytes of a router's message -> plain objects."""

from dataclasses import dataclass
from typing import List, Optional

from kvern._request import PROTOCOL_VERSION
from kvern._types import Delta, KvernError, TokenLogprob, Usage
from kvern.wire import KeepAliveReply as KeepAliveReplyWire
from kvern.wire import (Accepted, CapacityReply, Deltas, ErrorCode, FinishReason, RequestError,
                        RouterToClient, RouterToClientBody, Welcome)

_FINISH = {FinishReason.FinishReason.Stop: "stop", FinishReason.FinishReason.Length: "length"}


def _snake(name):
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


_CODES = {value: _snake(name) for name, value in vars(ErrorCode.ErrorCode).items()
          if isinstance(value, int)}


@dataclass
class WelcomeReply:
    router_incarnation: int
    model: str
    has_tokenizer: bool
    max_seq_len: int
    keep_alive_s: float
    stream_window: int  # tokens; 0: the router does not ask for credit


@dataclass
class AcceptedReply:
    request_id: str
    seed: int
    prompt_tokens: int
    credit: Optional[int]  # further requests that would be taken now; None: not said


@dataclass
class DeltaReply:
    request_id: str
    delta: Delta


@dataclass
class ErrorReply:
    request_id: Optional[str]  # None: no request could be read
    error: KvernError


@dataclass
class DeltasReply:
    deltas: List[DeltaReply]


@dataclass
class KeepAliveReply:
    credit: Optional[int]


@dataclass
class StatusReply:
    status: dict


def _id(wire_id):
    if wire_id is None:
        return None
    value = (wire_id.High() << 64) | wire_id.Low()
    return f"{value:032x}" if value else None


def _string(value):
    return value.decode("utf-8") if value is not None else None


def _welcome(table):
    return WelcomeReply(table.RouterIncarnation(), _string(table.Model()) or "",
                        bool(table.HasTokenizer()), table.MaxSeqLen(),
                        table.KeepAliveMs() / 1000, table.StreamWindow())


def _accepted(table):
    return AcceptedReply(_id(table.RequestId()), table.Seed(), table.PromptTokens(),
                         table.Credit())


def _keep_alive(table):
    return KeepAliveReply(table.Credit())


def _logprobs(table):
    result = []
    next_top = 0
    for index in range(table.LogprobsLength()):
        item = table.Logprobs(index)
        top = []
        for _ in range(item.NumTop()):
            pair = table.LogprobsTop(next_top)
            top.append((pair.TokenId(), pair.Value()))
            next_top += 1
        result.append(TokenLogprob(item.TokenId(), item.Logprob(), top))
    return result


def _usage(table):
    if table is None:
        return None
    return Usage(table.PromptTokens(), table.CompletionTokens(), table.CachedTokens(),
                 table.QueueMs(), table.TtftMs(), table.TpotMs(), table.ItlMsMax())


def _delta(table):
    stop_reason = table.StopTokenId()
    if stop_reason is None:
        stop_reason = _string(table.StopString())
    delta = Delta(text=_string(table.Text()),
                  token_ids=[table.TokenIds(i) for i in range(table.TokenIdsLength())],
                  choice=table.Choice(), position=table.Position(),
                  finish_reason=_FINISH.get(table.FinishReason()), stop_reason=stop_reason,
                  logprobs=_logprobs(table), usage=_usage(table.Usage()))
    return DeltaReply(_id(table.RequestId()), delta)


def _deltas(table):
    return DeltasReply(_each_delta(table))


def _each_delta(table):
    """One at a time: all of a large message take seconds, and its reader has more to do."""
    try:
        for index in range(table.DeltasLength()):
            yield _delta(table.Deltas(index))
    except Exception as error:  # flatbuffers raises whatever a wrong offset leads to
        raise ValueError(f"deltas that cannot be read ({error!r})") from error


def _error(table):
    details = {}
    wire = table.Details()
    if wire is not None:
        numbers = {"retry_after_ms": wire.RetryAfterMs(), "needed_blocks": wire.NeededBlocks(),
                   "available_blocks": wire.AvailableBlocks(),
                   "needed_total_tokens": wire.NeededTotalTokens(),
                   "largest_total_tokens": wire.LargestTotalTokens(), "credit": wire.Credit()}
        details = {name: value for name, value in numbers.items() if value is not None}
        if wire.StillOpen():
            details["still_open"] = True
    code = _CODES.get(table.Code(), "internal")
    return ErrorReply(_id(table.RequestId()),
                      KvernError(code, _string(table.Message()) or "", details))


def _blocks(total, reserved, used):
    return {"total_blocks": total, "reserved_blocks": reserved, "used_blocks": used,
            "free_blocks": total - reserved}


def _status(table):
    groups = []
    for index in range(table.GroupsLength()):
        group = table.Groups(index)
        ranks = [group.Ranks(i) for i in range(group.RanksLength())]
        groups.append({
            "id": _string(group.Id()) or "", "model": _string(group.Model()) or "",
            **_blocks(group.TotalBlocks(), group.ReservedBlocks(), group.UsedBlocks()),
            "ranks": [{"rank": rank.Rank(), "bytes_per_token": rank.BytesPerToken()}
                      for rank in ranks]})
    total = _blocks(*(sum(group[name] for group in groups)
                      for name in ("total_blocks", "reserved_blocks", "used_blocks")))
    return StatusReply({"block_size": table.BlockSize(), "groups": groups, "total": total})


_BODIES = {
    RouterToClientBody.RouterToClientBody.Welcome: (Welcome.Welcome, _welcome),
    RouterToClientBody.RouterToClientBody.Accepted: (Accepted.Accepted, _accepted),
    RouterToClientBody.RouterToClientBody.Deltas: (Deltas.Deltas, _deltas),
    RouterToClientBody.RouterToClientBody.RequestError: (RequestError.RequestError, _error),
    RouterToClientBody.RouterToClientBody.KeepAliveReply: (KeepAliveReplyWire.KeepAliveReply,
                                                           _keep_alive),
    RouterToClientBody.RouterToClientBody.CapacityReply: (CapacityReply.CapacityReply, _status),
}


def decode(data):
    """-> (router incarnation, one of the replies above, or None for a kind of a newer router).

    Raises ValueError for what is not a message of this protocol version."""
    try:
        # The generated check knows only the identifier of the schema's root, which is the other way.
        if data[4:8] != b"KVRC":
            raise ValueError("not a message of a Kvern router")
        root = RouterToClient.RouterToClient.GetRootAs(data, 0)
        if root.ProtocolVersion() != PROTOCOL_VERSION:
            raise ValueError(f"protocol version {root.ProtocolVersion()}, "
                             f"this client speaks {PROTOCOL_VERSION}")
        kind = root.BodyType()
        if kind not in _BODIES:
            return root.Incarnation(), None
        table_class, read = _BODIES[kind]
        body = root.Body()
        table = table_class()
        table.Init(body.Bytes, body.Pos)
        return root.Incarnation(), read(table)
    except ValueError:
        raise
    except Exception as error:  # flatbuffers raises whatever a wrong offset leads to
        raise ValueError(f"a message that cannot be read ({error!r})") from error
