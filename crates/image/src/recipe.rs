//! The images that sloplet builds itself: which packages they have, what is added to them, and what runs in them.

use crate::digest::sha256_hex;
use crate::{interpreter, machine};

/// Name of the image with the tools that agents expect.
pub const BASE_NAME: &str = "base";

/// Name of the image with the code interpreter.
pub const CODE_INTERPRETER_NAME: &str = "code-interpreter";

/// Name of the image of a whole machine.
pub const MACHINE_NAME: &str = "debian-machine";

/// An image that can be built from the host's own archive.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// Name of the image.
    pub name: &'static str,
    /// The tools that it has in common with others.
    pub(crate) tools: &'static [&'static str],
    /// Packages besides those.
    pub(crate) packages: &'static [&'static str],
    /// Files by their absolute path inside.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// A shell script that runs last, its `$1` the new root; empty for none.
    pub(crate) finish: &'static str,
    /// See [`crate::ImageConfig::start`].
    pub(crate) start: Option<&'static str>,
    /// See [`crate::ImageConfig::ready`].
    pub(crate) ready: Option<&'static str>,
}

const BASE_PACKAGES: &[&str] = &[
    "bash",
    "ca-certificates",
    "curl",
    "git",
    "iproute2",
    "less",
    "openssh-client",
    "procps",
    "python-is-python3",
    "python3",
    "python3-pip",
    "python3-venv",
    "ripgrep",
    "sudo",
    "unzip",
    "xz-utils",
];

const RECIPES: &[Recipe] = &[
    Recipe { name: BASE_NAME, tools: BASE_PACKAGES, packages: &[], files: &[], finish: "", start: None, ready: None },
    Recipe {
        name: CODE_INTERPRETER_NAME,
        tools: BASE_PACKAGES,
        packages: interpreter::PACKAGES,
        files: interpreter::FILES,
        finish: interpreter::FINISH,
        start: Some(interpreter::START),
        ready: Some(interpreter::READY),
    },
    Recipe {
        name: MACHINE_NAME,
        tools: machine::TOOLS,
        packages: machine::PACKAGES,
        files: machine::FILES,
        finish: machine::FINISH,
        start: None,
        ready: None,
    },
];

/// Run in every new root: `user` may become root without a password, which inside a sandbox is nobody outside, and `pip` may
/// install anywhere, because nothing inside is anybody's system.
const SET_UP: &str = "set -e
chroot \"$1\" useradd --create-home --uid 1000 --user-group --shell /bin/bash user
printf 'user ALL=(ALL) NOPASSWD: ALL\\n' > \"$1/etc/sudoers.d/user\"
chmod 0440 \"$1/etc/sudoers.d/user\"
mkdir -p \"$1/workspace\"
chroot \"$1\" chown 1000:1000 /workspace
rm -f \"$1\"/usr/lib/python3*/EXTERNALLY-MANAGED
rm -f \"$1/etc/apt/apt.conf.d/99mmdebstrap\" \"$1/etc/hostname\" \"$1/etc/resolv.conf\"
printf 'sloplet\\n' > \"$1/etc/hostname\"
: > \"$1/etc/resolv.conf\"
rm -rf \"$1\"/var/lib/apt/lists/* \"$1\"/var/cache/apt/*.bin \"$1\"/var/log/*.log
";

/// Ends a file within a script; no file has such a line.
const END_OF_FILE: &str = "sloplet-end-of-file";

impl Recipe {
    /// The recipe of this name.
    pub fn named(name: &str) -> Option<&'static Recipe> {
        RECIPES.iter().find(|recipe| recipe.name == name)
    }

    /// The names of all recipes.
    pub fn names() -> impl Iterator<Item = &'static str> {
        RECIPES.iter().map(|recipe| recipe.name)
    }

    /// Changes when what is built changes.
    pub fn fingerprint(&self) -> String {
        let parts = [self.package_list(), self.start.unwrap_or("").to_owned(), self.ready.unwrap_or("").to_owned()];
        sha256_hex(parts.into_iter().chain(self.scripts()).collect::<Vec<_>>().join("\0").as_bytes())
    }

    /// All packages, separated by commas.
    pub(crate) fn package_list(&self) -> String {
        self.tools.iter().chain(self.packages).copied().collect::<Vec<_>>().join(",")
    }

    /// Shell scripts to run in turn once the packages are there, each with the new root as its `$1`.
    ///
    /// Files travel inside of scripts: a builder without privileges may not read the caller's folders.
    pub(crate) fn scripts(&self) -> Vec<String> {
        let mut scripts = vec![SET_UP.to_owned()];
        for (path, content) in self.files {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            scripts.push(format!(
                "set -e; mkdir -p \"$1{folder}\"\ncat > \"$1{path}\" <<'{END_OF_FILE}'\n{content}{END_OF_FILE}\n"
            ));
        }
        if !self.finish.is_empty() {
            scripts.push(self.finish.to_owned());
        }
        scripts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_every_recipe_can_be_written_by_a_script() {
        for recipe in RECIPES {
            for (path, content) in recipe.files {
                assert!(path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'$'));
                assert!(content.is_empty() || content.ends_with('\n'), "{path} lacks its last line's end");
                assert!(!content.lines().any(|line| line == END_OF_FILE), "{path}");
            }
            // The kernel's limit on one argument.
            assert!(recipe.scripts().iter().all(|script| script.len() < 128 * 1024));
        }
    }

    #[test]
    fn a_script_writes_the_file_that_it_holds() {
        let root = tempfile::tempdir().unwrap();
        let recipe =
            Recipe { files: &[("/usr/lib/thing/a.py", "print('$HOME `x` \\n')\n"), ("/empty", "")], ..RECIPES[0] };
        for script in &recipe.scripts()[1..] {
            let status = std::process::Command::new("sh").args(["-c", script, "exec"]).arg(root.path()).status();
            assert!(status.unwrap().success());
        }
        let written = std::fs::read_to_string(root.path().join("usr/lib/thing/a.py")).unwrap();
        assert_eq!(written, "print('$HOME `x` \\n')\n");
        assert_eq!(std::fs::read_to_string(root.path().join("empty")).unwrap(), "");
    }

    #[test]
    fn fingerprints_tell_recipes_apart() {
        assert_ne!(RECIPES[0].fingerprint(), RECIPES[1].fingerprint());
        let changed = Recipe { files: &[("/a", "b\n")], ..RECIPES[0] };
        assert_ne!(changed.fingerprint(), RECIPES[0].fingerprint());
        assert_eq!(Recipe::names().collect::<Vec<_>>(), ["base", "code-interpreter", "debian-machine"]);
        assert!(Recipe::named("nothing").is_none());
    }
}
