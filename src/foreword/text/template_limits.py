"""What a template may spend: steps and characters, counted, so that limits don't depend on the machine or its load."""

from typing import Any

from jinja2.exceptions import TemplateRuntimeError

MAX_STEPS = 500_000
MIN_CHARACTERS = 4 << 20
CHARACTERS_PER_INPUT_CHARACTER = 128
MAX_INTEGER_BITS = 4096
MAX_RANGE = 100_000
MAX_INDENT = 16
MAX_ROUND_DIGITS = 300


class LimitError(TemplateRuntimeError):
    """A template asked for more work than it is granted."""


class Meter:
    """What is left of one rendering's allowance."""

    def __init__(self, input_characters: int) -> None:
        self.steps = MAX_STEPS
        self.characters = MIN_CHARACTERS + CHARACTERS_PER_INPUT_CHARACTER * input_characters

    def step(self, count: int = 1) -> None:
        """Pay for operations."""
        self.steps -= count
        if self.steps < 0:
            raise LimitError(f"more than {MAX_STEPS} steps")

    def pay(self, characters: int) -> None:
        """Pay for text that is read or made."""
        self.characters -= characters
        if self.characters < 0:
            raise LimitError("more text than the template is granted")

    def weigh(self, value: Any) -> None:
        """Pay for a value with all that is in it. A shared part counts as often as it is reached, as in printing it."""
        stack = [value]
        while stack:
            part = stack.pop()
            if isinstance(part, str):
                self.pay(8 + len(part))
            elif isinstance(part, list | tuple):
                self.pay(8 + 8 * len(part))
                stack.extend(part)
            elif isinstance(part, dict):
                self.pay(8 + 16 * len(part))
                stack.extend(part.keys())
                stack.extend(part.values())
            else:
                self.pay(8)


def pay_method(meter: Meter, method: Any, args: tuple[Any, ...]) -> None:
    """Pay for a method before it runs: for the object, and for what it may multiply."""
    meter.pay(8 * len(method.__self__) if hasattr(method.__self__, "__len__") else 8)
    if not isinstance(method.__self__, str):
        return
    if method.__name__ == "join" and args:
        count = len(args[0]) if hasattr(args[0], "__len__") else MAX_RANGE
        meter.pay(count * len(method.__self__))
    elif method.__name__ == "replace" and len(args) >= 2:
        pay_replace(meter, method.__self__, args[0], args[1])


def pay_replace(meter: Meter, text: str, old: Any, new: Any) -> None:
    """Pay for what replacing makes, before it is done."""
    if isinstance(old, str) and isinstance(new, str):
        meter.pay(text.count(old) * len(new))


def pay_indent(meter: Meter, text: str, width: Any) -> None:
    """Pay for what indenting adds, before it is done."""
    size = len(width) if isinstance(width, str) else width
    if not isinstance(size, int) or size > 1 << 20:
        raise LimitError("indent: width too large")
    meter.pay((text.count("\n") + 1) * max(size, 0))


def check_digits(arguments: tuple[Any, ...]) -> None:
    """Refuse to round to a number of digits that makes a huge integer."""
    if any(isinstance(argument, int) and abs(argument) > MAX_ROUND_DIGITS for argument in arguments):
        raise LimitError(f"round: at most {MAX_ROUND_DIGITS} digits")


def pay_product(meter: Meter, left: Any, right: Any) -> None:
    """Pay for `*`, before it is done."""
    for text, count in ((left, right), (right, left)):
        if isinstance(text, str | list | tuple) and isinstance(count, int):
            meter.pay(8 * len(text) * max(count, 0))
            return
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def check_power(left: Any, right: Any) -> None:
    """Refuse a power that makes a huge integer."""
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))


def _check_bits(bits: int) -> None:
    if bits > MAX_INTEGER_BITS:
        raise LimitError(f"integer of more than {MAX_INTEGER_BITS} bits")
