"""Chrome's trace format, in which Kineto and others write JSON: a list of events, cut into pieces, made columns."""
