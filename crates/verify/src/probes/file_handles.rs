//! Files by handle, whatever the root.

use std::fs::File;
use std::os::fd::AsFd;

use sloplet_sys::attempt::{Call, open_handle};

use crate::part::{Parts, done};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "file-handles",
    ids: &[14],
    tries: "open the host's root folder by its file handle",
    why: "the 'shocker' escape from Docker: a handle names any file of a file system, mounted or not",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("file handles");
    parts.add("open_by_handle_at", |settings| {
        let digits = settings.handle.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or("0"));
        let handle: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap_or(0)).collect();
        open_handle(File::open("/usr")?.as_fd(), &handle, settings.handle_kind)?;
        Ok("the host's root is open".into())
    });
    parts.add("name_to_handle_at", |_| done(Call::NameToHandle(c"/usr")));
}
