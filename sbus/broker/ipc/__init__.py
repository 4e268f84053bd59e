"""What the front and the workers say to each other, and the link that carries it."""
