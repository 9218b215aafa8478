"""A jinja2 environment in which a template from an untrusted file can neither reach Python nor run away.

Reach: on top of `ImmutableSandboxedEnvironment`, attributes, methods, filters and tests are lists of what is allowed.
Run away: every loop turn, call, attribute and operator is paid for from a `Meter`; what can multiply its input is paid
for before it is done.
"""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace, pass_context

from foreword.text.template_functions import ITERATED, functions, paid_filters, paid_tests
from foreword.text.template_limits import LimitError, Meter, check_power, pay_method, pay_product

_STRING_METHODS = frozenset(
    {"capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal"}
    | {"isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition"}
    | {"removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split"}
    | {"splitlines", "startswith", "strip", "swapcase", "title", "upper"}
)
_LOOP_ATTRIBUTES = frozenset(
    {"index", "index0", "first", "last", "length", "previtem", "nextitem", "revindex", "revindex0", "cycle", "changed"}
    | {"depth", "depth0"}
)
_ATTRIBUTES: tuple[tuple[type, frozenset[str]], ...] = (
    (str, _STRING_METHODS),
    (dict, frozenset({"items", "keys", "values", "get"})),
    (list, frozenset({"count", "index"})),
    (tuple, frozenset({"count", "index"})),
    (LoopContext, _LOOP_ATTRIBUTES),
    (Macro, frozenset({"name", "arguments"})),
    (Cycler, frozenset({"next", "reset", "current"})),
)
_PRINTABLE = (str, int, float, list, tuple, dict, Undefined)
_REFUSED_NODES = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)
_INTERCEPTED = frozenset({"+", "*", "**", "%"})
_SYMBOLS = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "in": "in", "notin": "not in"}


class _Generator(CodeGenerator):
    """Writes the template's code with payments in it."""

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:
        # The environment puts these where a loop or macro body begins; no template can write one.
        self.newline(node)
        self.write("environment.turn(")
        self.visit(node.node, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(environment.weighed(")
        self.visit(node.expr, frame)
        self.write(")")
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        self.write(f" {_SYMBOLS[node.op]} environment.weighed(")
        self.visit(node.expr, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.weighed(")
        super().visit_Getitem(node, frame)
        self.write(")")


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012  # as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs templates under the rules of this module. `clock` gives the time for `strftime_now`."""

    code_generator_class = _Generator
    intercepted_binops = _INTERCEPTED

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while compiling
            finalize=_finalize,
            extensions=[loopcontrols, _Generation],
        )
        self._local = threading.local()
        self.filters = paid_filters()
        self.tests = paid_tests()
        self.globals = functions(clock)

    @property
    def meter(self) -> Meter:
        """The allowance of the rendering that runs in this thread."""
        found = getattr(self._local, "meter", None)
        if found is None:
            raise LimitError("nothing is being rendered")
        return found  # type: ignore[no-any-return]

    @contextmanager
    def metered(self, meter: Meter) -> Any:
        """Whatever runs within is paid for from `meter`."""
        self._local.meter = meter
        try:
            yield
        finally:
            self._local.meter = None

    def reads(self, source: str, name: str) -> bool:
        """True if a template uses a variable of this name that it doesn't set itself, and of one that is broken."""
        try:
            return name in find_undeclared_variables(self.parse(source))
        except Exception:  # whatever a stranger's template raises, it will raise again when it is run
            return True

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        refused = next(tree.find_all(_REFUSED_NODES), None)
        if refused is not None:
            raise TemplateError(f"'{type(refused).__name__.lower()}' isn't allowed in a chat template")
        bodies: tuple[type[nodes.For | nodes.Macro | nodes.CallBlock], ...] = (nodes.For, nodes.Macro, nodes.CallBlock)
        for node in list(tree.find_all(bodies)):
            literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            node.body.insert(0, nodes.ExprStmt(nodes.Const(literal), lineno=node.lineno))
            if isinstance(node, nodes.For):
                node.iter = nodes.Filter(node.iter, ITERATED, [], [], None, None, lineno=node.lineno)
        return tree

    def turn(self, literal_characters: int) -> None:
        """One turn of a loop or call of a macro that writes so many characters of its own."""
        self.meter.step(8)
        self.meter.pay(literal_characters)

    def weighed(self, value: Any) -> Any:
        """The value, paid for."""
        self.meter.step()
        self.meter.weigh(value)
        return value

    def joined(self, parts: tuple[Any, ...]) -> str:
        """`~`."""
        self.weighed(parts)
        return "".join(map(str, parts))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """True for what this module lists, and for plain names on a namespace."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        return any(isinstance(obj, kind) and attr in names for kind, names in _ATTRIBUTES)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse at once; jinja2 would go on with an empty value."""
        raise SecurityError(f"attribute {attribute!r} of {type(obj).__name__!r} isn't allowed in a chat template")

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` isn't wrapped but refused: a width in it can ask for any amount of text."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`."""
        self.meter.step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`."""
        self.meter.step()
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a macro, one of our functions, or an allowed method."""
        meter = __self.meter
        meter.step(8)
        own = {name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")}
        meter.weigh((*args, *own.values()))
        if isinstance(__obj, BuiltinMethodType):
            pay_method(meter, __obj, args)
        result = super().call(__context, __obj, *args, **kwargs)
        meter.weigh(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator that may make something larger than its operands."""
        meter = self.meter
        meter.step()
        meter.weigh((left, right))
        if operator == "*":
            pay_product(meter, left, right)
        elif operator == "**":
            check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % isn't allowed; use ~")
        return super().call_binop(context, operator, left, right)


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Pay for what is written out, which must be a value and not a piece of machinery."""
    if not (value is None or isinstance(value, _PRINTABLE)):
        raise SecurityError(f"a chat template can't write out a {type(value).__name__!r}")
    environment: Any = context.environment
    return environment.weighed(value)
