//! The tiny single-threaded process that brings up same-kernel sandboxes.
