"""Client of the Kvern inference service.

    from kvern import Client
    with Client("tcp://127.0.0.1:5570") as client:
        for delta in client.generate(prompt="The sea is", max_tokens=32, temperature=0):
            print(delta.text or "", end="", flush=True)
"""

from kvern._async_client import AsyncClient
from kvern._client import Client
from kvern._types import Choice, Completion, Delta, KvernError, TokenLogprob, Usage

__all__ = ["AsyncClient", "Choice", "Client", "Completion", "Delta", "KvernError",
           "TokenLogprob", "Usage"]
