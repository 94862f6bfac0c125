"""`python -m ordermq.cli` is `ordermq`."""

from ordermq.cli.main import main

main(prog_name="ordermq")
