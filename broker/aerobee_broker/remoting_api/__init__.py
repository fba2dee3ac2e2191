"""What a peer may ask over remoting: requests decoded, refused or handed on, answers encoded."""
