"""Who asks, what they may do, and the namespace of prefixes they share with nobody else.

A file of keys holds one key a line, hashed: `NAME ROLE sha256:HEX LIMIT…`, where ROLE is `user` or `operator`; a name
may have several keys. Limits, see `foreword.server.quotas`, are the name's: they stand on one of its lines, or alike on
several, and hold for all its keys together. Lines that are empty or begin with `#` are left out. Keys are random, 128
bits or more, so that a plain hash can't be searched: `foreword serve --new-key NAME` makes one.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from foreword.core.errors import InvalidRequestError
from foreword.server.quotas import NO_LIMITS, TenantLimits, parse_limits

Role = Literal["user", "operator"]
MAX_KEYS = 10_000
MAX_KEY_LENGTH = 512
MAX_SALT_LENGTH = 1024
_HASH_PREFIX = "sha256:"


class Tenant(Struct, frozen=True):
    """Somebody with a cache of their own. `domain` names it: derived here, never sent by a caller."""

    name: str
    role: Role
    domain: bytes
    limits: TenantLimits = NO_LIMITS

    @property
    def is_operator(self) -> bool:
        """True for keys that may use the operator's routes."""
        return self.role == "operator"

    def namespace(self, salt: str | None = None) -> bytes:
        """Where prefixes are shared: the tenant's own, or a part of it that the caller's salt names.

        Keyed by the domain, so no salt can reach another tenant's namespace, and no salt is unlike every salt.
        """
        return self.domain if salt is None else _derive(self.domain, "salt", salt.encode())


class _Key(Struct, frozen=True):
    digest: bytes
    name: str
    role: Role
    limits: TenantLimits = NO_LIMITS


class KeyRing:
    """The keys of a server. Without any, everybody is the one tenant `local`, who is no operator."""

    def __init__(self, keys: Iterable[_Key] = (), *, secret: bytes | None = None) -> None:
        self._keys = tuple(keys)
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._limits = {key.name: key.limits for key in self._keys if key.limits != NO_LIMITS}
        self._local = self._tenant("local", "user")

    @classmethod
    def from_file(cls, path: Path, *, secret: bytes | None = None) -> "KeyRing":
        """Read a file of hashed keys.

        Raises:
            OSError: it can't be read.
            InvalidRequestError: a line is malformed, or there is none.
        """
        keys = []
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
            if line.strip() and not line.lstrip().startswith("#"):
                keys.append(_parse(line, f"{path}:{number}"))
        if not 0 < len(keys) <= MAX_KEYS:
            raise InvalidRequestError(str(path), f"from 1 to {MAX_KEYS} keys", len(keys))
        _check_agreement(keys, path)
        return cls(keys, secret=secret)

    def reread(self, path: Path) -> "KeyRing":
        """The keys as they stand in a file now; who keeps a name keeps its cache. Raises what `from_file` does."""
        return KeyRing.from_file(path, secret=self._secret)

    @property
    def tenants(self) -> list[Tenant]:
        """Everybody who has a key, once."""
        return [self._tenant(name, role) for name, role in {key.name: key.role for key in self._keys}.items()]

    @property
    def is_open(self) -> bool:
        """True when no key is needed."""
        return not self._keys

    @property
    def has_limits(self) -> bool:
        """True when a tenant may not ask as much as it likes."""
        return bool(self._limits)

    @property
    def num_keys(self) -> int:
        """Keys known."""
        return len(self._keys)

    @property
    def local(self) -> Tenant:
        """Who everybody is on a server without keys."""
        return self._local

    def find(self, key: str) -> Tenant | None:
        """Whose key it is. Every known key is compared, in constant time each, whichever fits."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")[:MAX_KEY_LENGTH]).digest()
        found: _Key | None = None
        for known in self._keys:
            if hmac.compare_digest(known.digest, digest):
                found = known
        return None if found is None or len(key) > MAX_KEY_LENGTH else self._tenant(found.name, found.role)

    def _tenant(self, name: str, role: Role) -> Tenant:
        return Tenant(name, role, _derive(self._secret, "tenant", name.encode()), self._limits.get(name, NO_LIMITS))


def new_key(name: str, role: Role) -> tuple[str, str]:
    """A fresh key, and its line for the file.

    Raises:
        InvalidRequestError: not a name.
    """
    _check_name(name, "new_key")
    key = f"fw-{secrets.token_urlsafe(32)}"
    line = f"{name} {role} {_HASH_PREFIX}{hashlib.sha256(key.encode()).hexdigest()}"
    return key, line


def check_salt(salt: str | None) -> str | None:
    """A salt that may be used.

    Raises:
        InvalidRequestError: it is empty or too long.
    """
    if salt is not None and not 0 < len(salt) <= MAX_SALT_LENGTH:
        raise InvalidRequestError("cache_salt", f"1 to {MAX_SALT_LENGTH} characters", f"{len(salt)} characters")
    return salt


def _derive(key: bytes, tag: str, value: bytes) -> bytes:
    framed = f"foreword {tag} ".encode() + len(value).to_bytes(8, "little") + value
    return hmac.new(key, framed, hashlib.sha256).digest()


def _parse(line: str, where: str) -> _Key:
    words = line.split()
    expected = "NAME user|operator sha256:HEX and limits"
    if len(words) < 3 or words[1] not in ("user", "operator") or not words[2].startswith(_HASH_PREFIX):
        raise InvalidRequestError(where, expected, "another form")  # the line itself is not for a message
    name, role, digest = words[0], words[1], words[2].removeprefix(_HASH_PREFIX)
    limits = parse_limits(words[3:], where)
    _check_name(name, where)
    try:
        value = bytes.fromhex(digest)
    except ValueError:
        value = b""
    if len(value) != hashlib.sha256().digest_size:
        raise InvalidRequestError(where, expected, "another hash")
    return _Key(value, name, "operator" if role == "operator" else "user", limits)


def _check_name(name: str, where: str) -> None:
    if not 0 < len(name) <= 64 or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        raise InvalidRequestError(where, "a name of at most 64 letters, digits, '.', '_' and '-'", "another name")


def _check_agreement(keys: Iterable[_Key], path: Path) -> None:
    limits: dict[str, TenantLimits] = {}
    for key in keys:
        if key.limits != NO_LIMITS and limits.setdefault(key.name, key.limits) != key.limits:
            raise InvalidRequestError(f"{path}: {key.name}", "the same limits on all lines of a name", "several")
