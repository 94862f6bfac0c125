"""The `ordermq` command: a file per subcommand, loaded when it is called.

| file | holds |
|---|---|
| main.py | the entry point: which command is in which file |
| output.py | exit codes, tables, JSON, progress bars |
| broker.py produce.py consume.py audit.py | one command each |
| demo/ | `ordermq demo`: a day at the airports, with members killed and queues moving |

Needs the extra `cli` (click, rich): pip install 'ordermq[cli]'.
"""
