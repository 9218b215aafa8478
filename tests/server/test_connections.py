"""Whose the places of connections are: laws, beside a list that is searched from end to end."""

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from foreword.server.connections import Connection, Connections, network_of
from foreword.server.errors import ApiError
from foreword.server.limits import Limits
from foreword.server.metrics import Metrics


class _Known:
    """What the oracle knows of a connection."""

    def __init__(self, connection: Connection, owner: bytes, moved: int) -> None:
        self.connection, self.owner, self.moved = connection, owner, moved
        self.tenant: bytes | None = None  # while it is kept
        self.num_requests = 0
        self.is_closed = False


class ConnectionLaws(RuleBasedStateMachine):
    """Opens, keeps, releases and ends connections of few addresses and tenants, and says who must make room."""

    @initialize(most=st.integers(1, 6))
    def start(self, most: int) -> None:
        self.most, self.now = most, 0
        self.connections = Connections(Limits(max_connections=most), Metrics("tiny"))
        self.open: list[_Known] = []
        self.ended: list[_Known] = []

    def _next(self) -> int:
        self.now += 1
        return self.now

    def _resting(self) -> list[_Known]:
        return [known for known in self.open if known.tenant is None]

    def _num_kept(self, tenant: bytes) -> int:
        return sum(known.tenant == tenant for known in self.open)

    @rule(address=st.sampled_from([b"1", b"2", b"3"]))
    def one_more(self, address: bytes) -> None:
        resting = self._resting()
        counts = Counter(known.owner for known in resting)
        closed: list[_Known] = []
        known = _Known(None, address, self._next())  # type: ignore[arg-type]  # known at once
        opened = self.connections.open(address, lambda: closed.append(known))
        if opened is None:
            assert len(self.open) == self.most
            assert not resting
            return
        known.connection = opened
        gone = [other for other in self.open if not other.connection._is_open]
        assert len(gone) == (len(self.open) == self.most)
        for other in gone:
            assert other in resting
            assert counts[other.owner] == max(counts.values())
            assert other.moved == min(mate.moved for mate in resting if mate.owner == other.owner)
            self.open.remove(other)
            self.ended.append(other)
        self.open.append(known)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tenant=st.sampled_from([b"", b"alice", b"bob"]))
    def a_request(self, data: st.DataObject, tenant: bytes) -> None:
        known = data.draw(st.sampled_from(self.open))
        if known.tenant is not None:
            known.connection.keep(tenant)  # of a pipeline: the place is kept as it was
            known.num_requests += 1
            return
        known.owner, known.moved = tenant or known.owner, self._next()
        free = self.most - sum(other.tenant is not None for other in self.open)
        if tenant and self._num_kept(tenant) >= free:
            with pytest.raises(ApiError, match="under way") as refused:
                known.connection.keep(tenant)
            assert refused.value.status == 429
            assert "retry-after" in refused.value.headers
        else:
            known.connection.keep(tenant)
            known.tenant, known.num_requests = tenant, 1

    @precondition(lambda self: any(known.num_requests for known in self.open))
    @rule(data=st.data())
    def its_end(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from([known for known in self.open if known.num_requests]))
        known.connection.release()
        known.num_requests -= 1
        if not known.num_requests:
            known.tenant, known.moved = None, self._next()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def a_look(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.open))
        known.connection.refresh()
        if known.tenant is None:
            known.moved = self._next()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.open))
        known.connection.end()
        self.open.remove(known)
        self.ended.append(known)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), tenant=st.sampled_from([b"", b"alice"]))
    def what_comes_after_the_end(self, data: st.DataObject, tenant: bytes) -> None:
        known = data.draw(st.sampled_from(self.ended))
        known.connection.refresh(tenant)
        if known.num_requests:
            known.connection.release()
            known.num_requests -= 1
        else:
            known.connection.keep(tenant)
            known.connection.release()
        known.connection.end()

    @invariant()
    def counts(self) -> None:
        assert self.connections.num_open == len(self.open) <= self.most
        assert self.connections.num_kept == len(self.open) - len(self._resting())
        assert sum(len(mates) for mates in self.connections._resting.values()) == len(self._resting())
        assert all(self.connections._resting.values())
        assert all(self.connections._kept._held.values())  # nothing stays of who keeps nothing


TestConnectionLaws = ConnectionLaws.TestCase


def test_a_tenant_keeps_as_many_as_stay_free_and_another_finds_room_at_any_time() -> None:
    connections = Connections(Limits(max_connections=16), Metrics("tiny"))
    kept = Counter[bytes]()
    for tenant in (b"a", b"b", b"c", b"d", b"e"):
        with suppress(ApiError):
            while (connection := connections.open(b"one address", lambda: None)) is not None:
                connection.keep(tenant)
                kept[tenant] += 1

    assert kept == {b"a": 8, b"b": 4, b"c": 2, b"d": 1, b"e": 1}


def test_ipv6_addresses_of_one_network_are_one_owners() -> None:
    assert network_of(("2001:db8::1", 1, 0, 0)) == network_of(("2001:db8::ffff:ffff:ffff:1", 2, 0, 0))
    assert network_of(("2001:db8::1", 1, 0, 0)) != network_of(("2001:db8:0:1::1", 1, 0, 0))
    assert network_of(("fe80::1%lo", 1, 0, 1)) == network_of(("fe80::1", 1, 0, 1))
    assert network_of(("127.0.0.1", 1)) != network_of(("127.0.0.2", 1))
