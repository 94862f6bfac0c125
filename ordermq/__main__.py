"""Entry point of `python -m ordermq`, which is the command `ordermq`."""

from ordermq.cli.main import main

main(prog_name="ordermq")
