//! Builds the image of a recipe: a small Debian or Ubuntu out of the host's own archive.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::ImageError;
use crate::image::{Image, ImageConfig, Progress, ProgressFn};
use crate::recipe::Recipe;
use crate::store::Store;

/// Builds the image of a recipe and stores it, replacing an older one. Takes a minute or so and needs the distribution's archive.
///
/// Uses `mmdebstrap` (unprivileged too, when the caller has subordinate ids) or, as root, `debootstrap`.
pub fn build_image(store: &Store, recipe: &Recipe, progress: ProgressFn<'_>) -> Result<Image, ImageError> {
    let release = Release::of_host()?;
    let packages = recipe.package_list();
    if let Some(program) = find_program("mmdebstrap") {
        let mut command = Command::new(program);
        command.args(["--variant=minbase", "--format=tar", &format!("--include={packages}")]);
        // An archive may be out of reach for a moment.
        command.arg("--aptopt=Acquire::Retries \"5\"");
        // A hook of several words is run as `sh -c <hook> exec <root>`, so its `$1` is the new root.
        command.args(recipe.scripts().iter().map(|script| format!("--customize-hook={script}")));
        command.arg(&release.codename).arg("-");
        if let Some(sources) = &release.sources {
            command.arg(sources);
        }
        return stream("mmdebstrap", command, store, recipe, progress);
    }
    if let Some(program) = find_program("debootstrap") {
        if !rustix::process::geteuid().is_root() {
            let reason = "only root can build with debootstrap; `apt-get install mmdebstrap` for building as a user";
            return Err(ImageError::Program { program: "debootstrap", reason: reason.to_owned() });
        }
        // debootstrap leaves a directory, which `tar` turns into the stream that is imported.
        let staging = store.staging()?;
        let root = staging.path().join("root");
        let script = "set -e; program=$1 packages=$2 codename=$3 root=$4; shift 4
                      \"$program\" --variant=minbase --include=\"$packages\" \"$codename\" \"$root\" >&2
                      for step; do sh -c \"$step\" set-up \"$root\" >&2; done
                      exec tar --one-file-system --numeric-owner -C \"$root\" -cf - .";
        let mut command = Command::new("sh");
        command.args(["-c", script, "build"]).arg(program).args([&packages, &release.codename]).arg(&root);
        command.args(recipe.scripts());
        return stream("debootstrap", command, store, recipe, progress);
    }
    let reason = format!(
        "not installed; `apt-get install mmdebstrap`, or import any rootfs with `sloplet image import <tar> --name {}`",
        recipe.name
    );
    Err(ImageError::Program { program: "mmdebstrap", reason })
}

/// Runs a program whose standard output is the rootfs as a tar.
fn stream(
    program: &'static str,
    mut command: Command,
    store: &Store,
    recipe: &Recipe,
    progress: ProgressFn<'_>,
) -> Result<Image, ImageError> {
    let failed = |reason: String| ImageError::Program { program, reason };
    let mut child = command
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C.UTF-8")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .envs(std::env::vars().filter(|(name, _)| is_proxy_setting(name)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(format!("cannot be started: {e}")))?;
    let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(failed("has no output".to_owned()));
    };
    std::thread::scope(|scope| {
        let last_lines = scope.spawn(move || {
            let mut last = std::collections::VecDeque::new();
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                progress(Progress::Message(line.clone()));
                // What it was about to do is no reason why it failed.
                if line.starts_with("I: ") {
                    continue;
                }
                last.push_back(line);
                if last.len() > 5 {
                    last.pop_front();
                }
            }
            last.into_iter().collect::<Vec<_>>().join("; ")
        });
        let config = ImageConfig {
            env: vec![
                ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
                ("LANG".to_owned(), "C.UTF-8".to_owned()),
            ],
            workdir: Some("/home/user".to_owned()),
            user: Some("user".to_owned()),
            entrypoint: Vec::new(),
            cmd: vec!["/bin/bash".to_owned()],
            start: recipe.start.map(str::to_owned),
            ready: recipe.ready.map(str::to_owned),
        };
        // A program that fails half-way has written half a tar: nothing is stored before it ended well.
        let mut status = None;
        let imported = store.import_stream_with(output, recipe.name, config, progress, || {
            let ended = child.wait().map_err(|e| failed(e.to_string()))?;
            status = Some(ended);
            if ended.success() { Ok(()) } else { Err(failed(format!("failed with {ended}"))) }
        });
        if imported.is_err() && status.is_none() {
            let _ = child.kill();
            status = child.wait().ok();
        }
        let said = last_lines.join().unwrap_or_default();
        match status {
            Some(ended) if ended.code().is_some_and(|code| code != 0) => Err(failed(format!("{ended}: {said}"))),
            _ => imported,
        }
    })
}

fn is_proxy_setting(name: &str) -> bool {
    matches!(name.to_ascii_lowercase().as_str(), "http_proxy" | "https_proxy" | "no_proxy")
}

fn find_program(name: &str) -> Option<PathBuf> {
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.is_file())
}

/// Which distribution the host runs and where its packages come from.
struct Release {
    codename: String,
    /// The distribution's own list; lists of other vendors stay out.
    sources: Option<PathBuf>,
}

impl Release {
    fn of_host() -> Result<Release, ImageError> {
        let path = Path::new("/etc/os-release");
        let text = std::fs::read_to_string(path).map_err(|e| ImageError::source(path, e))?;
        let value = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        let codename = value.map(|v| v.trim_matches('"').to_owned()).filter(|v| !v.is_empty());
        let Some(codename) = codename else {
            let reason = "this host is no Debian or Ubuntu release; import a rootfs instead".to_owned();
            return Err(ImageError::Program { program: "mmdebstrap", reason });
        };
        let lists = ["sources.list.d/debian.sources", "sources.list.d/ubuntu.sources", "sources.list"];
        let holds_packages = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().any(|l| l.starts_with("deb ") || l.starts_with("Types:"))
        };
        let sources = lists.iter().map(|l| Path::new("/etc/apt").join(l)).find(holds_packages);
        Ok(Release { codename, sources })
    }
}
