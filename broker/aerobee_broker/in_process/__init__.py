"""What a program in the broker's process may ask: values in, values out, through the same gate, without a socket."""
