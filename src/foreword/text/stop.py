"""Finds stop strings in text that arrives in pieces."""

from collections.abc import Sequence


class StopChecker:
    """Passes text on until a stop string is complete, holding back only what may be the beginning of one.

    Of several stop strings the one that is complete first counts; of those complete at the same character the longest.
    So the outcome doesn't depend on how the text was cut into pieces.
    Cost: one step of an automaton (Aho and Corasick, 1975) for each character.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """Args: `stops`: non-empty strings. `include`: the text that is passed on ends with the stop string."""
        self._include = include
        self._stops = tuple(stops)
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found: list[int | None] = [None]  # index of the longest stop string that ends in this state
        self._fallback = [0]
        self._state = 0
        self._held = ""
        self._stopped: int | None = None
        for index, stop in enumerate(self._stops):
            self._add(stop, index)
        self._link()

    @property
    def stopped_index(self) -> int | None:
        """Index of the stop string that ended the text, or None while there is none."""
        return self._stopped

    def push(self, text: str) -> tuple[str, int | None]:
        """Take the next piece of text; returns what may be passed on, and the index of the stop string found in it.

        After a stop string everything is dropped.
        """
        if self._stopped is not None:
            return "", self._stopped
        if not self._stops:
            return text, None
        state = self._state
        for position, character in enumerate(text):
            state = self._step(state, character)
            index = self._found[state]
            if index is not None:
                return self._stop(index, text[: position + 1]), index
        self._state = state
        ready = self._held + text
        keep = self._depth[state]
        self._held = ready[len(ready) - keep :]
        return ready[: len(ready) - keep], None

    def finish(self) -> str:
        """The text is over: what was held back."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _stop(self, index: int, text: str) -> str:
        self._stopped = index
        ready = self._held + text
        self._held = ""
        return ready if self._include else ready[: len(ready) - len(self._stops[index])]

    def _step(self, state: int, character: str) -> int:
        while character not in self._next[state]:
            if state == 0:
                return 0
            state = self._fallback[state]
        return self._next[state][character]

    def _add(self, stop: str, index: int) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
                self._fallback.append(0)
            state = self._next[state][character]
        if self._found[state] is None:  # of equal stop strings the first counts
            self._found[state] = index

    def _link(self) -> None:
        """Breadth first: the state to fall back to is that of the longest proper suffix that begins a stop string."""
        order = list(self._next[0].values())
        for state in order:
            for character, child in self._next[state].items():
                self._fallback[child] = self._step(self._fallback[state], character)
                if self._found[child] is None:
                    self._found[child] = self._found[self._fallback[child]]
                order.append(child)
