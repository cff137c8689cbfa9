"""Sheets of the program: phases of training, modules, call stacks, memory."""
