//! The C library's allocator, told to give memory back.

/// Keeps freed memory from staying with this process: few arenas, and the end of the heap goes back to the kernel early. For a
/// server, which holds much for a while and little afterwards. Other C libraries have no such settings.
pub fn give_back_early() {
    #[cfg(target_env = "gnu")]
    {
        const SETTINGS: [(i32, i32); 3] =
            [(libc::M_ARENA_MAX, 2), (libc::M_TRIM_THRESHOLD, 1 << 20), (libc::M_MMAP_THRESHOLD, 256 << 10)];
        for (setting, value) in SETTINGS {
            // SAFETY: takes two numbers and changes nothing but the allocator's own settings, under its own lock. A setting
            // that it does not know is refused, and all is as before.
            let _ = unsafe { libc::mallopt(setting, value) };
        }
    }
}
