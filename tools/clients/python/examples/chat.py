"""A conversation: python3 chat.py [ENDPOINT]. An empty line ends it."""

import sys

from kvern import Client

endpoint = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5570"

with Client(endpoint) as client:
    messages = []
    while True:
        try:
            question = input("you> ")
        except EOFError:
            break
        if not question:
            break
        messages.append({"role": "user", "content": question})
        answer = client.complete(messages=messages, max_tokens=256)
        print(f"{client.model}> {answer.text}  [{answer.usage.completion_tokens} tokens]")
        messages.append({"role": "assistant", "content": answer.text})
