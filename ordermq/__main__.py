"""`python -m ordermq` is `ordermq`."""

from ordermq.cli.main import main

main(prog_name="ordermq")
