"""The `ordermq` command: one file per subcommand, imported when it is called.

| file | holds |
|---|---|
| main.py | the entry point and the table of commands |
| broker.py produce.py consume.py | run a broker, send and print messages |
| run/ | a consumer in several processes |
| topics.py peek.py messages.py | topics, messages read without a group, messages searched for |
| groups.py lag.py locks.py top.py | consumer groups: members, offsets, queue locks, live view |
| exporter.py | their lag for Prometheus |
| reset.py | move a group to other offsets |
| dead_letters.py parked.py | dead letters and parked keys, and going on with them |
| audit.py | check recorded histories |
| demo/ | a year of flights with members joining, leaving and being killed |
| config.py doctor.py | check settings and connections; look for what is wrong |
| client_options.py | options of the connection: name servers, account, TLS |
| place.py | places in a queue as users write them |
| mqadmin.py | RocketMQ's names of commands and options, for who types them |
| watch.py | tables that are refreshed |
| output.py | exit codes, tables, JSON, progress bars |
| streams.py signals.py | the standard streams, and the signals that end a command |

Needs the extra `cli` (click, rich): pip install 'ordermq[cli]'.
"""
