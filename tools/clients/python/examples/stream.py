"""Streams one answer: python3 stream.py [ENDPOINT] [PROMPT]"""

import sys

from kvern import Client, KvernError

endpoint = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5570"
prompt = sys.argv[2] if len(sys.argv) > 2 else "The sea is"

try:
    with Client(endpoint) as client:
        for delta in client.generate(prompt=prompt, max_tokens=48, temperature=0):
            print(delta.text or "", end="", flush=True)
        print()
except KvernError as error:
    sys.exit(f"{error.code}: {error.message} {error.details or ''}")
