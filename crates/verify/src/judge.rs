//! From answers to verdicts.

use std::collections::BTreeMap;

use rustix::io::Errno;

use crate::part::Answer;
use crate::probe::{Finding, Verdict};
use crate::report::Part;

/// What a wall may answer; anything else comes from the code behind it.
const REFUSALS: [Errno; 6] = [Errno::PERM, Errno::ACCESS, Errno::NOSYS, Errno::ROFS, Errno::NOENT, Errno::AFNOSUPPORT];

/// What was answered inside, and on whose behalf.
pub struct Inside<'a> {
    /// A user inside.
    pub user: &'a str,
    /// The answers to one probe.
    pub answers: Vec<&'a Answer>,
}

/// The verdict on a probe made of attempts.
///
/// Without root on the host (`root`), attempts that only root may make cannot be shown to work: they are told apart, and
/// the others decide.
pub fn judge(control: &[&Answer], inside: &[Inside<'_>], refusals: &[i32], root: bool) -> (Finding, Vec<Part>) {
    let mut parts = Vec::new();
    let (mut proven, mut unproven, mut needs_root) = (0, 0, 0);
    let (mut breaches, mut unclear) = (Vec::new(), Vec::new());
    let mut answered: BTreeMap<String, usize> = BTreeMap::new();
    for answer in control {
        let works = answer.did == Some(true);
        let mut part = Part {
            name: answer.part.clone(),
            optional: answer.optional,
            control: words(answer),
            works,
            inside: BTreeMap::new(),
            verdict: Verdict::Contained,
        };
        if works {
            proven += 1;
        } else if answer.optional {
            (part.verdict, unproven) = (Verdict::NotApplicable, unproven + 1);
        } else if !root && answer.errno.is_some_and(forbids) {
            (part.verdict, needs_root) = (Verdict::Inconclusive, needs_root + 1);
        } else {
            part.verdict = Verdict::Inconclusive;
            unclear.push(format!("{} does not work on the host either: {}", answer.part, words(answer)));
        }
        for Inside { user, answers } in inside {
            let Some(found) = answers.iter().find(|found| found.part == answer.part) else {
                part.verdict = part.verdict.max(Verdict::Inconclusive);
                unclear.push(format!("{} was not tried inside as {user}", answer.part));
                continue;
            };
            part.inside.insert((*user).to_owned(), words(found));
            match (found.did, found.errno) {
                (Some(true), _) => {
                    part.verdict = Verdict::Breach;
                    breaches.push(format!("{} as {user}: {}", answer.part, found.saw));
                }
                (None, _) => {
                    part.verdict = part.verdict.max(Verdict::Inconclusive);
                    unclear.push(format!("{} as {user}: {}", answer.part, found.saw));
                }
                (Some(false), Some(errno)) if works && !refused(errno, refusals) => {
                    part.verdict = part.verdict.max(Verdict::Inconclusive);
                    unclear.push(format!("{} as {user}: an odd answer: {}", answer.part, words(found)));
                }
                (Some(false), errno) => {
                    *answered.entry(errno.map_or_else(|| "nothing found".to_owned(), name)).or_default() += 1;
                }
            }
        }
        parts.push(part);
    }
    let mut shown = format!("{proven} of {} attempts take effect on the host", control.len());
    if needs_root > 0 {
        shown.push_str(&format!("; {needs_root} could be shown only by root"));
    }
    if unproven > 0 {
        shown.push_str(&format!("; {unproven} need what this host lacks"));
    }
    let finding = if !breaches.is_empty() {
        Finding::breach(shown, breaches.join("; "))
    } else if !unclear.is_empty() {
        Finding::inconclusive(shown, unclear.join("; "))
    } else if control.is_empty() {
        Finding::not_applicable("there is nothing of that kind on this host")
    } else if proven == 0 {
        Finding::inconclusive(shown, "no attempt could be shown to work on this host")
    } else {
        let answers: Vec<String> = answered.iter().map(|(what, count)| format!("{what} {count}×")).collect();
        Finding::contained(shown, answers.join(", "))
    };
    (finding, parts)
}

fn forbids(errno: i32) -> bool {
    [Errno::PERM, Errno::ACCESS].iter().any(|known| known.raw_os_error() == errno)
}

fn refused(errno: i32, also: &[i32]) -> bool {
    REFUSALS.iter().any(|known| known.raw_os_error() == errno) || also.contains(&errno)
}

fn words(answer: &Answer) -> String {
    match (answer.did, answer.errno) {
        (Some(true), _) => format!("took effect: {}", answer.saw),
        (Some(false), Some(errno)) => format!("refused: {}", name(errno)),
        (Some(false), None) => format!("found nothing: {}", answer.saw),
        (None, _) => format!("broken: {}", answer.saw),
    }
}

/// An error number as programmers know it.
fn name(errno: i32) -> String {
    let known = [
        (Errno::PERM, "EPERM"),
        (Errno::ACCESS, "EACCES"),
        (Errno::NOSYS, "ENOSYS"),
        (Errno::ROFS, "EROFS"),
        (Errno::NOENT, "ENOENT"),
        (Errno::AFNOSUPPORT, "EAFNOSUPPORT"),
        (Errno::PROTONOSUPPORT, "EPROTONOSUPPORT"),
        (Errno::SOCKTNOSUPPORT, "ESOCKTNOSUPPORT"),
        (Errno::CONNREFUSED, "ECONNREFUSED"),
        (Errno::NETUNREACH, "ENETUNREACH"),
        (Errno::HOSTUNREACH, "EHOSTUNREACH"),
        (Errno::SRCH, "ESRCH"),
        (Errno::NXIO, "ENXIO"),
        (Errno::INVAL, "EINVAL"),
    ];
    let found = known.iter().find(|(number, _)| number.raw_os_error() == errno).map(|(_, name)| (*name).to_owned());
    found.unwrap_or_else(|| format!("error {errno}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(part: &str, did: Option<bool>, errno: Option<i32>, optional: bool) -> Answer {
        Answer { probe: "p".into(), part: part.into(), optional, did, errno, saw: "x".into() }
    }

    fn verdict(control: &Answer, inside: &Answer, root: bool) -> Verdict {
        let inside = [Inside { user: "user", answers: vec![inside] }];
        judge(&[control], &inside, &[], root).0.verdict
    }

    #[test]
    fn a_refusal_counts_only_where_the_attempt_works_outside() {
        let (works, refused) = (answer("a", Some(true), None, false), answer("a", Some(false), Some(1), false));
        assert_eq!(verdict(&works, &refused, true), Verdict::Contained);
        assert_eq!(verdict(&refused, &refused, true), Verdict::Inconclusive);
        assert_eq!(verdict(&answer("a", Some(false), Some(1), true), &refused, true), Verdict::Inconclusive);
        assert_eq!(verdict(&refused, &refused, false), Verdict::Inconclusive, "nothing was proven");
    }

    #[test]
    fn an_effect_inside_is_a_breach_whatever_the_host_says() {
        let did = answer("a", Some(true), None, false);
        for control in [did.clone(), answer("a", Some(false), Some(1), true)] {
            assert_eq!(verdict(&control, &did, true), Verdict::Breach);
        }
    }

    #[test]
    fn odd_broken_and_missing_answers_prove_nothing() {
        let works = answer("a", Some(true), None, false);
        assert_eq!(verdict(&works, &answer("a", Some(false), Some(5), false), true), Verdict::Inconclusive);
        assert_eq!(verdict(&works, &answer("a", None, None, false), true), Verdict::Inconclusive);
        assert_eq!(verdict(&works, &answer("b", Some(false), Some(1), false), true), Verdict::Inconclusive);
    }
}
