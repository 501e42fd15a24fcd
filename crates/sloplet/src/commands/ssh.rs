//! `sloplet ssh`: the usual client, told how to get there. It needs neither a port nor a key: the way is the server's own API,
//! and whoever may use that may log in.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::api::{Search, Server};
use crate::cli::Ssh;

/// What the server's key is known under, whatever address it has.
const ALIAS: &str = "sloplet";

pub async fn run(search: Search, options: Ssh) -> anyhow::Result<u8> {
    let Ssh { name, config, proxy, host_key, command } = options;
    if name.starts_with('-') || name.chars().any(|c| c.is_whitespace() || c.is_control() || "'\"%\\@".contains(c)) {
        bail!("'{}' is not the name of a sandbox", name.escape_default());
    }
    if proxy {
        let server = Server::find(&search).await?;
        let ours = |stream: BorrowedFd<'_>| anyhow::Ok(tokio::fs::File::from_std(stream.try_clone_to_owned()?.into()));
        server.ssh().await?.pipe(ours(std::io::stdin().as_fd())?, ours(std::io::stdout().as_fd())?).await?;
        return Ok(0);
    }
    if host_key {
        let info = Server::find(&search).await?.get("/info").await?;
        let key = info["ssh"]["host_key"].as_str().context("this server does not speak SSH")?;
        say!("{ALIAS} {key}");
        return Ok(0);
    }
    let program = std::env::current_exe().context("finding this program")?;
    let settings = settings(&program, &search.data, &name)?;
    if config {
        say!("Host {name}");
        for (setting, value) in settings {
            say!("  {setting} {value}");
        }
        return Ok(0);
    }
    let mut ssh = Command::new("ssh");
    for (setting, value) in settings {
        ssh.arg("-o").arg(format!("{setting}={value}"));
    }
    // Options end here, whatever the command begins with.
    let failed = ssh.arg("--").arg(&name).args(&command).exec();
    match failed.kind() {
        ErrorKind::NotFound => bail!("there is no 'ssh' here: install OpenSSH's client, or use 'sloplet shell {name}'"),
        _ => Err(failed).context("starting ssh"),
    }
}

/// What ssh must be told.
fn settings(program: &Path, data: &Path, name: &str) -> anyhow::Result<Vec<(&'static str, String)>> {
    let data = std::path::absolute(data)?;
    let words = |last: &[&str]| {
        let mut words = vec![quoted(program)?, "--data".to_owned(), quoted(&data)?];
        words.extend(last.iter().map(|word| (*word).to_owned()));
        anyhow::Ok(words.join(" "))
    };
    Ok(vec![
        ("HostName", ALIAS.to_owned()),
        ("User", name.to_owned()),
        ("ProxyCommand", words(&["ssh", "--proxy", name])?),
        ("HostKeyAlias", ALIAS.to_owned()),
        ("KnownHostsCommand", words(&["ssh", "--host-key", name])?),
        ("StrictHostKeyChecking", "yes".to_owned()),
        ("UserKnownHostsFile", "none".to_owned()),
        ("GlobalKnownHostsFile", "none".to_owned()),
        // The way there was opened with an API key, or by this user: ssh's own keys are not needed, and not shown.
        ("PubkeyAuthentication", "no".to_owned()),
        ("PasswordAuthentication", "no".to_owned()),
        ("KbdInteractiveAuthentication", "no".to_owned()),
        ("ForwardAgent", "no".to_owned()),
    ])
}

/// A path as both a shell and ssh read it.
fn quoted(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().filter(|text| !text.contains(['"', '\\', '$', '`', '\n']));
    let text = text.with_context(|| format!("ssh cannot be told of the path {}", PathBuf::from(path).display()))?;
    Ok(format!("\"{}\"", text.replace('%', "%%")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_or_refused() {
        assert_eq!(quoted(Path::new("/a b/100%")).unwrap(), "\"/a b/100%%\"");
        for bad in ["/a\"b", "/$HOME", "/`x`", "/a\nb", "/a\\b"] {
            assert!(quoted(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
