"""What the server does in a round, whatever trains the clients."""
