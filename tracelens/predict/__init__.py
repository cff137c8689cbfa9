"""What no recording tells: operations, training steps, searches, routed tokens and servers nobody has measured yet."""
