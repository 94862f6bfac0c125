"""`ordermq demo`: a year of flights through a group whose members join, leave and are killed.

| file | holds |
|---|---|
| flights.py | the data: 336,776 flights, keyed by aircraft, in time order |
| aircraft_log.py | the log that listeners compute for each aircraft |
| logbook.py | the SQLite file they share: the logs, beside the offsets of the queues |
| sender.py member.py | the producer process and a consumer process |
| processes.py run.py | starting and killing processes; the sequence of the run |
| expected.py | the same logs computed by pandas |
| check.py picture.py | the checks at the end and the picture |
| command.py | the command itself |
"""
