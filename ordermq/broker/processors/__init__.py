"""Request handlers, one file per subject; each lists its request codes in `HANDLERS`.

| requests | file |
|---|---|
| 10, 310, 320 send; 36 send back for a retry; 37 end a transaction; 370 recall | send.py |
| 11, 361 pull | pull.py |
| 14, 15, 29-32 offsets; 222 reset a group's offsets | offsets.py |
| 41, 42 queue locks | locks.py |
| 200050, 200051, 200053, 200151 POP | pop.py |
| 34, 35, 38, 46, 400 members; 200-203, 207, 208 groups | groups.py |
| 105, 106, 206 routes; 17, 21, 202, 215, 216, 351 topics; 28 the broker itself | topics.py |
| 12 search by key; 33 view by id | query_message.py |
| 307, 309, 324, 325 requests that the broker passes on to a client | client_requests.py |

`received_sends.py` stores plain sends (310) that came together with one write, without a command
for each of them.
`fast_path.py` reads and writes the headers of sends and pulls.
"""
