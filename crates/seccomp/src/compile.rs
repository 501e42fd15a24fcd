//! From rules to BPF.
//!
//! Sorted by number, the calls form intervals of equal verdict; the program is a binary search over them. The interval
//! above the last known number reaches to the end of the 32-bit range and is `ENOSYS`: that closes x32, whose calls are
//! numbered from `0x4000_0000`, and the misnumbered x32 entries 512 to 547, without a check of their own.

use libc::sock_filter;
use thiserror::Error;

use crate::rules::{Clause, Condition, Decision, Rules, Verdict};
use crate::table::{Arch, Table};

// Only these operations are understood by the kernel when it works out, at installation, which calls are always allowed
// (`seccomp_is_const_allow`): such calls skip the filter from then on. Classic BPF, linux/bpf_common.h.
const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;

/// The kernel refuses longer programs (`BPF_MAXINSNS`).
const LONGEST: usize = 4096;

/// Rules that do not fit into a program.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// A trampoline is missing: a mistake of this module.
    #[error("a conditional jump of {distance} instructions, 255 are allowed")]
    JumpTooFar {
        /// How far it would lead.
        distance: usize,
    },
    /// The kernel would refuse it.
    #[error("the program has {length} instructions, {LONGEST} are allowed")]
    ProgramTooLong {
        /// Its length.
        length: usize,
    },
}

/// Compiles rules for an architecture.
pub fn compile(rules: &Rules, table: &Table, arch: Arch) -> Result<Vec<sock_filter>, CompileError> {
    let mut code = Backwards::default();
    let hidden = code.verdict(Verdict::HIDDEN);
    let search = code.search(&intervals(rules, table, arch), hidden)?;
    let native = code.load(NUMBER, search)?;
    let hidden = code.verdict(Verdict::HIDDEN);
    // First the ABI, because numbers mean nothing without it: on x86_64, `int 0x80` enters with i386 numbers.
    let check = code.branch(JUMP_IF_EQUAL, arch.audit_value(), native, hidden)?;
    code.load(ARCH, check)?;
    code.finish()
}

/// The calls from `start` up to the next interval's start.
struct Interval {
    start: u32,
    decision: Decision,
}

fn intervals(rules: &Rules, table: &Table, arch: Arch) -> Vec<Interval> {
    let mut calls: Vec<(u32, Decision)> =
        table.names().filter_map(|name| Some((table.number(name, arch)?, rules.decision(name)))).collect();
    calls.sort_unstable_by_key(|(number, _)| *number);

    let mut intervals: Vec<Interval> = Vec::new();
    let mut push = |start: u32, decision: Decision| {
        if intervals.last().is_none_or(|last| last.decision != decision) {
            intervals.push(Interval { start, decision });
        }
    };
    let mut next = 0;
    for (number, decision) in calls {
        if number != next {
            push(next, Decision::Always(Verdict::HIDDEN));
        }
        push(number, decision);
        next = number + 1;
    }
    push(next, Decision::Always(Verdict::HIDDEN));
    intervals
}

/// A place in the program: how many instructions come from there to the end, less one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(usize);

/// A program written from its end to its beginning. Jumps only lead forwards in BPF, so each target is in place already
/// when a jump to it is written.
#[derive(Default)]
struct Backwards {
    /// The last instruction first.
    code: Vec<sock_filter>,
    /// Where each verdict was last written.
    verdicts: Vec<(Verdict, Place)>,
}

impl Backwards {
    /// Finds the interval of the number in the accumulator.
    fn search(&mut self, intervals: &[Interval], none: Place) -> Result<Place, CompileError> {
        match intervals {
            [] => Ok(none),
            [only] => self.decide(&only.decision),
            _ => {
                let (below, above) = intervals.split_at(intervals.len() / 2);
                let at_least = above.first().map_or(0, |first| first.start);
                let above = self.search(above, none)?;
                let below = self.search(below, none)?;
                self.branch(JUMP_IF_AT_LEAST, at_least, above, below)
            }
        }
    }

    fn decide(&mut self, decision: &Decision) -> Result<Place, CompileError> {
        match decision {
            Decision::Always(verdict) => Ok(self.verdict(*verdict)),
            Decision::ByArguments(clauses) => {
                // Never reached: the last clause has no condition.
                let mut rest = self.verdict(Verdict::HIDDEN);
                for clause in clauses.iter().rev() {
                    rest = self.clause(clause, rest)?;
                }
                Ok(rest)
            }
        }
    }

    /// The verdict if all conditions hold, else the rest.
    fn clause(&mut self, clause: &Clause, rest: Place) -> Result<Place, CompileError> {
        let mut then = self.verdict(clause.verdict);
        for condition in clause.conditions.iter().rev() {
            then = self.condition(condition, then, rest)?;
        }
        Ok(then)
    }

    fn condition(&mut self, condition: &Condition, holds: Place, fails: Place) -> Result<Place, CompileError> {
        let (listed, mut next) = if condition.negated { (fails, holds) } else { (holds, fails) };
        for value in condition.values.iter().rev() {
            next = self.branch(JUMP_IF_EQUAL, *value, listed, next)?;
        }
        if condition.mask != u32::MAX {
            next = self.write(AND, condition.mask, next)?;
        }
        // Little-endian, so the low half of a 64-bit argument comes first. The high half is left alone on purpose: the
        // kernel ignores it for these arguments, and a rule that looked at it could be dodged by setting a bit there
        // (CVE-2019-10063).
        self.load(ARGUMENTS + 8 * u32::from(condition.argument), next)
    }

    /// A return, shared if one is near enough for any jump.
    fn verdict(&mut self, verdict: Verdict) -> Place {
        let written = self.verdicts.iter().rev().find(|(other, _)| *other == verdict).map(|(_, place)| *place);
        if let Some(place) = written.filter(|place| self.is_near(*place)) {
            return place;
        }
        let value = match verdict {
            Verdict::Allow => RET_ALLOW,
            Verdict::Errno(errno) => RET_ERRNO | u32::from(errno),
        };
        let place = self.push(sock_filter { code: RETURN, jt: 0, jf: 0, k: value });
        self.verdicts.push((verdict, place));
        place
    }

    fn load(&mut self, offset: u32, next: Place) -> Result<Place, CompileError> {
        self.write(LOAD, offset, next)
    }

    /// An instruction that runs on into `next`.
    fn write(&mut self, code: u16, k: u32, next: Place) -> Result<Place, CompileError> {
        if self.distance(next) != 0 {
            self.jump(next)?;
        }
        Ok(self.push(sock_filter { code, jt: 0, jf: 0, k }))
    }

    fn branch(&mut self, code: u16, k: u32, yes: Place, no: Place) -> Result<Place, CompileError> {
        let yes = if self.is_near(yes) { yes } else { self.trampoline(yes)? };
        let no = if self.is_near(no) { no } else { self.trampoline(no)? };
        let (jt, jf) = (self.short_distance(yes)?, self.short_distance(no)?);
        Ok(self.push(sock_filter { code, jt, jf, k }))
    }

    /// A place from which a far one is reached: another copy of a return, or a jump, whose distance has 32 bits.
    fn trampoline(&mut self, far: Place) -> Result<Place, CompileError> {
        match self.verdicts.iter().find(|(_, place)| *place == far) {
            Some((verdict, _)) => Ok(self.verdict(*verdict)),
            None => self.jump(far),
        }
    }

    fn jump(&mut self, target: Place) -> Result<Place, CompileError> {
        let length = self.code.len();
        let k = u32::try_from(self.distance(target)).map_err(|_| CompileError::ProgramTooLong { length })?;
        Ok(self.push(sock_filter { code: JUMP, jt: 0, jf: 0, k }))
    }

    fn push(&mut self, instruction: sock_filter) -> Place {
        self.code.push(instruction);
        Place(self.code.len() - 1)
    }

    /// How many instructions the next one to be written must jump over to get there.
    fn distance(&self, target: Place) -> usize {
        self.code.len() - target.0 - 1
    }

    fn short_distance(&self, target: Place) -> Result<u8, CompileError> {
        u8::try_from(self.distance(target)).map_err(|_| CompileError::JumpTooFar { distance: self.distance(target) })
    }

    /// Whether a conditional jump, which reaches 255 instructions, gets there even after some more have been written.
    fn is_near(&self, target: Place) -> bool {
        self.distance(target) < 240
    }

    fn finish(mut self) -> Result<Vec<sock_filter>, CompileError> {
        if self.code.len() > LONGEST {
            return Err(CompileError::ProgramTooLong { length: self.code.len() });
        }
        self.code.reverse();
        Ok(self.code)
    }
}
