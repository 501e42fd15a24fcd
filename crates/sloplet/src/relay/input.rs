//! Standard input, on its way inside.

use std::io::{IsTerminal, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use tokio::sync::mpsc;

/// Whether standard input is to be passed on: when that is asked for, and whenever it is not a terminal but a pipe or a
/// file.
pub fn wanted(asked: bool) -> bool {
    asked || !std::io::stdin().is_terminal() && !is_null()
}

/// `/dev/null` needs no forwarding: the command gets one of its own.
fn is_null() -> bool {
    const NULL: u64 = 0x103; // device 1:3
    let stdin = std::fs::metadata("/proc/self/fd/0");
    stdin.is_ok_and(|meta| meta.file_type().is_char_device() && meta.rdev() == NULL)
}

/// Reads in a thread of its own: reading a terminal or a pipe blocks, and there is no way to wait for any kind of file.
/// The channel is short, so that a slow command slows the reader.
pub fn read() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = stdin.read(&mut buffer) {
            if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}
