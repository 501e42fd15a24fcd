//! What a sandbox is asked to be: spec, limits, capability report. Pure data.
