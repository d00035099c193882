"""Twenty requests at once with asyncio, answers as they finish: python3 many.py [ENDPOINT]"""

import asyncio
import sys

from kvern import AsyncClient, KvernError


async def ask(client, number):
    try:
        answer = await client.complete(prompt=f"{number} plus {number} is", max_tokens=12,
                                       temperature=0)
        print(f"{number:2}: {answer.text!r} after {answer.usage.ttft_ms:.0f} ms")
    except KvernError as error:
        wait_ms = error.details.get("retry_after_ms", 0)
        print(f"{number:2}: {error.code}, try again in {wait_ms} ms")


async def main(endpoint):
    async with AsyncClient(endpoint) as client:
        await asyncio.gather(*(ask(client, number) for number in range(20)))
        print("blocks:", (await client.status())["total"])


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5570"))
