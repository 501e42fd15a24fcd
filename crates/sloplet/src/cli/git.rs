//! A repository that a sandbox begins with.

use std::str::FromStr;

use clap::Args;
use sloplet_policy::network::Rule;
use sloplet_policy::secret::{HostPattern, Place, SecretRule, Source, USUAL_USER};

/// The variable inside that stands for the token; what it holds is of no use to anybody.
const TOKEN: &str = "GIT_TOKEN";

/// A repository to begin with.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Git")]
pub struct Git {
    /// Clone a repository into the working folder: https://HOST/PATH, perhaps with #BRANCH. Its host can be reached then.
    #[arg(id = "git", long = "git", value_name = "URL")]
    pub repository: Option<Repository>,

    /// The token for that host: a variable's NAME, file:/PATH or cmd:PROGRAM. It is put into requests to that host on their
    /// way out and never enters the sandbox.
    #[arg(id = "git_token", long = "git-token", value_name = "SOURCE", requires = "git")]
    pub token: Option<Token>,

    /// Whose token it is, for hosts that want to know [default: x-access-token]
    #[arg(id = "git_user", long = "git-user", value_name = "USER", requires = "git_token")]
    pub user: Option<String>,

    /// Fetch only so many commits.
    #[arg(id = "git_depth", long = "git-depth", value_name = "NUMBER", requires = "git", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
}

impl Git {
    /// What must be reachable for it, and with which secret.
    pub fn reach(&self) -> anyhow::Result<(Option<Rule>, Option<SecretRule>)> {
        let Some(repository) = &self.repository else { return Ok((None, None)) };
        let host = &repository.host;
        let Some(Token(source)) = self.token.clone() else { return Ok((Some(host.parse()?), None)) };
        let secret = SecretRule {
            name: TOKEN.to_owned(),
            hosts: vec![host.parse::<HostPattern>()?],
            source,
            place: Place::Basic { user: self.user.clone().unwrap_or_else(|| USUAL_USER.into()) },
            prefix: None,
            http: false,
        };
        secret.check()?;
        Ok((Some(host.parse()?), Some(secret)))
    }
}

/// Where a token comes from, on this side.
#[derive(Debug, Clone)]
pub struct Token(Source);

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // As a secret is written; what is given may be the token itself, by mistake, so it is not repeated.
        let named = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
        let source = if named { format!("env:{text}") } else { text.to_owned() };
        let rule = format!("{TOKEN}={source}@example.com").parse::<SecretRule>();
        let hint =
            "write the NAME of a variable, env:NAME, file:/PATH or cmd:PROGRAM; the token itself is never given here";
        rule.map(|rule| Self(rule.source)).map_err(|_| hint.to_owned())
    }
}

/// A repository's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// Without a branch.
    pub url: String,
    /// The host, with its port if that is not 443.
    pub host: String,
    /// The folder that its clone is in.
    pub folder: String,
    /// What to check out, if it is not the usual branch.
    pub branch: Option<String>,
}

impl FromStr for Repository {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (url, branch) = text.split_once('#').map_or((text, None), |(url, branch)| (url, Some(branch.to_owned())));
        let Some(rest) = url.strip_prefix("https://") else {
            let meant = match url.split_once('@').and_then(|(_, rest)| rest.split_once(':')) {
                Some((host, path)) if !url.contains("://") => format!("https://{host}/{path}"),
                _ => "https://example.com/team/repo.git".to_owned(),
            };
            return Err(format!("a repository's address is like {meant}: tokens are only put into HTTPS"));
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') {
            return Err(
                "an address with a user or a token would be kept inside: leave it out, and use --git-token".into()
            );
        }
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let folder = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().trim_end_matches(".git");
        if !plain(host) || !plain(path) || matches!(folder, "" | "." | "..") || folder.starts_with('-') {
            return Err("a repository's address is like https://example.com/team/repo.git".into());
        }
        if let Some(branch) = branch.as_deref().filter(|branch| !plain(branch) || branch.starts_with('-')) {
            return Err(format!("'{}' is no branch", branch.escape_debug()));
        }
        let (url, host, folder) = (url.to_owned(), host.to_ascii_lowercase(), folder.to_owned());
        Ok(Self { url, host: host.strip_suffix(":443").map_or(host.clone(), str::to_owned), folder, branch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_wrong_ones_refused_with_what_is_meant() {
        let found: Repository = "https://Example.com:8443/team/repo.git#next/one".parse().unwrap();
        assert_eq!(found.host, "example.com:8443");
        assert_eq!((found.folder.as_str(), found.branch.as_deref()), ("repo", Some("next/one")));
        for (text, hint) in [
            ("git@example.com:team/repo.git", "https://example.com/team/repo.git"),
            ("http://example.com/r", "HTTPS"),
            ("https://me:secret@example.com/r", "--git-token"),
            ("https://example.com", "is like"),
            ("https://example.com/..", "is like"),
            ("https://example.com/-x", "is like"),
            ("https://example.com/r#--upload-pack=x", "no branch"),
        ] {
            let error = text.parse::<Repository>().unwrap_err();
            assert!(error.contains(hint) && !error.contains("secret@"), "{text}: {error}");
        }
    }

    #[test]
    fn a_token_is_never_given_itself() {
        assert!("GITHUB_TOKEN".parse::<Token>().is_ok() && "file:/run/token".parse::<Token>().is_ok());
        let error = "ghp_abcdef".parse::<Token>().unwrap_err();
        assert!(error.contains("NAME") && !error.contains("ghp_abcdef"), "{error}");
    }
}
