"""Filters, tests and functions a chat template may use: jinja2's own, paid for, and those `transformers` adds."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, cast

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace, pass_context

from foreword.text.template_limits import (
    MAX_INDENT,
    MAX_RANGE,
    LimitError,
    Meter,
    check_digits,
    pay_indent,
    pay_replace,
)

ITERATED = "\0iterated"
"""Name of the filter put around what a loop runs over; no template can write it."""

_FILTERS = frozenset(
    {"abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "indent", "int"}
    | {"items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace"}
    | {"reverse", "round", "safe", "select", "selectattr", "sort", "string", "title", "trim", "truncate", "unique"}
    | {"upper", "urlencode", "wordcount"}
)


class RefusalError(TemplateError):
    """The template itself says that it doesn't accept the conversation (`raise_exception`)."""


def paid_filters() -> dict[str, Callable[..., Any]]:
    """Filters by name."""
    return {name: _paid_filter(name) for name in _FILTERS} | {"tojson": _tojson, ITERATED: _iterated}


def paid_tests() -> dict[str, Any]:
    """Tests (`is …`) by name."""
    tests = cast(Mapping[str, Callable[..., bool]], TESTS)
    return {name: _paid_test(test) for name, test in tests.items() if name not in ("filter", "test")}


def functions(clock: Callable[[], datetime]) -> dict[str, Any]:
    """Functions by name; `clock` gives the time for `strftime_now`."""
    return {
        "range": _range,
        "dict": dict,
        "namespace": _Namespace,
        "cycler": Cycler,
        "joiner": Joiner,
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: clock().strftime(_checked_format(form)),
    }


def _meter(context: Context) -> Meter:
    environment: Any = context.environment
    return cast(Meter, environment.meter)


class _Namespace(Namespace):
    """As jinja's, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `self=` is a name like any other
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace can't hold {name!r}")


@pass_context
def _iterated(context: Context, value: Any) -> Any:
    """What a loop runs over, paid for whether or not a condition lets its body run."""
    size = len(value) if isinstance(value, str | list | tuple | dict | range) else 0
    _meter(context).step(1 + size // 8)
    return value


def _paid_filter(name: str) -> Callable[..., Any]:
    """A filter of jinja2 that pays for its arguments and its result, and for what it multiplies beforehand."""
    original = FILTERS[name]
    pass_what = getattr(original, "jinja_pass_arg", None)

    @pass_context
    @wraps(original, updated=())
    def paid(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = _meter(context)
        meter.step(4)
        meter.weigh((value, *args, *kwargs.values()))
        if name in ("sort", "dictsort", "unique"):
            for _ in range(16):  # the comparisons of sorting 65,536 values
                meter.weigh(value)
        elif name == "replace" and len(args) >= 2:
            pay_replace(meter, str(value), str(args[0]), str(args[1]))
        elif name == "join":
            value = list(value)
            meter.weigh(value)
            meter.pay(len(value) * len(str(args[0] if args else kwargs.get("d", ""))))
        elif name == "indent":
            pay_indent(meter, str(value), args[0] if args else kwargs.get("width", 4))
        elif name == "round":
            check_digits((*args, *kwargs.values()))
        lead: dict[str, list[Any]] = {
            "context": [context],
            "environment": [context.environment],
            "eval_context": [context.eval_ctx],
        }
        result = original(*lead.get(getattr(pass_what, "name", ""), []), value, *args, **kwargs)
        meter.weigh(result)
        return result

    return paid


def _paid_test(original: Callable[..., bool]) -> Callable[..., bool]:
    @pass_context
    def paid(context: Context, value: Any, *args: Any) -> bool:
        _meter(context).step()
        _meter(context).weigh((value, *args))
        return original(value, *args)

    return paid


def _range(*args: int) -> range:
    """As Python's, of at most `MAX_RANGE` numbers."""
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise LimitError(f"range of {len(numbers)}; at most {MAX_RANGE}")
    return numbers


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `transformers` writes it for chat templates: not escaped for HTML."""
    if isinstance(indent, str) or (indent is not None and not 0 <= indent <= MAX_INDENT):
        raise LimitError(f"tojson: indent must be from 0 to {MAX_INDENT}")
    meter = _meter(context)
    meter.step(4)
    meter.weigh((value, separators))
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    meter.pay(len(text))
    return text


def _raise_exception(message: str) -> None:
    raise RefusalError(str(message))


def _checked_format(form: Any) -> str:
    if not isinstance(form, str) or len(form) > 100 or any(character.isdigit() for character in form):
        raise LimitError("strftime_now: expected a short format without widths")
    return form
