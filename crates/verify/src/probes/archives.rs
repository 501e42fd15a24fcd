//! Archives that unpack elsewhere.

use std::time::Duration;

use tar::{Builder, EntryType, Header};

use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "archives",
    ids: &[37],
    tries: "unpack archives with '..', absolute names, a link and then a file through it, hard links, devices, a bomb",
    why: "an archive is a program for the file system: it must act on the sandbox's only, within its bounds",
    needs: &[],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let target = drill.canaries.folder().join("writable");
    let outside = target.display().to_string();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        (
            "dots",
            archive(|tar| file(tar, &format!("{}{}/dots", "../".repeat(20), outside.trim_start_matches('/')), b"x"))?,
        ),
        ("an absolute name", archive(|tar| file(tar, &format!("{outside}/absolute"), b"x"))?),
        (
            "a link, then a file through it",
            archive(|tar| {
                link(tar, "out", &outside, EntryType::Symlink)?;
                file(tar, "out/through", b"x")
            })?,
        ),
        (
            "a hard link to the canary",
            archive(|tar| link(tar, "hard", &drill.settings().canary.display().to_string(), EntryType::Link))?,
        ),
        (
            "a device",
            archive(|tar| {
                let mut header = header("disk", EntryType::Block, 0);
                header.set_device_major(8)?;
                header.set_device_minor(0)?;
                header.set_cksum();
                tar.append(&header, std::io::empty())
            })?,
        ),
    ];
    // The same archive on the host, by a reader that trusts it.
    let control = target.join("control");
    std::fs::create_dir_all(&control)?;
    let trusted = archive(|tar| file(tar, "plain", b"x"))?;
    let works = tar::Archive::new(trusted.as_slice()).unpack(&control).is_ok() && control.join("plain").exists();
    std::fs::remove_dir_all(&control)?;
    let sandbox = drill.sandbox(|_| {}).await?;
    let mut said = Vec::new();
    for (name, bytes) in cases {
        let answer = unpack(drill, &sandbox, bytes).await;
        said.push(format!("{name}: {}", if answer { "taken" } else { "refused" }));
    }
    let hard = drill.place(&sandbox, "unpacked/hard");
    let hard = drill.read(&sandbox, hard.as_bytes()).await.unwrap_or_default();
    // The control inside: one that is none of these is taken.
    let plain = unpack(drill, &sandbox, trusted).await;
    // Far more than its disk: refused when that is full, and the agent goes on.
    let small = drill.sandbox(|spec| spec.limits.disk = sloplet_policy::ByteSize::mib(4)).await?;
    let bomb = archive(|tar| file(tar, "bomb", &vec![0u8; 12 << 20]))?;
    let bombed = unpack(drill, &small, bomb).await;
    // Where the disk is watched and not enforced, whoever fills it is ended for it.
    let over_disk = || async {
        let end = tokio::time::timeout(Duration::from_secs(2), small.machine().ended()).await;
        end.is_ok_and(|end| end.over_disk)
    };
    let serves = drill.serves(&sandbox).await && (drill.serves(&small).await || over_disk().await);
    sandbox.destroy().await?;
    small.destroy().await?;
    let left: Vec<_> = std::fs::read_dir(&target)?.flatten().map(|entry| entry.file_name()).collect();
    let held = left.is_empty() && serves && !bombed && !contains(&hard, drill.settings().secret.as_bytes());
    let detail = format!(
        "{}; a bomb: {}; files outside: {left:?}; the agents {}",
        said.join(", "),
        if bombed { "taken" } else { "refused" },
        if serves { "serve" } else { "are gone" }
    );
    if !works || (held && !plain) {
        let place = if works { "inside" } else { "on the host" };
        return Ok(Finding::inconclusive("", format!("not even a plain archive unpacks {place}")));
    }
    Ok(Finding::judge(held, "a plain archive unpacks on the host and inside", detail))
}

async fn unpack(drill: &Drill<'_>, sandbox: &sloplet_engine::Sandbox, bytes: Vec<u8>) -> bool {
    let Ok(mut upload) = sandbox.agent().unpack(drill.target(drill.place(sandbox, "unpacked"))).await else {
        return false;
    };
    for chunk in bytes.chunks(1 << 16) {
        if upload.write(chunk.to_vec()).await.is_err() {
            break;
        }
    }
    upload.finish().await.is_ok()
}

fn archive(fill: impl FnOnce(&mut Builder<Vec<u8>>) -> std::io::Result<()>) -> std::io::Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    fill(&mut tar)?;
    tar.into_inner()
}

/// A header with any name at all: the usual way refuses the interesting ones.
fn header(name: &str, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_ustar();
    let field = &mut header.as_old_mut().name;
    let length = name.len().min(field.len());
    field[..length].copy_from_slice(&name.as_bytes()[..length]);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    header
}

fn file(tar: &mut Builder<Vec<u8>>, name: &str, content: &[u8]) -> std::io::Result<()> {
    tar.append(&header(name, EntryType::Regular, content.len() as u64), content)
}

fn link(tar: &mut Builder<Vec<u8>>, name: &str, target: &str, kind: EntryType) -> std::io::Result<()> {
    let mut header = header(name, kind, 0);
    header.set_link_name_literal(target)?;
    header.set_cksum();
    tar.append(&header, std::io::empty())
}
