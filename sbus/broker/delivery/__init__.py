"""Delivery to one client: outbox, backlog, back-pressure and secret messages."""
