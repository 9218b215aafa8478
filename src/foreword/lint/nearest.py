"""Which earlier request a request has most in common with, part by part."""

from collections import OrderedDict

from foreword.lint.request import LoggedRequest

WINDOW = 1024
"""How many of the latest requests are kept whole; older ones still count as stored, but are compared with no more."""


class PartTree:
    """Leading parts of all requests, shared where they are equal. `nodes` of a request name its prefixes for ever."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._latest: list[int] = [-1]  # request that came by last, a node
        self._recent: OrderedDict[int, LoggedRequest] = OrderedDict()
        self._last_of_kind: dict[tuple[bytes, str], int] = {}
        self._last_of_dialect: dict[tuple[str, str], int] = {}
        self._count = 0

    def nearest(self, request: LoggedRequest) -> tuple[LoggedRequest | None, int]:
        """The latest request of those that share the most leading parts, and how many; else the latest of its kind."""
        found, shared = None, 0
        node = self._root(request)
        for depth, part in enumerate(request.parts, start=1):
            node = self._children.get((node, hash(part.rendered)), -1)
            if node < 0:
                break
            if self._latest[node] in self._recent:
                found, shared = self._recent[self._latest[node]], depth
        if found is None:
            number = self._last_of_kind.get((request.namespace, request.dialect))
            if number is None:
                number = self._last_of_dialect.get((request.tenant, request.dialect), -1)
            found = self._recent.get(number)
        return found, shared

    def add(self, request: LoggedRequest) -> list[int]:
        """Store a request; returns a number for each of its leading runs of parts, equal for equal runs."""
        number = self._count
        self._count += 1
        node = self._root(request)
        nodes = []
        for part in request.parts:
            key = (node, hash(part.rendered))
            node = self._children.setdefault(key, len(self._latest))
            if node == len(self._latest):
                self._latest.append(number)
            self._latest[node] = number
            nodes.append(node)
        self._recent[number] = request
        if len(self._recent) > WINDOW:
            self._recent.popitem(last=False)
        self._last_of_kind[request.namespace, request.dialect] = number
        self._last_of_dialect[request.tenant, request.dialect] = number
        return nodes

    def _root(self, request: LoggedRequest) -> int:
        # Requests of another model share nothing, so their trees have roots of their own, named by negative numbers.
        return -2 - (hash(request.namespace) & 0xFFFFFFFFFFFF)
