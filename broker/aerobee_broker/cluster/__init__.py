"""Which nameservers know of this broker, and what they say of the others."""
