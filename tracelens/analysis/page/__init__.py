"""What the HTML page draws: timelines, the tree of ops, roofs."""
