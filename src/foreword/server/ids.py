"""Ids that tell nobody anything: unlike all others of this process, and not to be guessed from them.

By a keyed hash of a number, not from the system each time: a call of the system hands the interpreter to whoever wants
it, and under load the loop waits for it to come back.
"""

import hashlib
import itertools
import secrets

_KEY = secrets.token_bytes(32)
_NUMBERS = itertools.count()


def new_hex(num_bytes: int) -> str:
    """So many bytes, 64 at most, as hexadecimal digits. From any thread."""
    number = next(_NUMBERS).to_bytes(8, "little")
    return hashlib.blake2b(number, digest_size=num_bytes, key=_KEY).hexdigest()
