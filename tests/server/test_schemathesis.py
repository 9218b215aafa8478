"""schemathesis on our own `/openapi.json`: what it allows is never a 5xx, what it doesn't is refused, and what comes
back is what it promises.

Its pytest plugin is off (see `pyproject.toml`): it would slow the start of every run for the sake of this file.
"""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from foreword.server.openapi.document import make_document
from foreword.server.openapi.operations import OPERATIONS
from tests.profile import DEEP
from tests.server.conftest import MODEL, Keyed
from tests.server.described import check_described
from tests.server.examples import handy as handy

schemathesis = pytest.importorskip("schemathesis", reason="comes with the extra `test`")

NUM_EXAMPLES = 100 if DEEP else 5
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
MANY = {"n": 2, "best_of": 2}
OPERATION_NAMES = [(path, method) for path, methods in OPERATIONS.items() for method in methods]


BODIES = {operation.body.__name__ for each in OPERATIONS.values() for operation in each.values() if operation.body}


def with_model() -> dict[str, Any]:
    """The document, with a model that is there: another one is refused whatever else is asked."""
    document = copy.deepcopy(make_document())
    for name in BODIES:
        properties = document["components"]["schemas"][name]["properties"]
        if "model" in properties:
            properties["model"] = {"const": MODEL}
    return document


def narrowed() -> dict[str, Any]:
    """The same without what is refused whatever it is, and for answers of few tokens."""
    document = with_model()
    schemas = document["components"]["schemas"]
    for body in BODIES:
        properties = schemas[body]["properties"]
        for name, value in properties.items():
            if value.get("description", "").startswith("refused"):
                properties[name] = {"type": "null"}
        for name, most in (*dict.fromkeys(LIMITS, 3).items(), *MANY.items()):
            if name in properties:
                properties[name] = {"type": "integer", "minimum": 1, "maximum": most}
    schemas["ChatRequest"]["required"] += ["max_tokens"]
    schemas["ResponsesRequest"]["required"] += ["max_output_tokens"]
    return document


def served(document: dict[str, Any], handy: Keyed) -> Any:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=handy.live.url)
    schema.validate()
    return schema


@pytest.fixture(scope="module")
def api(handy: Keyed) -> Any:
    """What will be answered, as schemathesis reads it."""
    return served(narrowed(), handy)


@pytest.fixture(scope="module")
def whole_api(handy: Keyed) -> Any:
    """All there is, to be broken."""
    return served(with_model(), handy)


def checks() -> list[Any]:
    """schemathesis' own, of those that a server without state to be created can be asked for."""
    from schemathesis import checks as named

    named.load_all_checks()
    return [
        named.not_a_server_error,
        named.status_code_conformance,
        named.content_type_conformance,
        named.response_headers_conformance,
        named.response_schema_conformance,
        named.negative_data_rejection,
    ]


def ask(case: Any, keyed: Keyed) -> None:
    """Send a case and hold what comes back to the document, by schemathesis' means and by ours."""
    headers = {"authorization": f"Bearer {keyed.keys['ops']}"}
    response = case.call_and_validate(headers=headers, checks=checks(), timeout=60)
    told = {name: values[0] for name, values in response.headers.items()}
    check_described(case.method, case.formatted_path, response.status_code, told, response.content or b"")


def bounded(function: Any) -> Any:
    checked = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
    phases = (Phase.generate,)  # a smaller case of the same failure would take minutes of requests
    return settings(max_examples=NUM_EXAMPLES, phases=phases, suppress_health_check=checked, deadline=None)(function)


@pytest.mark.parametrize(("path", "method"), OPERATION_NAMES)
def test_what_the_document_allows_is_answered_as_it_says(api: Any, handy: Keyed, path: str, method: str) -> None:
    body = OPERATIONS[path][method].body  # type: ignore[index]  # a method of the table

    @bounded
    @given(case=api[path][method].as_strategy())
    def check(case: Any) -> None:
        if body is not None:
            case.body = with_whole_numbers(case.body)
            decodes(case.body, body)
        ask(case, handy)

    check()


def with_whole_numbers(value: Any) -> Any:
    """The same value, with 1.0 written 1: to JSON Schema both are integers, and clients write the latter."""
    if isinstance(value, dict):
        return {name: with_whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [with_whole_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def decodes(value: Any, kind: type[msgspec.Struct]) -> None:
    """Fail when the types refuse what the document allows: what is left to refuse is what a value means."""
    msgspec.json.decode(msgspec.json.encode(value), type=kind)


@pytest.mark.parametrize(
    ("path", "method"), [name for name in OPERATION_NAMES if OPERATIONS[name[0]][name[1]].body is not None]
)
def test_what_the_document_does_not_allow_is_refused(whole_api: Any, handy: Keyed, path: str, method: str) -> None:
    @bounded
    @given(case=whole_api[path][method].as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    def check(case: Any) -> None:
        ask(case, handy)

    check()
