"""What calls did and could have done: limits besides arithmetic, rows of token exchanges, impossible figures."""
