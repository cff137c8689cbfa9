"""Recording a trace that a report can use: the profiler's options, when it records, what is written where."""
