"""The `ordermq` command: one file per subcommand, imported when it is called.

| file | holds |
|---|---|
| main.py | the entry point and the table of commands |
| broker.py produce.py consume.py | run a broker, send and print messages |
| lag.py locks.py top.py | a consumer group: offsets, queue locks, live view |
| audit.py | check recorded histories |
| demo/ | a year of flights with members joining, leaving and being killed |
| client_options.py | options of the connection: name servers, account, TLS |
| output.py | exit codes, tables, JSON, progress bars |

Needs the extra `cli` (click, rich): pip install 'ordermq[cli]'.
"""
