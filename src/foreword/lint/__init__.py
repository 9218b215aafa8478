"""Request logs: how much of them a prefix cache can reuse, what is lost, where and why, and what would mend it."""

from foreword.lint.stable import assert_prefix_stable

__all__ = ["assert_prefix_stable"]
