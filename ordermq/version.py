"""The version of ordermq, which its packages, its clients and `ordermq.__version__` tell."""

VERSION = "0.1.0"
