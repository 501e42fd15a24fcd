//! PID 1 of every sandbox.
