"""Test support: with this folder first on PYTHONPATH every Python process watches its sockets."""

import socket_guard

socket_guard.watch()
