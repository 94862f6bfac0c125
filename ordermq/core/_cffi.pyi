"""The cffi extension that ext/cffi/build.py makes; its names are those of ordermq.h."""

from typing import Any

ffi: Any
lib: Any
