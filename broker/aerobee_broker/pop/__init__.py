"""What POP owes: messages handed out, their acknowledgements, and when each comes back."""
