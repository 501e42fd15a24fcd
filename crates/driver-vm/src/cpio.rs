//! Archives of the form that the kernel unpacks as its first root (`newc`).

use std::io::{self, Write};

/// Writes an archive.
pub struct Archive<W> {
    output: W,
    number: u32,
}

impl<W: Write> Archive<W> {
    /// An empty one.
    pub fn new(output: W) -> Self {
        Self { output, number: 0 }
    }

    /// A folder.
    pub fn folder(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, 0o040_755, (0, 0), &[])
    }

    /// A file that everybody may execute.
    pub fn file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.entry(name, 0o100_755, (0, 0), content)
    }

    /// A character device.
    pub fn device(&mut self, name: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(name, 0o020_600, (major, minor), &[])
    }

    /// Ends the archive and gives the output back.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.output)
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        let size = u32::try_from(content.len()).map_err(|_| io::Error::other("a file of more than 4 GiB"))?;
        self.number += 1;
        let fields = [
            self.number,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            device.0,
            device.1,
            u32::try_from(name.len()).unwrap_or(0) + 1,
            0,
        ];
        let mut head = b"070701".to_vec();
        for field in fields {
            head.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        head.extend_from_slice(name.as_bytes());
        head.push(0);
        head.resize(head.len().next_multiple_of(4), 0);
        self.output.write_all(&head)?;
        self.output.write_all(content)?;
        self.output.write_all(&[0; 4][..content.len().next_multiple_of(4) - content.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_the_end_is_marked() {
        let mut archive = Archive::new(Vec::new());
        archive.folder("dev").unwrap();
        archive.device("dev/console", 5, 1).unwrap();
        archive.file("init", b"12345").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 4);
        assert!(
            text.contains("init\0")
                && text.contains(&format!("12345{}070701", "\0".repeat(3)))
                && text.ends_with("TRAILER!!!\0\0\0\0")
        );
    }
}
