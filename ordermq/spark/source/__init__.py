"""The Spark source: batch and stream reads of message queues."""
