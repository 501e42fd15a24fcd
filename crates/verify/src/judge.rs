//! From answers to verdicts.

use std::collections::BTreeMap;

use rustix::io::Errno;
use sloplet_policy::Feature;

use crate::part::{Answer, Of};
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

/// What verdicts depend on besides the answers.
#[derive(Debug, Default)]
pub struct Terms<'a> {
    /// Refusals that are as good as the usual ones.
    pub refusals: &'a [i32],
    /// Whether the host's user is root. Without, attempts that only root may make cannot be shown to work: they are told
    /// apart, and the others decide.
    pub root: bool,
    /// What the wall claims. Effects on a kernel of its own are nobody's loss, nor are those on what it never claimed to
    /// hide (see [`Of`]).
    pub claims: &'a [Feature],
    /// What the host's canaries say that the probe did to them: a breach, whatever was answered inside.
    pub harm: &'a [String],
}

/// The verdict on a probe made of attempts. What an attempt has an effect on is taken from the host's answers only.
pub fn judge(control: &[&Answer], inside: &[Inside<'_>], terms: &Terms<'_>) -> (Finding, Vec<Part>) {
    let mut parts = Vec::new();
    let (mut proven, mut unproven, mut needs_root) = (0, 0, 0);
    let (mut breaches, mut unclear) = (terms.harm.to_vec(), Vec::new());
    let mut answered: BTreeMap<String, usize> = BTreeMap::new();
    // Effects that are none of the host's, by what they are on.
    let mut aside: BTreeMap<String, usize> = BTreeMap::new();
    let claims = |feature: &Feature| terms.claims.contains(feature);
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
        // Why an effect is none of the host's, and whether a canary makes sure of that.
        let excuse = match &answer.of {
            Of::Kernel { what, watched } if claims(&Feature::OwnKernel) => {
                Some((format!("the {what} of its own kernel are not the host's"), *watched))
            }
            Of::Claim(feature) if !claims(feature) => Some((format!("this wall does not claim: {feature}"), false)),
            _ => None,
        };
        if works {
            proven += 1;
        } else if answer.optional {
            (part.verdict, unproven) = (Verdict::NotApplicable, unproven + 1);
        } else if !terms.root && answer.errno.is_some_and(forbids) {
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
                (Some(true), _) => match &excuse {
                    // The canary would have been harmed.
                    Some((_, true)) => *answered.entry("not seen on the host".to_owned()).or_default() += 1,
                    Some((reason, false)) => {
                        part.verdict = part.verdict.max(Verdict::NotApplicable);
                        *aside.entry(reason.clone()).or_default() += 1;
                    }
                    None => {
                        part.verdict = Verdict::Breach;
                        breaches.push(format!("{} as {user}: {}", answer.part, found.saw));
                    }
                },
                (None, _) => {
                    part.verdict = part.verdict.max(Verdict::Inconclusive);
                    unclear.push(format!("{} as {user}: {}", answer.part, found.saw));
                }
                // Another kernel has other words.
                (Some(false), Some(errno)) if works && excuse.is_none() && !refused(errno, terms.refusals) => {
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
    let held = parts.iter().any(|part| part.works && part.verdict == Verdict::Contained);
    let finding = if !breaches.is_empty() {
        Finding::breach(shown, breaches.join("; "))
    } else if !unclear.is_empty() {
        Finding::inconclusive(shown, unclear.join("; "))
    } else if control.is_empty() {
        Finding::not_applicable("there is nothing of that kind on this host")
    } else if proven == 0 {
        Finding::inconclusive(shown, "no attempt could be shown to work on this host")
    } else if !held {
        Finding::not_applicable(aside.keys().cloned().collect::<Vec<_>>().join("; "))
    } else {
        let mut answers: Vec<String> = answered.iter().map(|(what, count)| format!("{what} {count}×")).collect();
        answers.extend(aside.iter().map(|(reason, count)| format!("{count}× aside: {reason}")));
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
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    ];
    let found = known.iter().find(|(number, _)| number.raw_os_error() == errno).map(|(_, name)| (*name).to_owned());
    found.unwrap_or_else(|| format!("error {errno}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(part: &str, did: Option<bool>, errno: Option<i32>, optional: bool) -> Answer {
        Answer { probe: "p".into(), part: part.into(), optional, of: Of::Host, did, errno, saw: "x".into() }
    }

    fn found(control: &[&Answer], inside: &[&Answer], terms: &Terms<'_>) -> Finding {
        judge(control, &[Inside { user: "user", answers: inside.to_vec() }], terms).0
    }

    fn verdict(control: &Answer, inside: &Answer, root: bool) -> Verdict {
        found(&[control], &[inside], &Terms { root, ..Terms::default() }).verdict
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
    fn of_kernel(answer: Answer, watched: bool) -> Answer {
        Answer { of: Of::Kernel { what: "clocks".into(), watched }, ..answer }
    }

    #[test]
    fn an_effect_on_a_kernel_of_its_own_is_no_breach_and_no_proof() {
        let did = answer("a", Some(true), None, false);
        let works = of_kernel(did.clone(), false);
        let terms = Terms { root: true, claims: &[Feature::OwnKernel], ..Terms::default() };
        let finding = found(&[&works], &[&did], &terms);
        assert_eq!(finding.verdict, Verdict::NotApplicable);
        assert!(finding.detail.contains("clocks"), "{}", finding.detail);
        // Beside something that holds, it is told.
        let (other, refused) = (answer("b", Some(true), None, false), answer("b", Some(false), Some(1), false));
        let finding = found(&[&works, &other], &[&did, &refused], &terms);
        assert_eq!(finding.verdict, Verdict::Contained);
        assert!(finding.detail.contains("1× aside: the clocks of its own kernel"), "{}", finding.detail);
        // On the host's kernel it is a breach, and what is the host's is one behind any kernel.
        assert_eq!(found(&[&works], &[&did], &Terms { root: true, ..Terms::default() }).verdict, Verdict::Breach);
        assert_eq!(found(&[&did], &[&did], &terms).verdict, Verdict::Breach);
        // Whoever is inside cannot say that it is about its own kernel.
        assert_eq!(found(&[&did], &[&works], &terms).verdict, Verdict::Breach);
    }

    #[test]
    fn what_a_wall_does_not_claim_is_told_and_not_held_against_it() {
        let did = answer("a", Some(true), None, false);
        let works = Answer { of: Of::Claim(Feature::OwnRoot), ..did.clone() };
        assert_eq!(found(&[&works], &[&did], &Terms::default()).verdict, Verdict::NotApplicable);
        let terms = Terms { claims: &[Feature::OwnRoot], ..Terms::default() };
        assert_eq!(found(&[&works], &[&did], &terms).verdict, Verdict::Breach);
    }

    #[test]
    fn a_canary_of_the_host_decides_where_it_watches() {
        let did = answer("a", Some(true), None, false);
        let works = of_kernel(did.clone(), true);
        let terms = Terms { root: true, claims: &[Feature::OwnKernel], ..Terms::default() };
        assert_eq!(found(&[&works], &[&did], &terms).verdict, Verdict::Contained);
        let harm = ["it was changed".to_owned()];
        assert_eq!(found(&[&works], &[&did], &Terms { harm: &harm, ..terms }).verdict, Verdict::Breach);
        // Also where everything was refused inside.
        let refused = answer("a", Some(false), Some(1), false);
        let terms = Terms { root: true, harm: &harm, ..Terms::default() };
        assert_eq!(found(&[&did], &[&refused], &terms).verdict, Verdict::Breach);
    }
}
