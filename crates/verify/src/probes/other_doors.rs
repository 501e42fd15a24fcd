//! The same calls through the kernel's other doors.

use sloplet_sys::attempt::doors;

use crate::part::{Miss, Parts, nothing};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "other-doors",
    ids: &[23],
    tries: "system calls by int 0x80 with 32-bit numbers, and by the x32 numbers",
    why: "a filter that knows one numbering only is walked around by the other",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("doors");
    for name in doors::names() {
        let action = move |_: &Settings| match doors::attempt(name) {
            None => nothing("no such door on this processor"),
            Some(result) if result < 0 => {
                let error = std::io::Error::from_raw_os_error(-result as i32);
                let closed = [1, 13, 38, 97]; // EPERM, EACCES, ENOSYS, EAFNOSUPPORT
                match closed.contains(&-result) {
                    true => Err(Miss::Refused(error)),
                    false => Ok(format!("was carried out: {error}")),
                }
            }
            Some(result) => Ok(format!("returned {result}")),
        };
        // Few kernels have x32; not all have the 32-bit door.
        if name == "int80 getpid" || name == "int80 socketcall" {
            parts.add(name, action);
        } else {
            parts.optional(name, action);
        }
    }
}
