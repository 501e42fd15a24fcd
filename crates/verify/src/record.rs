//! Results of earlier verifications, and whether one still speaks for a configuration.
//!
//! One JSON file for each digest, in the data folder, replaced as a whole: readers see an old result or a new one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use sha2::{Digest, Sha256};
use sloplet_policy::{DriverReport, Feature, Radius, Spec};

use crate::probe::Verdict;
use crate::report::Report;

/// How old a result may be, unless somebody says otherwise.
pub const MAX_AGE: Duration = Duration::from_secs(7 * 86_400);

/// Results that are looked at for whoever watches.
const SHOWN: usize = 16;

/// The folder within the data folder.
const FOLDER: &str = "verified";

/// Results that were kept.
#[derive(Debug, Clone)]
pub struct Records(PathBuf);

/// What is known of one configuration.
#[derive(Debug, Clone)]
pub enum Standing {
    /// Nothing got out, lately.
    Good(Box<Report>),
    /// Never verified like this: another configuration, wall, kernel or binary.
    Missing,
    /// Verified too long ago.
    Stale {
        /// How long ago.
        age: Duration,
    },
    /// Something got out.
    Failed {
        /// The probes.
        probes: Vec<String>,
    },
}

impl Standing {
    /// Why that is no reason to trust, in a sentence.
    pub fn objection(&self) -> Option<String> {
        match self {
            Self::Good(_) => None,
            Self::Missing => Some("this exact configuration was never verified on this host".into()),
            Self::Stale { age } => Some(format!("the last verification is {} hours old", age.as_secs() / 3600)),
            Self::Failed { probes } => Some(format!("the last verification found a breach: {}", probes.join(", "))),
        }
    }
}

/// The last result, for whoever watches.
#[derive(Debug, Clone, Serialize)]
pub struct Latest {
    /// When it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// How old it is, in seconds.
    pub age_seconds: u64,
    /// Whether nothing got out.
    pub passed: bool,
    /// The wall.
    pub driver: String,
    /// Counts by verdict.
    pub contained: usize,
    /// Breaches.
    pub breaches: usize,
    /// Probes that prove nothing.
    pub inconclusive: usize,
    /// What it speaks for.
    pub digest: String,
}

impl From<Report> for Latest {
    fn from(report: Report) -> Self {
        Self {
            at_ms: report.started_ms,
            age_seconds: age(report.started_ms).as_secs(),
            passed: report.passed(),
            contained: report.count(Verdict::Contained),
            breaches: report.count(Verdict::Breach),
            inconclusive: report.count(Verdict::Inconclusive),
            driver: report.driver,
            digest: report.digest,
        }
    }
}

impl Records {
    /// Those of a data folder.
    pub fn of(data: &Path) -> Self {
        Self(data.join(FOLDER))
    }

    /// Keeps a result, if it is of all probes and of a whole sandbox.
    pub fn keep(&self, report: &Report) -> io::Result<()> {
        if !report.complete || report.weakened.is_some() {
            return Ok(());
        }
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.0)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.0)?;
        file.as_file_mut().write_all(report.text()?.as_bytes())?;
        file.as_file_mut().flush()?;
        file.persist(self.path(&report.digest)).map(drop).map_err(|error| error.error)
    }

    /// The result for a digest.
    pub fn get(&self, digest: &str) -> Option<Report> {
        serde_json::from_slice(&fs::read(self.path(digest)).ok()?).ok()
    }

    /// What is known of a configuration.
    pub fn standing(&self, digest: &str, max_age: Duration) -> Standing {
        let Some(report) = self.get(digest) else { return Standing::Missing };
        let age = age(report.started_ms);
        if !report.passed() {
            let breaches = report.results.iter().filter(|result| result.verdict == Verdict::Breach);
            return Standing::Failed { probes: breaches.map(|result| result.probe.clone()).collect() };
        }
        if age > max_age { Standing::Stale { age } } else { Standing::Good(Box::new(report)) }
    }

    /// The newest result of all.
    pub fn latest(&self) -> Option<Latest> {
        self.newest().into_iter().next().map(Latest::from)
    }

    /// The newest result of each wall, latest first.
    pub fn of_walls(&self) -> Vec<Latest> {
        let (mut walls, mut all) = (BTreeSet::new(), self.newest());
        all.retain(|report| walls.insert(report.driver.clone()));
        all.into_iter().map(Latest::from).collect()
    }

    /// Of those, one that failed if there is any: what is good of one wall hides nothing of another.
    pub fn worst(&self) -> Option<Latest> {
        let all = self.of_walls();
        let at = all.iter().position(|latest| !latest.passed).unwrap_or(0);
        all.into_iter().nth(at)
    }

    /// The newest results, latest first.
    fn newest(&self) -> Vec<Report> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut files: Vec<(i64, PathBuf)> = entries
            .filter(|entry| entry.path().extension().is_some_and(|kind| kind == "json"))
            .map(|entry| (entry.metadata().map_or(0, |meta| meta.mtime()), entry.path()))
            .collect();
        files.sort_by_key(|(when, _)| std::cmp::Reverse(*when));
        let reports =
            files.into_iter().take(SHOWN).filter_map(|(_, path)| serde_json::from_slice(&fs::read(path).ok()?).ok());
        let mut reports: Vec<Report> = reports.collect();
        reports.sort_by_key(|report| std::cmp::Reverse(report.started_ms));
        reports
    }

    fn path(&self, digest: &str) -> PathBuf {
        let plain: String = digest.chars().filter(char::is_ascii_hexdigit).collect();
        self.0.join(format!("{plain}.json"))
    }
}

fn age(started_ms: u64) -> Duration {
    let then = SystemTime::UNIX_EPOCH + Duration::from_millis(started_ms);
    // A result from the future is as old as can be: somebody has set the clock.
    SystemTime::now().duration_since(then).unwrap_or(Duration::MAX)
}

/// What a verification speaks for: the configuration, as far as it contains, the wall, the kernel and the binary.
///
/// Mounts, user and limits count; the values of variables, the working directory and the host name do not. A kernel of the
/// wall's own counts as the wall tells it.
pub fn digest(spec: &Spec, radius: &Radius, wall: &DriverReport, program: &Path) -> String {
    let names: Vec<&str> = spec.env.iter().filter_map(|variable| variable.split('=').next()).collect();
    let binary = fs::metadata(program)
        .map(|meta| format!("{} {} {}", meta.len(), meta.mtime(), meta.mtime_nsec()))
        .unwrap_or_default();
    let all = serde_json::json!({
        "image": spec.image,
        "limits": spec.limits,
        "mounts": spec.mounts,
        "data": spec.data,
        "env": names,
        "user": spec.user,
        "gpu": spec.gpu,
        "aio": spec.aio,
        "best_effort": spec.best_effort,
        "weaken": spec.weaken,
        "protect": radius,
        "driver": wall.driver,
        "own_kernel": wall.capabilities.iter().find(|known| known.feature == Feature::OwnKernel).map(|known| &known.detail),
        "kernel": crate::conduct::kernel(),
        "binary": binary,
        "version": env!("CARGO_PKG_VERSION"),
        "root": rustix::process::geteuid().is_root(),
    });
    Sha256::digest(all.to_string()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(digest: &str, started_ms: u64) -> Report {
        Report {
            started_ms,
            took_ms: 1,
            driver: "d".into(),
            isolation: "container".into(),
            kernel: "k".into(),
            host: "h".into(),
            user: "root".into(),
            version: "0".into(),
            digest: digest.into(),
            configuration: String::new(),
            complete: true,
            weakened: None,
            results: Vec::new(),
        }
    }

    fn now_ms() -> u64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
    }

    #[test]
    fn a_result_speaks_for_its_digest_until_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::of(folder.path());
        assert!(matches!(records.standing("aa", MAX_AGE), Standing::Missing));
        records.keep(&report("aa", now_ms())).unwrap();
        assert!(matches!(records.standing("aa", MAX_AGE), Standing::Good(_)));
        assert!(matches!(records.standing("ab", MAX_AGE), Standing::Missing));
        records.keep(&report("aa", now_ms() - 10_000)).unwrap();
        assert!(matches!(records.standing("aa", Duration::from_secs(5)), Standing::Stale { .. }));
        assert!(records.latest().is_some_and(|latest| latest.passed && latest.age_seconds >= 10));
    }

    #[test]
    fn a_good_wall_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::of(folder.path());
        let breach = crate::report::Result {
            probe: "mounts".into(),
            ids: vec![1],
            tries: String::new(),
            why: String::new(),
            verdict: Verdict::Breach,
            control: String::new(),
            detail: String::new(),
            canary: String::new(),
            parts: Vec::new(),
            took_ms: 1,
        };
        let now = now_ms();
        records.keep(&Report { driver: "one".into(), results: vec![breach], ..report("aa", now - 2000) }).unwrap();
        records.keep(&Report { driver: "two".into(), ..report("bb", now - 1000) }).unwrap();
        assert_eq!(records.latest().unwrap().driver, "two");
        assert_eq!(records.worst().map(|worst| (worst.driver, worst.passed)), Some(("one".into(), false)));
        // Each is told of under its own name.
        let told: Vec<(String, bool)> = records.of_walls().into_iter().map(|one| (one.driver, one.passed)).collect();
        assert_eq!(told, [("two".into(), true), ("one".into(), false)]);
        // What was put right is.
        records.keep(&Report { driver: "one".into(), ..report("cc", now) }).unwrap();
        assert!(records.worst().unwrap().passed);
    }

    #[test]
    fn a_part_of_the_probes_and_a_weakened_sandbox_are_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::of(folder.path());
        records.keep(&Report { complete: false, ..report("aa", now_ms()) }).unwrap();
        records.keep(&Report { weakened: Some("x".into()), ..report("aa", now_ms()) }).unwrap();
        assert!(matches!(records.standing("aa", MAX_AGE), Standing::Missing));
    }

    #[test]
    fn what_contains_is_part_of_the_digest() {
        let program = Path::new("/proc/self/exe");
        let wall = |driver: &str, kernel: &str| DriverReport {
            driver: driver.into(),
            isolation: sloplet_policy::Isolation::Gvisor,
            unavailable: None,
            capabilities: vec![sloplet_policy::Capability::enforced(Feature::OwnKernel, kernel)],
        };
        let usual = wall("gvisor", "1");
        let of = |spec: &Spec, radius: &Radius| digest(spec, radius, &usual, program);
        let (spec, radius) = (Spec::default(), Radius::default());
        let same = of(&spec, &radius);
        assert_eq!(same, of(&Spec { hostname: "other".into(), ..spec.clone() }, &radius));
        let mut larger = spec.clone();
        larger.limits.memory = sloplet_policy::ByteSize::gib(4);
        let mounted = Spec { mounts: vec!["/srv:/srv".parse().unwrap()], ..spec.clone() };
        let protecting = Radius { env: vec!["KEY".into()], ..Radius::default() };
        for other in [
            of(&larger, &radius),
            of(&mounted, &radius),
            of(&spec, &protecting),
            digest(&spec, &radius, &wall("other", "1"), program),
            digest(&spec, &radius, &wall("gvisor", "2"), program),
        ] {
            assert_ne!(same, other);
        }
    }
}
