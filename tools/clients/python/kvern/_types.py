"""What a client gets: deltas, whole answers, errors."""

from dataclasses import dataclass, field
from typing import List, Optional, Tuple, Union


class KvernError(Exception):
    """A request's end without an answer.

    `code` is one of the service's error codes in lower case ("never_fits", "overloaded", …);
    `details` holds the numbers that belong to it, such as retry_after_ms.
    """

    def __init__(self, code, message, details=None):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.details = dict(details or {})


@dataclass
class TokenLogprob:
    """Natural logarithms of the probabilities of a token and of the K best ones at its place."""

    token_id: int
    logprob: float
    top: List[Tuple[int, float]]


@dataclass
class Usage:
    """What a request took; on its last delta."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_ms: float
    ttft_ms: float
    tpot_ms: float
    itl_ms_max: float


@dataclass
class Delta:
    """A run of tokens of one choice. `position` is the index of the first in the choice's output."""

    text: Optional[str]  # None: the service has no tokenizer
    token_ids: List[int]
    choice: int
    position: int
    finish_reason: Optional[str] = None  # "stop" or "length" on the choice's last delta
    stop_reason: Union[None, int, str] = None
    logprobs: Optional[List[TokenLogprob]] = None
    usage: Optional[Usage] = None  # on the request's last delta only


@dataclass
class Choice:
    """One whole answer."""

    index: int
    text: Optional[str] = ""
    token_ids: List[int] = field(default_factory=list)
    finish_reason: Optional[str] = None
    stop_reason: Union[None, int, str] = None
    logprobs: Optional[List[TokenLogprob]] = None

    def _add(self, delta):
        self.token_ids.extend(delta.token_ids)
        self.text = None if delta.text is None else (self.text or "") + delta.text
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + delta.logprobs
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason


@dataclass
class Completion:
    """All that a request gave: its choices, its seed and what it took."""

    request_id: str
    seed: int
    choices: List[Choice]
    usage: Usage

    @property
    def text(self):
        """The first choice's text."""
        return self.choices[0].text

    @property
    def token_ids(self):
        return self.choices[0].token_ids

    @property
    def finish_reason(self):
        return self.choices[0].finish_reason

    @property
    def stop_reason(self):
        return self.choices[0].stop_reason

    @property
    def logprobs(self):
        return self.choices[0].logprobs


def collect(request_id, seed, deltas):
    """A Completion of all deltas of a request, in their order."""
    choices = {}
    usage = None
    for delta in deltas:
        choices.setdefault(delta.choice, Choice(delta.choice))._add(delta)
        usage = delta.usage or usage
    return Completion(request_id, seed, [choices[index] for index in sorted(choices)], usage)
