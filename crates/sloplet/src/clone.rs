//! A repository cloned inside: the same for sandboxes of this process and those of a server.

use anyhow::bail;

use crate::cli::{Git, Repository};
use crate::progress::ProgressLine;
use crate::terminal::harmless;

/// The variables that git gets: it must not ask anybody.
pub const VARIABLE: (&str, &str) = ("GIT_TERMINAL_PROMPT", "0");

/// What came of a command.
pub struct Done {
    pub good: bool,
    pub stdout: String,
    pub stderr: String,
}

/// Runs commands in a sandbox to their end.
pub trait Inside {
    async fn run(&self, words: Vec<String>) -> anyhow::Result<Done>;
}

/// Clones the repository of these options, if they name one, into the working folder; returns where it is. Nothing of how its
/// host is talked to stays there but its address.
pub async fn clone(inside: &impl Inside, options: &Git) -> anyhow::Result<Option<String>> {
    let Some(repository) = &options.repository else { return Ok(None) };
    let line = ProgressLine::of(&format!("cloning {}", repository.url));
    let done = in_parts(inside, repository, options.depth).await;
    line.clear();
    let (folder, left_out) = done?;
    if let Some(why) = left_out {
        complain!("sloplet: note: not all submodules could be cloned: {why}");
    }
    Ok(Some(folder))
}

/// Where it is, and why some submodules are not.
async fn in_parts(
    inside: &impl Inside,
    repository: &Repository,
    depth: Option<u32>,
) -> anyhow::Result<(String, Option<String>)> {
    let git = |words: &[&str]| {
        let words = ["git"].iter().chain(words).map(|&word| word.to_owned()).collect();
        inside.run(words)
    };
    let depth = depth.map(|depth| format!("--depth={depth}"));
    let branch = repository.branch.as_ref().map(|branch| format!("--branch={branch}"));
    let mut words = vec!["clone", "--quiet"];
    words.extend(depth.iter().chain(&branch).map(String::as_str));
    words.extend(["--", &repository.url, &repository.folder]);
    let cloned = git(&words).await?;
    if !cloned.good {
        bail!("cannot clone {}: {}", repository.url, harmless(cloned.stderr.trim()));
    }
    let at = ["-C", &repository.folder];
    let more = git(&[&at[..], &["submodule", "--quiet", "update", "--init", "--recursive"]].concat()).await?;
    let top = git(&[&at[..], &["rev-parse", "--show-toplevel"]].concat()).await?;
    if !top.good {
        bail!("cannot find the clone of {}: {}", repository.url, harmless(top.stderr.trim()));
    }
    let folder = top.stdout.strip_suffix('\n').unwrap_or(&top.stdout).to_owned();
    Ok((folder, (!more.good).then(|| harmless(more.stderr.trim()))))
}
