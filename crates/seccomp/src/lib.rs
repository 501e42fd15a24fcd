//! The syscall allowlist as data, compiled to BPF.
