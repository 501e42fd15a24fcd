//! What is known of a file, or is to be changed.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Gid, Mode, Timespec, Timestamps, Uid};

use super::Refusal;
use super::packet::{Fields, Reply};

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 0x8000_0000;

/// What is known of a file, or is to be changed.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    pub(super) size: Option<u64>,
    pub(super) owner: Option<(u32, u32)>,
    pub(super) permissions: Option<u32>,
    /// Read and changed, in seconds since 1970.
    pub(super) times: Option<(u32, u32)>,
}

impl From<&Metadata> for Attributes {
    fn from(metadata: &Metadata) -> Self {
        Self {
            size: Some(metadata.size()),
            owner: Some((metadata.uid(), metadata.gid())),
            permissions: Some(metadata.mode()),
            times: Some((metadata.atime() as u32, metadata.mtime() as u32)),
        }
    }
}

impl Attributes {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let flags = fields.number()?;
        let mut found = Self::default();
        if flags & SIZE != 0 {
            found.size = Some(fields.long()?);
        }
        if flags & OWNER != 0 {
            found.owner = Some((fields.number()?, fields.number()?));
        }
        if flags & PERMISSIONS != 0 {
            found.permissions = Some(fields.number()?);
        }
        if flags & TIMES != 0 {
            found.times = Some((fields.number()?, fields.number()?));
        }
        if flags & EXTENDED != 0 {
            for _ in 0..fields.number()? {
                fields.bytes()?;
                fields.bytes()?;
            }
        }
        Ok(found)
    }

    pub(super) fn write(&self, reply: &mut Reply) {
        let flag = |there: bool, flag: u32| if there { flag } else { 0 };
        reply.number(
            flag(self.size.is_some(), SIZE)
                | flag(self.owner.is_some(), OWNER)
                | flag(self.permissions.is_some(), PERMISSIONS)
                | flag(self.times.is_some(), TIMES),
        );
        if let Some(size) = self.size {
            reply.long(size);
        }
        let (uid, gid) = self.owner.unzip();
        let (read, changed) = self.times.unzip();
        for number in [uid, gid, self.permissions, read, changed].into_iter().flatten() {
            reply.number(number);
        }
    }

    /// The mode that a file or folder gets: never with set-ID bits, which would also hold in folders of the host's.
    pub(super) fn mode(&self, usual: u32) -> Mode {
        Mode::from_raw_mode(self.permissions.unwrap_or(usual) & 0o1777)
    }

    /// The owner, as the kernel takes it.
    pub(super) fn ids(&self) -> Option<(Uid, Gid)> {
        // The largest number means "unchanged", which is not what was asked for.
        let (uid, gid) = self.owner.filter(|(uid, gid)| *uid != u32::MAX && *gid != u32::MAX)?;
        Some((Uid::from_raw(uid), Gid::from_raw(gid)))
    }

    /// The times, as the kernel takes them.
    pub(super) fn stamps(&self) -> Option<Timestamps> {
        let time = |seconds: u32| Timespec { tv_sec: seconds.into(), tv_nsec: 0 };
        self.times.map(|(read, changed)| Timestamps { last_access: time(read), last_modification: time(changed) })
    }
}

/// A line for people, as `ls -l` has it.
pub(super) fn long_name(name: &[u8], metadata: &Metadata) -> Vec<u8> {
    let mode = metadata.mode();
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o010_000 => 'p',
        0o140_000 => 's',
        0o020_000 => 'c',
        0o060_000 => 'b',
        _ => '-',
    };
    let bit = |shift: u32| ["r", "w", "x"][shift as usize % 3];
    let bits: String = (0..9).map(|shift| if mode & (0o400 >> shift) == 0 { "-" } else { bit(shift) }).collect();
    let (year, month, day) = date(metadata.mtime());
    let (uid, gid, size, links) = (metadata.uid(), metadata.gid(), metadata.size(), metadata.nlink());
    let line = format!("{kind}{bits} {links:>4} {uid:<8} {gid:<8} {size:>8} {year:04}-{month:02}-{day:02} ");
    [line.as_bytes(), name].concat()
}

/// The day of a moment, by the Gregorian calendar counted in eras of 400 years that begin in March.
fn date(seconds: i64) -> (i64, i64, i64) {
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * march + 2) / 5 + 1, if march < 10 { march + 3 } else { march - 9 });
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(951_782_400), (2000, 2, 29));
        assert_eq!(date(-1), (1969, 12, 31));
        assert_eq!(date(4_107_542_400), (2100, 3, 1));
    }
}
