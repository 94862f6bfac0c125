"""JSON text by orjson; by the standard library, behind the same names, where orjson is missing.

orjson has no wheels for Python 3.15, and no build for one without the interpreter lock.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orjson import OPT_INDENT_2, OPT_NON_STR_KEYS, JSONDecodeError, dumps, loads
else:
    try:
        from orjson import OPT_INDENT_2, OPT_NON_STR_KEYS, JSONDecodeError, dumps, loads
    except ImportError:
        from ordermq.standard_json import (
            OPT_INDENT_2,
            OPT_NON_STR_KEYS,
            JSONDecodeError,
            dumps,
            loads,
        )

__all__ = ["OPT_INDENT_2", "OPT_NON_STR_KEYS", "JSONDecodeError", "dumps", "loads"]
