"""What is done with a trained federation: export, predict, onboard a client, add a class."""
