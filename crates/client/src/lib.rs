//! The host's end of the stream to an agent.
