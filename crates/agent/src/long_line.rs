//! Shell lines that are longer than the kernel takes as one argument.
//!
//! Linux takes two mebibytes of arguments, but no single one of 128 KiB or more. For a line that a shell is given with `-c` there
//! is a way around that: the line travels in several arguments, and a short line before it puts them together again. The shell
//! then runs the same text with the same `$0` and the same parameters, and nothing has to be written to a file.

use std::ffi::CString;

/// The kernel's `MAX_ARG_STRLEN`, without the byte that ends an argument.
pub(crate) const LONGEST: usize = 128 * 1024 - 1;

/// Shells whose `-c` and `eval` are those of POSIX.
const SHELLS: [&[u8]; 8] = [b"sh", b"bash", b"dash", b"ash", b"ksh", b"mksh", b"zsh", b"busybox"];

/// Cuts a shell's line into arguments that the kernel takes, if it is too long for one; anything else stays as it is.
pub(crate) fn split(argv: Vec<CString>) -> Vec<CString> {
    let Some(at) = line_of(&argv).filter(|at| argv[*at].as_bytes().len() > LONGEST) else { return argv };
    let line = argv[at].as_bytes();
    // No smaller than need be: each is a parameter.
    let parts: Vec<CString> = line.chunks(LONGEST).flat_map(CString::new).collect();
    let words: String = (1..=parts.len()).map(|number| format!("${{{number}}}")).collect();
    // The words are put in before anything runs, so that the line sees only its own parameters; and on its own first line, so that
    // the numbers of lines stay.
    let Ok(joined) = CString::new(format!("eval \"shift {}; {words}\"", parts.len())) else { return argv };
    let name = argv.get(at + 1).unwrap_or(&argv[0]).clone();
    let (before, after) = (argv[..at].to_vec(), argv.iter().skip(at + 2).cloned());
    before.into_iter().chain([joined, name]).chain(parts).chain(after).collect()
}

/// Where the line stands that a shell was given with `-c`.
fn line_of(argv: &[CString]) -> Option<usize> {
    let name = argv.first()?.as_bytes();
    let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    let name = name.strip_prefix(b"-").unwrap_or(name);
    if !SHELLS.contains(&name) {
        return None;
    }
    let (mut given, mut words) = (false, argv.iter().enumerate().skip(1));
    if name == b"busybox" {
        words.next().filter(|(_, applet)| matches!(applet.as_bytes(), b"sh" | b"ash"))?;
    }
    while let Some((at, word)) = words.next() {
        match word.as_bytes() {
            b"-" | b"--" => return words.next().filter(|_| given).map(|(at, _)| at),
            [b'-', b'-', name @ ..] => {
                if matches!(name, b"rcfile" | b"init-file") {
                    words.next();
                }
            }
            [b'-' | b'+', flags @ ..] => {
                given |= word.as_bytes()[0] == b'-' && flags.contains(&b'c');
                // Their values are words of their own.
                if flags.ends_with(b"o") || flags.ends_with(b"O") {
                    words.next();
                }
            }
            _ => return given.then_some(at),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::*;

    fn words(words: &[&str]) -> Vec<CString> {
        words.iter().map(|word| CString::new(*word).unwrap()).collect()
    }

    fn run(argv: &[CString]) -> (String, Option<i32>) {
        // A part may end within a character.
        let texts: Vec<&OsStr> = argv.iter().map(|word| OsStr::from_bytes(word.as_bytes())).collect();
        let output = Command::new(texts[0]).args(&texts[1..]).output().unwrap();
        (String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(), output.status.code())
    }

    #[test]
    fn the_line_of_a_shell_is_found() {
        let line = |given: &[&str]| line_of(&words(given));
        assert_eq!(line(&["/bin/bash", "-l", "-c", "true"]), Some(3));
        assert_eq!(line(&["sh", "-ec", "true", "name", "a"]), Some(2));
        assert_eq!(line(&["-zsh", "-c", "true"]), Some(2));
        assert_eq!(line(&["bash", "-o", "pipefail", "-c", "true"]), Some(4));
        assert_eq!(line(&["bash", "-euo", "pipefail", "-c", "--", "-true"]), Some(5));
        assert_eq!(line(&["bash", "--norc", "--rcfile", "/x", "-c", "true"]), Some(5));
        assert_eq!(line(&["busybox", "sh", "-c", "true"]), Some(3));
        for other in [&["python3", "-c", "1"][..], &["bash", "script", "-c", "x"], &["bash", "-c"], &["bash"], &[]] {
            assert_eq!(line(other), None, "{other:?}");
        }
        assert_eq!(line(&["busybox", "ls", "-c", "x"]), None);
    }

    #[test]
    fn a_long_line_does_what_it_would_have_done() {
        let filler = format!("# {}\n", "é".repeat(LONGEST));
        // With `$0`, parameters, quotes, the number of a line, an exit code, and an end without a newline.
        let script = format!("{filler}echo \"$0|$#|$*\" 'a  b' \"$LINENO\"; exit 7");
        for shell in ["/bin/bash", "/bin/sh"] {
            for rest in [&[][..], &["name"], &["name", "one", "two words"]] {
                let given = [&[shell, "-c", &script][..], rest].concat();
                let cut = split(words(&given));
                assert!(cut.iter().all(|word| word.as_bytes().len() <= LONGEST) && cut.len() > given.len());
                let short = [&[shell, "-c", &script[filler.len()..]][..], rest].concat();
                let (said, code) = run(&words(&short));
                let same = said.replace("a  b 1", "a  b 2");
                assert_eq!(run(&cut), (same, code), "{shell} {rest:?}");
            }
        }
        // Nothing else is touched.
        for short in [&["/bin/sh", "-c", "true"][..], &["python3", "-c", &script]] {
            assert_eq!(split(words(short)), words(short));
        }
    }
}
