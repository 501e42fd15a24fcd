//! The steps of a recipe.

use std::collections::BTreeMap;

use super::names::shown;
use crate::life::LifeError;

/// Steps of one recipe.
pub const MAX_STEPS: usize = 512;

/// Bytes of one argument.
const MAX_ARGUMENT: usize = 128 * 1024;

/// Arguments of one step.
const MAX_ARGUMENTS: usize = 1024;

/// A step as a client writes it.
#[derive(Debug, Clone, Default)]
pub struct StepRequest {
    /// `COPY`, `ENV`, `RUN`, `WORKDIR` or `USER`.
    pub kind: String,
    /// What that means depends on the kind.
    pub args: Vec<String>,
    /// What was uploaded for a `COPY`.
    pub files_hash: Option<String>,
    /// Do it and all that follow, whatever earlier builds have made.
    pub force: bool,
}

/// What is done in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Puts uploaded files into the image.
    Copy {
        /// A path or a pattern in what was uploaded.
        source: String,
        /// Where to.
        target: String,
        /// Whose they are then; the current user's if absent.
        user: Option<String>,
        /// Permission bits, in octal digits.
        mode: Option<String>,
        /// What was uploaded.
        files: String,
    },
    /// Sets variables for later steps and for sandboxes.
    Env(Vec<(String, String)>),
    /// Runs a command in a shell.
    Run {
        /// The command.
        command: String,
        /// Who runs it; the current user if absent.
        user: Option<String>,
    },
    /// Sets where later steps, and commands in sandboxes, start.
    Workdir(String),
    /// Sets who runs later steps, and commands in sandboxes.
    User(String),
}

impl Step {
    /// Understands a step.
    pub fn parse(request: &StepRequest) -> Result<Self, LifeError> {
        let bad = |what: &str| Err(LifeError::Invalid(format!("step {}: {what}", shown(&request.kind))));
        if request.args.len() > MAX_ARGUMENTS || request.args.iter().any(|arg| arg.len() > MAX_ARGUMENT) {
            return bad("its arguments are too long or too many");
        }
        if request.args.iter().any(|arg| arg.contains('\0')) {
            return bad("an argument contains a zero byte");
        }
        let given = |index: usize| request.args.get(index).filter(|arg| !arg.is_empty()).cloned();
        match request.kind.as_str() {
            "COPY" => {
                let (Some(source), Some(target)) = (given(0), given(1)) else {
                    return bad("it needs a source and a target");
                };
                let Some(files) = request.files_hash.clone() else { return bad("it needs the hash of its files") };
                let mode = given(3);
                let octal = |mode: &String| mode.len() <= 5 && mode.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
                if !mode.as_ref().is_none_or(octal) {
                    return bad("its mode is not an octal number");
                }
                Ok(Self::Copy { source, target, user: checked_user(given(2))?, mode, files })
            }
            "ENV" => {
                let (pairs, rest) = request.args.as_chunks::<2>();
                if pairs.is_empty() || !rest.is_empty() {
                    return bad("it needs names, each with a value");
                }
                if let Some([name, _]) = pairs.iter().find(|[name, _]| !is_name(name)) {
                    return bad(&format!("'{}' cannot name a variable", shown(name)));
                }
                Ok(Self::Env(pairs.iter().map(|[name, value]| (name.clone(), value.clone())).collect()))
            }
            "RUN" => match given(0) {
                Some(command) => Ok(Self::Run { command, user: checked_user(given(1))? }),
                None => bad("it needs a command"),
            },
            "WORKDIR" => match given(0) {
                Some(path) => Ok(Self::Workdir(path)),
                None => bad("it needs a path"),
            },
            "USER" => match checked_user(given(0))? {
                Some(user) => Ok(Self::User(user)),
                None => bad("it needs a name"),
            },
            _ => bad("there is no such kind: use COPY, ENV, RUN, WORKDIR or USER"),
        }
    }

    /// One line for the log.
    pub fn describe(&self) -> String {
        match self {
            Self::Copy { source, target, .. } => format!("COPY {source} {target}"),
            Self::Env(pairs) => {
                format!("ENV {}", pairs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" "))
            }
            Self::Run { command, .. } => format!("RUN {command}"),
            Self::Workdir(path) => format!("WORKDIR {path}"),
            Self::User(user) => format!("USER {user}"),
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 256 && !text.contains(['=', '\n'])
}

/// Whoever it is exists or not; here it only must not be something else altogether, such as an option.
fn checked_user(user: Option<String>) -> Result<Option<String>, LifeError> {
    let fits = |user: &String| user.len() <= 64 && !user.starts_with('-') && !user.contains(char::is_whitespace);
    match user {
        Some(user) if !fits(&user) => Err(LifeError::Invalid(format!("'{}' cannot be a user", shown(&user)))),
        user => Ok(user),
    }
}

/// A path as seen from a folder.
pub fn absolute(folder: &str, path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", folder.trim_end_matches('/')) }
}

/// Replaces `$NAME` and `${NAME}` by the variables' values; unknown ones by nothing. `\$` is a dollar sign.
pub fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['$', '\\']) {
        expanded.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("\\$") {
            expanded.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('\\') {
            expanded.push('\\');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix("${").and_then(|inner| inner.split_once('}')) {
            expanded.push_str(variables.get(name).map_or("", String::as_str));
            rest = after;
        } else {
            let name = &rest[1..];
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
            let (name, after) = name.split_at(end);
            match name {
                "" => expanded.push('$'),
                name => expanded.push_str(variables.get(name).map_or("", String::as_str)),
            }
            rest = after;
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(kind: &str, args: &[&str], hash: Option<&str>) -> Result<Step, LifeError> {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Step::parse(&StepRequest { kind: kind.into(), args, files_hash: hash.map(Into::into), force: false })
    }

    #[test]
    fn steps_are_understood() {
        let run = |user: Option<&str>| Step::Run { command: "ls".into(), user: user.map(Into::into) };
        assert_eq!(step("RUN", &["ls"], None).unwrap(), run(None));
        assert_eq!(step("RUN", &["ls", ""], None).unwrap(), run(None));
        assert_eq!(step("RUN", &["ls", "root"], None).unwrap(), run(Some("root")));
        let pairs = vec![("A".to_owned(), "1".to_owned()), ("B".to_owned(), String::new())];
        assert_eq!(step("ENV", &["A", "1", "B", ""], None).unwrap(), Step::Env(pairs));
        let copy = step("COPY", &["a", "b", "", "0644"], Some("00ff")).unwrap();
        assert!(matches!(copy, Step::Copy { user: None, mode: Some(mode), .. } if mode == "0644"));
    }

    #[test]
    fn nonsense_is_refused() {
        let cases: [(&str, &[&str], Option<&str>); 10] = [
            ("COPY", &["a", "b"], None),
            ("COPY", &["a"], Some("00")),
            ("COPY", &["a", "b", "", "+x"], Some("00")),
            ("COPY", &["a", "b", "--reference=/x"], Some("00")),
            ("ENV", &["A"], None),
            ("ENV", &["A=B", "1"], None),
            ("RUN", &[], None),
            ("RUN", &["a\0b"], None),
            ("USER", &["-x"], None),
            ("EXPOSE", &["80"], None),
        ];
        for (kind, args, hash) in cases {
            assert!(step(kind, args, hash).is_err(), "{kind} {args:?}");
        }
    }

    #[test]
    fn variables_are_replaced_as_a_shell_would() {
        let variables = BTreeMap::from([("PATH".to_owned(), "/bin".to_owned()), ("A".to_owned(), "1".to_owned())]);
        for (text, wanted) in [
            ("/x:$PATH", "/x:/bin"),
            ("${A}b$A", "1b1"),
            ("$NONE.", "."),
            ("a\\$A", "a$A"),
            ("5$", "5$"),
            ("${open", "${open"),
            ("c:\\dir", "c:\\dir"),
            ("é$Aé", "é1é"),
        ] {
            assert_eq!(expand(text, &variables), wanted, "{text}");
        }
    }

    #[test]
    fn relative_paths_begin_in_the_working_directory() {
        assert_eq!(absolute("/home/user", "a/b"), "/home/user/a/b");
        assert_eq!(absolute("/", "a"), "/a");
        assert_eq!(absolute("/home", "/x"), "/x");
    }
}
