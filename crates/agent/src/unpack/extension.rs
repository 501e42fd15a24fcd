//! What stands before a header: long names and PAX records.

use sloplet_wire::{ErrorCode, Failure};
use tar::EntryType;

use super::{State, Unpack};
use crate::failure::fail;

impl Unpack {
    /// Uses an extension once it is complete.
    pub(super) fn settle_extension(&mut self) -> Result<(), Failure> {
        let State::Extension { kind, bytes, left: 0, padding: 0 } = &mut self.state else {
            return Ok(());
        };
        let (kind, mut bytes) = (*kind, std::mem::take(bytes));
        self.state = State::Header;
        if kind == EntryType::XHeader {
            return self.pax(&bytes);
        }
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        match kind {
            EntryType::GNULongName => self.next.path = Some(bytes),
            _ => self.next.link = Some(bytes),
        }
        Ok(())
    }

    /// PAX records: `length key=value\n`. Unknown keys (times, owners, extended attributes) are passed over.
    fn pax(&mut self, mut records: &[u8]) -> Result<(), Failure> {
        let broken = || fail(ErrorCode::Invalid, "a damaged tar archive: bad PAX record");
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ').ok_or_else(broken)?;
            let number = std::str::from_utf8(&records[..space]).ok().and_then(|text| text.parse::<usize>().ok());
            let len = number.filter(|len| *len > space + 1 && *len <= records.len()).ok_or_else(broken)?;
            let record = records[space + 1..len].strip_suffix(b"\n").ok_or_else(broken)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(broken)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.next.path = Some(value.to_vec()),
                b"linkpath" => self.next.link = Some(value.to_vec()),
                b"size" => {
                    let text = std::str::from_utf8(value).map_err(|_| broken())?;
                    self.next.size = Some(text.parse().map_err(|_| broken())?);
                }
                _ if key.starts_with(b"GNU.sparse") => {
                    return Err(fail(ErrorCode::Unsupported, "sparse files in archives are not unpacked"));
                }
                _ => {}
            }
            records = &records[len..];
        }
        Ok(())
    }
}
