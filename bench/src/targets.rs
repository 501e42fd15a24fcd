//! What the measurements must show.

use crate::report::{Report, Target};
use crate::sections::names::*;

/// All targets; those that could not be measured only if `complete`.
pub fn judge(report: &Report, complete: bool) -> Vec<Target> {
    let p50 = |name| report.p50(name);
    let value = |name| report.value(name);
    let mut all = Vec::new();
    let mut most = |promise: &str, measured: Option<f64>, limit: f64, unit: &str| {
        all.push(target(promise, measured, unit, |value| value <= limit));
    };
    most("create + exec + destroy ≤ 1.0 × bwrap", over(p50(LIBRARY), p50(BWRAP)), 1.0, "×");
    most("sloplet run ≤ 1.5 × bwrap", over(p50(BINARY), p50(BWRAP)), 1.5, "×");
    most("exec in a running sandbox ≤ 1.5 × a bare spawn", over(p50(EXEC), p50(EXEC_BARE)), 1.5, "×");
    most("sloplet run --driver docker ≤ 1.2 × docker run", over(p50(ON_DOCKER), p50(DOCKER)), 1.2, "×");
    most("exec with the driver docker ≤ docker exec", over(p50(EXEC_ON_DOCKER), p50(EXEC_DOCKER)), 1.0, "×");
    most("sloplet run --isolation gvisor ≤ 1.1 × runsc run", over(p50(BINARY_GVISOR), p50(RUNSC)), 1.1, "×");
    most("exec behind gVisor ≤ 1.0 × runsc exec", over(p50(EXEC_GVISOR), p50(EXEC_RUNSC)), 1.0, "×");
    most("a virtual machine with its agent ≤ 1.3 × bare QEMU", over(p50(MACHINE), p50(QEMU)), 1.3, "×");
    let recorded = p50(EXEC).zip(p50(EXEC_UNRECORDED)).map(|(with, without)| (with - without) * 1e3);
    most("writing a command down adds ≤ 100 µs to it", recorded, 100.0, "µs");
    most("an idle sandbox, everything counted, < 2 MiB", value(DENSITY_EACH), 2.0, "MiB");
    most("creation with many sandboxes ≤ 1.5 × with few", over(p50(LAST_CREATED), p50(FIRST_CREATED)), 1.5, "×");
    most("private memory of an idle agent < 1 MiB", value(AGENT_PRIVATE), 1.0, "MiB");
    most("streaming in bounded memory: < 16 MiB more at its peak", value(STREAM_GROWTH), 16.0, "MiB");
    most("HTTP: created → first output ≤ 15 ms", p50(SERVE_CREATE), 15.0, "ms");
    most("HTTP: claimed from a pool → first command started ≤ 2 ms", p50(CLAIM_EXEC), 2.0, "ms");
    most("HTTP: claimed from a pool → first output ≤ 5 ms", p50(CLAIM_OUTPUT), 5.0, "ms");
    most("100 claims at once from a pool of 100 ≤ 150 ms", value(CLAIM_CROWD), 150.0, "ms");
    most("HTTP: exec ≤ 4 ms", p50(SERVE_EXEC), 4.0, "ms");
    most("HTTP: fork of a paused sandbox, 1 GiB in 10,000 files, ≤ 5 ms", p50(FORK_PAUSED), 5.0, "ms");
    most("the idle server < 30 MiB", value(SERVE_IDLE), 30.0, "MiB");
    most("200 clients in 50 sandboxes: none fails", value(SERVE_FAILURES), 0.0, "clients");
    most("transfers in bounded memory: < 64 MiB more", value(SERVE_GROWTH), 64.0, "MiB");
    most("out of a sandbox: a connection ≤ 3.5 × direct", over(p50(EGRESS), p50(DIRECT)), 3.5, "×");
    let more = p50(WITH_RULES).zip(p50(WITHOUT_RULES)).map(|(with, without)| with - without);
    most("creation with an allowlist ≤ 1.5 ms more than without", more, 1.5, "ms");
    let mut least = |promise: &str, measured: Option<f64>, limit: f64, unit: &str| {
        all.push(target(promise, measured, unit, |value| value >= limit));
    };
    least("docker run ≥ 60 × create + exec + destroy", over(p50(DOCKER), p50(LIBRARY)), 60.0, "×");
    least("docker exec ≥ 40 × exec in a running sandbox", over(p50(EXEC_DOCKER), p50(EXEC)), 40.0, "×");
    least("sustained create + exec + destroy ≥ 300/s", value(BEST_RATE), 300.0, "/s");
    least("Docker's API ≥ 20 × created → first output", over(p50(SERVE_DOCKER), p50(SERVE_CREATE)), 20.0, "×");
    least("upload ≥ 500 MB/s", value(SERVE_UPLOAD), 500.0, "MB/s");
    least("download ≥ 500 MB/s", value(SERVE_DOWNLOAD), 500.0, "MB/s");
    least("a stream into a sandbox ≥ 30 % of veth + NAT", over(value(EGRESS_DOWN), value(NAT_DOWN)), 0.3, "×");
    least("a stream out of a sandbox ≥ 30 % of veth + NAT", over(value(EGRESS_UP), value(NAT_UP)), 0.3, "×");
    least("a stream into a sandbox ≥ 2 × slirp4netns", over(value(EGRESS_DOWN), value(SLIRP_DOWN)), 2.0, "×");
    least("a stream out of a sandbox ≥ 2 × slirp4netns", over(value(EGRESS_UP), value(SLIRP_UP)), 2.0, "×");
    let better = value(HITS_ADAPTIVE).zip(value(HITS_FIXED)).map(|(adaptive, fixed)| adaptive - fixed);
    least("sized by demand, more claims find a machine", better, 0.1, "%");
    least("masking ≥ 100 MB/s CSV", value(MASK_SPEED), 100.0, "MB/s");
    least("1,000 connections out of a sandbox at once", value(EGRESS_CROWD), 1000.0, "connections");
    let wanted = value(PIPE_SPEED).map_or(1.0, |pipe| (0.7 * pipe).min(1.0));
    let promise = format!("streaming ≥ 1 GB/s or 70 % of a plain pipe (here: {wanted:.2} GB/s)");
    least(&promise, value(STREAM_SPEED), wanted, "GB/s");
    all.retain(|target| complete || target.kept.is_some());
    all
}

fn target(promise: &str, measured: Option<f64>, unit: &str, kept: impl Fn(f64) -> bool) -> Target {
    Target {
        promise: promise.to_owned(),
        measured: measured.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.2} {unit}")),
        kept: measured.map(kept),
    }
}

fn over(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    Some(part? / whole?)
}
