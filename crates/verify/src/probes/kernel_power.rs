//! Power over the machine.

use sloplet_sys::attempt::Call;

use crate::part::{Parts, done, reached};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "kernel-power",
    ids: &[20],
    tries: "load modules, kexec, reboot, swap, accounting, the kernel's log, the host's name",
    why: "each of them is the whole machine",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("powers");
    for (name, call) in [
        ("init_module", Call::InitModule),
        ("finit_module", Call::FinitModule),
        ("delete_module", Call::DeleteModule),
        ("kexec_load", Call::KexecLoad),
        ("kexec_file_load", Call::KexecFileLoad),
        ("quotactl", Call::Quotactl),
    ] {
        parts.optional(name, move |_| reached(call));
    }
    for (name, call) in
        [("reboot", Call::Reboot), ("swapon", Call::Swapon), ("swapoff", Call::Swapoff), ("acct", Call::Acct)]
    {
        parts.add(name, move |_| reached(call));
    }
    parts.add("syslog", |_| done(Call::Syslog));
    parts.add("sethostname", |_| {
        let name = rustix::system::uname().nodename().to_bytes().to_vec();
        rustix::system::sethostname(&name)?;
        Ok("set".into())
    });
}
