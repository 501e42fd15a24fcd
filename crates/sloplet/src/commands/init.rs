//! `sloplet init`

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sloplet_engine::Trust;
use sloplet_policy::file::{File, NAME};
use sloplet_policy::protect::KEYS;

use crate::setup;

/// Words in names of variables that hold secrets.
const SECRET_WORDS: [&str; 9] =
    ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "PRIVATE", "DSN", "AUTH"];

/// How values begin that are secrets whatever their name.
const SECRET_STARTS: [&str; 10] =
    ["sk-", "sk_live", "rk_live", "ghp_", "gho_", "github_pat_", "xoxb-", "AKIA", "-----BEGIN", "glpat-"];

/// Where people keep keys in the working directory.
const LOCAL_PATHS: [&str; 5] = [".env", ".env.local", ".env.production", "secrets", "credentials.json"];

pub fn run(data: Option<PathBuf>, yes: bool, force: bool) -> anyhow::Result<u8> {
    let path = Path::new(NAME);
    if path.exists() && !force {
        bail!("{NAME} is there already: edit it, or replace it with --force");
    }
    let found = Found::look();
    let ask = !yes && io::stdin().is_terminal();
    if !yes && !ask {
        bail!("there is nobody to ask: decide with --yes");
    }
    let choose = |what: &str, proposed: &BTreeSet<String>| -> anyhow::Result<BTreeSet<String>> {
        if !ask {
            return Ok(proposed.clone());
        }
        let shown: Vec<&str> = proposed.iter().map(String::as_str).collect();
        let answer = question(&format!("{what} [{}]", shown.join(" ")))?;
        Ok(if answer.is_empty() {
            proposed.clone()
        } else {
            answer.split_whitespace().filter(|word| *word != "-").map(Into::into).collect()
        })
    };
    let paths = choose("Files and folders that no sandbox may see ('-' for none)", &found.paths)?;
    let env = choose("Variables that no sandbox may get", &found.env)?;
    let hosts = choose("Hosts that no sandbox may reach", &found.hosts)?;
    // Nothing is allowed that nobody asked for.
    let allow = choose("Hosts that sandboxes may reach, such as api.anthropic.com:443", &BTreeSet::new())?;
    let one = |what: &str, usual: &str| -> anyhow::Result<String> {
        let answer = if ask { question(&format!("{what} [{usual}]"))? } else { String::new() };
        Ok(if answer.is_empty() { usual.to_owned() } else { answer })
    };
    let budget = one("Dollars for LLM calls of a sandbox ('-' for no cap)", "-")?;
    let (memory, timeout) = (one("Memory of a sandbox", "2GiB")?, one("Its time", "1h")?);
    let protected = [&hosts, &paths, &env];
    let text = written(protected, &allow, Some(budget.as_str()).filter(|budget| *budget != "-"), &memory, &timeout);
    if let Err(message) = File::parse(&text) {
        bail!("that cannot be written: {message}");
    }
    fs::write(path, text).with_context(|| format!("cannot write {NAME}"))?;
    Trust::of(&setup::places(data)?.data).vouch(path)?;
    say!("wrote {NAME}: {} paths, {} variables and {} hosts are protected", paths.len(), env.len(), hosts.len());
    say!("next: 'sloplet verify', then 'sloplet run --verified -- COMMAND'");
    Ok(0)
}

fn question(text: &str) -> anyhow::Result<String> {
    complain!("{text}: ");
    io::stderr().flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// What is likely to be worth protecting on this machine. Names only: values are looked at and never kept.
struct Found {
    paths: BTreeSet<String>,
    env: BTreeSet<String>,
    hosts: BTreeSet<String>,
}

impl Found {
    fn look() -> Self {
        let home = std::env::home_dir();
        let mut paths: BTreeSet<String> = KEYS
            .iter()
            .filter(|name| home.as_ref().is_some_and(|home| home.join(name).exists()))
            .map(|name| format!("~/{name}"))
            .collect();
        let here = std::env::current_dir().unwrap_or_default();
        paths.extend(
            LOCAL_PATHS
                .iter()
                .map(|name| here.join(name))
                .filter(|path| path.exists())
                .map(|path| path.display().to_string()),
        );
        let variables: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let env =
            variables.iter().filter(|(name, value)| is_secret(name, value)).map(|(name, _)| name.clone()).collect();
        let mut hosts = BTreeSet::new();
        hosts.extend(variables.iter().filter_map(|(_, value)| host_of_url(value)).filter(|host| is_internal(host)));
        hosts.extend(hosts_of_table(&fs::read_to_string("/etc/hosts").unwrap_or_default()));
        hosts.extend(search_domains(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default()));
        let remotes = fs::read_to_string(".git/config").unwrap_or_default();
        hosts.extend(
            remotes
                .lines()
                .filter_map(|line| line.trim().strip_prefix("url = "))
                .filter_map(host_of_url)
                .filter(|host| is_internal(host)),
        );
        Self { paths, env, hosts }
    }
}

fn is_secret(name: &str, value: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let named =
        SECRET_WORDS.iter().any(|word| upper.split('_').any(|part| part == *word || part == format!("{word}S")));
    let url_with_password = value.contains("://")
        && value.split('@').next().is_some_and(|start| start.len() < value.len() && start.matches(':').count() > 1);
    !value.is_empty() && (named || url_with_password || SECRET_STARTS.iter().any(|start| value.starts_with(start)))
}

/// The host of `scheme://user@host:port/…` and of `user@host:path`.
fn host_of_url(text: &str) -> Option<String> {
    let rest = match text.split_once("://") {
        Some((_, rest)) => rest,
        None => text
            .split_once('@')
            .filter(|(user, rest)| !user.contains(' ') && rest.contains(':'))
            .map(|(_, rest)| rest)?,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?.split(':').next()?;
    let plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    (plain && !host.is_empty()).then(|| host.to_ascii_lowercase())
}

/// Whether a name or address is one of an internal network.
fn is_internal(host: &str) -> bool {
    if let Ok(address) = host.parse::<std::net::Ipv4Addr>() {
        return address.is_private();
    }
    let ends = [".internal", ".local", ".corp", ".lan", ".intranet", ".home.arpa", ".private"];
    host != "localhost" && (!host.contains('.') || ends.iter().any(|end| host.ends_with(end)))
}

/// Names of a hosts table that lead elsewhere.
fn hosts_of_table(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.split('#').next());
    let entries = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let address: std::net::IpAddr = words.next()?.parse().ok()?;
        let elsewhere = !address.is_loopback() && !address.is_unspecified() && !address.is_multicast();
        elsewhere.then(|| words.map(str::to_ascii_lowercase).collect::<Vec<_>>())
    });
    let own = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    entries.flatten().filter(|name| *name != own && !name.starts_with("ip6-") && !name.contains('*')).collect()
}

fn search_domains(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("search ").or_else(|| line.strip_prefix("domain ")));
    lines
        .flat_map(str::split_whitespace)
        .filter(|name| *name != "." && is_internal(&format!("x.{name}")))
        .map(|name| format!("*.{name}"))
        .collect()
}

/// The file. Of what is protected first hosts, then paths, then variables.
fn written(
    [hosts, paths, env]: [&BTreeSet<String>; 3],
    allow: &BTreeSet<String>,
    dollars: Option<&str>,
    memory: &str,
    timeout: &str,
) -> String {
    let list = |names: &BTreeSet<String>| {
        let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        format!("[{}]", quoted.join(", "))
    };
    let budget = dollars.map(|dollars| format!("\n# What a sandbox may spend.\n[budget]\nusd = {dollars:?}\n"));
    format!(
        "# What a sandbox is. The same names as flags of 'sloplet run'; flags win.\n\
         [sandbox]\nimage = \"host\"\nisolation = \"container\"\nmemory = {memory:?}\ncpus = 2\npids = 512\ndisk = \"1GiB\"\ntimeout = {timeout:?}\n\n\
         # The blast radius: what no sandbox may ever reach, see or be given. 'sloplet verify' tries.\n\
         [protect]\nhosts = {}\npaths = {}\nenv = {}\n\n\
         # What a sandbox may reach, and nothing else.\n\
         [network]\nallow = {}\n{}",
        list(hosts),
        list(paths),
        list(env),
        list(allow),
        budget.unwrap_or_default()
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_name_and_by_value() {
        for (name, value) in
            [("STRIPE_KEY", "x"), ("GITHUB_TOKEN", "y"), ("FOO", "ghp_abc"), ("DATABASE", "postgres://me:pw@db/x")]
        {
            assert!(is_secret(name, value), "{name}");
        }
        for (name, value) in
            [("PATH", "/bin"), ("KEYBOARD", "de"), ("HOME", "/root"), ("TOKEN", ""), ("PROXY", "http://proxy:3128")]
        {
            assert!(!is_secret(name, value), "{name}");
        }
    }

    #[test]
    fn internal_hosts_are_found_in_urls_and_tables() {
        assert_eq!(host_of_url("postgres://me:pw@db.internal:5432/x").unwrap(), "db.internal");
        assert_eq!(host_of_url("git@git.corp:team/repo.git").unwrap(), "git.corp");
        assert!(is_internal("db.internal") && is_internal("10.1.2.3") && is_internal("billing"));
        assert!(!is_internal("api.example.com") && !is_internal("localhost"));
        assert_eq!(
            hosts_of_table("127.0.0.1 localhost\n10.0.0.5 orders orders.internal # x\n")
                .into_iter()
                .collect::<Vec<_>>(),
            ["orders", "orders.internal"]
        );
        assert_eq!(
            search_domains("search corp.internal example.com\n").into_iter().collect::<Vec<_>>(),
            ["*.corp.internal"]
        );
    }

    #[test]
    fn what_is_written_reads_back() {
        let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<_>>();
        let (hosts, paths, env) = (set(&["db.internal"]), set(&["~/.ssh", "~/.aws"]), set(&["A_KEY", "B", "C"]));
        let allow = set(&["api.anthropic.com:443"]);
        let text = written([&hosts, &paths, &env], &allow, Some("2.50"), "1GiB", "30m");
        let file = File::parse(&text).unwrap();
        assert_eq!((file.protect.hosts.len(), file.protect.paths.len(), file.protect.env.len()), (1, 2, 3));
        assert_eq!((file.network.allow.len(), file.budget.usd.unwrap().micros), (1, 2_500_000));
        let file = File::parse(&written([&hosts, &paths, &env], &set(&[]), None, "1GiB", "30m")).unwrap();
        assert!(file.network.allow.is_empty() && file.budget.usd.is_none());
    }
}
