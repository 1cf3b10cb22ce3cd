"""What travels between server and clients, and what it is charged."""
