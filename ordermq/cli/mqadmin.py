"""Commands and options of RocketMQ's mqadmin: what to write instead. Only a mistake loads this."""

from __future__ import annotations

from typing import Final

# By letters in lower case; the commands with their arguments, as the help shows them.
COMMANDS: Final = {
    "updatetopic": "topics create TOPIC",
    "deletetopic": "topics delete TOPIC",
    "topiclist": "topics list",
    "topicroute": "topics describe TOPIC",
    "topicstatus": "topics describe TOPIC",
    "topicclusterlist": "topics describe TOPIC",
    "updatesubgroup": "groups create GROUP",
    "deletesubgroup": "groups delete GROUP",
    "consumerprogress": "lag GROUP",
    "consumerconnection": "groups describe GROUP",
    "consumerstatus": "groups describe GROUP, or locks GROUP",
    "producerconnection": "doctor",
    "resetoffsetbytime": "reset GROUP TOPIC --to-time TIME",
    "resetoffsetbytimeold": "reset GROUP TOPIC --to-time TIME",
    "skipaccumulatedmessage": "reset GROUP TOPIC --to last",
    "querymsgbykey": "messages find TOPIC --key KEY",
    "querymsgbyid": "messages find TOPIC --id ID",
    "querymsgbyuniquekey": "messages find TOPIC --id ID",
    "querymsgbyoffset": "messages find TOPIC --offset OFFSET --queue NUMBER",
    "printmsg": "peek TOPIC",
    "printmsgbyqueue": "peek TOPIC --queue NUMBER",
    "consumemessage": "peek TOPIC, or consume GROUP TOPIC",
    "sendmessage": "produce TOPIC",
    "clusterlist": "doctor",
    "brokerstatus": "doctor",
    "getbrokerconfig": "doctor",
    "checkmsgsendrt": "doctor",
    "startmonitoring": "top GROUP",
}
_TAGS = "TAGS is an argument: ordermq consume GROUP TOPIC 'paid || refunded'; peek shows every tag"
OPTIONS: Final = {
    "-t": "the topic is an argument",
    "--topic": "the topic is an argument",
    "-g": "the group is an argument",
    "--group": "the group is an argument",
    "--tags": _TAGS,
    "--tag": _TAGS,
    "--namesrvAddr": "write -n or --name-servers",
}


def command_of(name: str) -> str:
    """Return the rest of an error about a command of mqadmin, or nothing."""
    found = COMMANDS.get(name.lower())
    return f": that is a command of mqadmin; here ordermq {found}" if found else ""
