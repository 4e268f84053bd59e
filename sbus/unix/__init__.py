"""Interfaces of the kernel, of the C library and of systemd, without policy."""
