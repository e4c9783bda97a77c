"""The same methods over a network, on Flower: a ServerApp with an exchange of its own, and a ClientApp.

wire.py (what messages look like), exchange.py (asking clients, with a deadline), server.py and client.py (the two
sides), memory.py (what a client keeps between its turns), app.py (the directory that `flwr run` takes).
"""
