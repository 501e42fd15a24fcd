//! Ways up and out of the root.

use std::path::PathBuf;

use rustix::mount::{MountFlags, mount};
use rustix::process::{chroot, fchdir, pivot_root};
use sloplet_policy::Feature;

use crate::part::{Parts, Place, head, nothing, private_mounts};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "climb-out",
    ids: &[13],
    tries: "double chroot, dots, pivot_root, links of /proc, forgotten mounts",
    why: "a root that is only changed, and not detached, can be left",
    needs: &[Feature::OwnRoot],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(settings: &Settings, parts: &mut Parts) {
    parts.add("double chroot", |settings| {
        let (top, place) = (std::fs::File::open("/")?, Place::make()?);
        chroot(&place.0)?;
        fchdir(&top)?;
        for _ in 0..64 {
            std::env::set_current_dir("..")?;
        }
        chroot(".")?;
        if settings.canary.exists() { Ok("the host's canary is there".into()) } else { nothing("still inside") }
    });
    parts.add("dots", |settings| {
        let path = format!("/{}{}", "../".repeat(64), settings.canary.display());
        Ok(format!("{} bytes", head(path, 4096)?.len()))
    });
    let pivot = |_: &Settings| {
        private_mounts();
        let place = Place::make()?;
        let _ = mount("none", &place.0, "tmpfs", MountFlags::empty(), None);
        let old = place.0.join("old");
        let _ = std::fs::create_dir(&old);
        pivot_root(&place.0, &old)?;
        Ok("pivoted".into())
    };
    // An ordinary user of the host cannot make the folders that it takes.
    if settings.root {
        parts.of_kernel("mounts").add("pivot_root", pivot);
    } else {
        parts.of_kernel("mounts").optional("pivot_root", pivot);
    }
    for link in ["root", "cwd"] {
        parts.add(format!("through /proc/1/{link}"), move |settings| {
            std::env::set_current_dir(format!("/proc/{}/{link}", settings.victim))?;
            let relative = settings.canary.strip_prefix("/").unwrap_or(&settings.canary);
            let up = PathBuf::from("../".repeat(30)).join(relative);
            if up.exists() || relative.exists() {
                Ok("the host's canary is there".into())
            } else {
                nothing("not the host")
            }
        });
    }
    parts.add("a forgotten mount", |settings| {
        let relative = settings.canary.strip_prefix("/").unwrap_or(&settings.canary);
        let table = head("/proc/self/mountinfo", 1 << 20)?;
        for line in String::from_utf8_lossy(&table).lines() {
            let Some(point) = line.split(' ').nth(4) else { continue };
            let candidate = PathBuf::from(point).join(relative);
            if candidate.exists() {
                return Ok(candidate.display().to_string());
            }
        }
        nothing("no mount leads to the canary")
    });
}
