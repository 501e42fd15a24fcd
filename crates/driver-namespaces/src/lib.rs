//! The default wall: Linux namespaces.
