"""Why a request could not be placed: the figures, one piece of advice, the text."""

from madl.shortage.advice import advice
from madl.shortage.report import (
    NO_LINE,
    NO_TAG,
    OTHERS,
    Group,
    Holder,
    NativeFailure,
    OtherPools,
    OutOfMemoryReport,
    Request,
    TagLimit,
)
from madl.shortage.text import describe

__all__ = [
    "NO_LINE",
    "NO_TAG",
    "OTHERS",
    "Group",
    "Holder",
    "NativeFailure",
    "OtherPools",
    "OutOfMemoryReport",
    "Request",
    "TagLimit",
    "advice",
    "describe",
]
