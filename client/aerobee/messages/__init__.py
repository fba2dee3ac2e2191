"""Messages in a program's hands: outgoing, received, being handled, and who looks on and counts."""
