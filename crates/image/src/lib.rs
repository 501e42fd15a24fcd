//! Images: import, pull, unpack, the host image.
