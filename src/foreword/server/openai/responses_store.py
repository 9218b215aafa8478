"""Answers of `/v1/responses` that are kept, so that they can be continued, looked at again and deleted.

    resp_3 ──previous──▶ resp_2 ──previous──▶ resp_1
    its own input and output   …and theirs: a conversation is the chain, each piece of it stored once

What is deleted, or too old, or has made room, ends the chains that go through it: nothing of it is kept anywhere else.
A chain is used from its end, so its first answer counts as used last, and a branch goes before what several share.
"""

from collections.abc import Sequence

import msgspec

from foreword.server.errors import ApiError
from foreword.server.limits import MAX_ITEMS
from foreword.server.openai.responses_items import InputItem
from foreword.server.tenant_store import TenantStore


class StoredResponse(msgspec.Struct, array_like=True):
    """One answer: JSON of its own input items, and of the whole response."""

    previous_id: str | None
    items: bytes
    response: bytes


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredResponse)
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_output_decoder = msgspec.json.Decoder(_Output)
_item_decoder = msgspec.json.Decoder(InputItem)


class ResponseStore:
    """Responses by tenant and id. Event loop only; what `chain` gives may be read anywhere."""

    def __init__(self, records: TenantStore) -> None:
        self.records = records

    def keep(self, tenant: bytes, response_id: str, stored: StoredResponse) -> None:
        """Keep a response, unless it alone is more than there is room for."""
        self.records.store(tenant, response_id.encode(), _encoder.encode(stored))

    def find(self, tenant: bytes, response_id: str) -> StoredResponse:
        """A response.

        Raises:
            ApiError: 404, this tenant has none of that id.
        """
        found = self._find(tenant, response_id)
        if found is None:
            raise not_found()
        return found

    def delete(self, tenant: bytes, response_id: str) -> None:
        """Forget a response.

        Raises:
            ApiError: 404, this tenant has none of that id.
        """
        if self._find(tenant, response_id) is None or not self.records.drop(tenant, response_id.encode()):
            raise not_found()

    def chain(self, tenant: bytes, response_id: str | None) -> list[StoredResponse]:
        """A response and all it continues, the first one first; nothing for None.

        Raises:
            ApiError: 400, one of them isn't there, or the conversation is too long.
        """
        found: list[StoredResponse] = []
        while response_id is not None:
            stored = self._find(tenant, response_id)
            if stored is None or len(found) >= MAX_ITEMS:
                told = "previous_response_id: no response of this id, or of one that it continues, is stored here"
                raise ApiError(400, told, "previous_response_id", "previous_response_not_found")
            found.append(stored)
            response_id = stored.previous_id
        return found[::-1]

    def _find(self, tenant: bytes, response_id: str) -> StoredResponse | None:
        record = self.records.find(tenant, response_id.encode())
        return None if record is None else _decoder.decode(record)


def items_of(stored: StoredResponse, *, with_output: bool = True) -> list[msgspec.Raw]:
    """JSON of the items a response adds to its conversation: its input, and what was answered."""
    own = _list_decoder.decode(stored.items)
    return [*own, *_output_decoder.decode(stored.response).output] if with_output else own


def conversation(chain: Sequence[StoredResponse]) -> list[InputItem]:
    """The items of all responses of a chain. Cost: O(conversation); not for the event loop.

    Raises:
        ApiError: 400, there are too many.
    """
    raw = [item for stored in chain for item in items_of(stored)]
    if len(raw) > MAX_ITEMS:
        raise ApiError(
            400, f"previous_response_id: the conversation has more than {MAX_ITEMS} items", "previous_response_id"
        )
    return [_item_decoder.decode(item) for item in raw]


def not_found() -> ApiError:
    """The refusal of an id that isn't there, or is another's: nobody can tell which."""
    return ApiError(404, "no response of this id is stored here", "response_id", "not_found")
