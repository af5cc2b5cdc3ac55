"""A node's policy around any Flower app: replies are read, defended and rebuilt outside of the app."""
