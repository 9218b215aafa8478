"""Without pyzmq events say how to get it, and everything else goes on."""

import sys

import pytest

from foreword.core.errors import ForewordError
from foreword.events.opening import open_publisher
from foreword.events.options import EventOptions


def test_without_pyzmq_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    for module in ("foreword.events.publisher", "foreword.events.replay"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    with pytest.raises(ForewordError, match=r"pyzmq is not installed; pip install 'foreword\[events\]'"):
        open_publisher(EventOptions(endpoint="tcp://127.0.0.1:*"))
