//! The allowlist of system calls in the form that container engines read, out of the same profile as everywhere.
//!
//! That form knows no order of rules, one verdict for all that no rule names, and one comparison for each argument. So a call
//! that is decided by its arguments is allowed here for the values that the profile allows, as far as these can be listed;
//! where they cannot ("all but these"), it is allowed as a whole. The agent puts itself, and so every command, under the
//! profile's own program as well, which is exact: what is said here can only be wider, never narrower, than that.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sloplet_seccomp::Profile;
use sloplet_seccomp::rules::{Clause, Decision, Verdict};
use sloplet_seccomp::table::{Arch, Table};

/// The filter, as text.
pub fn text() -> Result<String, String> {
    let table = Table::kernel().map_err(|error| error.to_string())?;
    let rules = Profile::Container.rules(&table).map_err(|error| error.to_string())?;
    let (mut always, mut refused) = (Vec::new(), BTreeMap::<u16, Vec<&str>>::new());
    let mut calls = Vec::new();
    for name in table.names() {
        match rules.decision(name) {
            Decision::Always(Verdict::Allow) => always.push(name),
            Decision::Always(Verdict::Errno(number)) => refused.entry(number).or_default().push(name),
            Decision::ByArguments(clauses) => calls.extend(by_arguments(name, &clauses)),
        }
    }
    calls.push(json!({"names": always, "action": "SCMP_ACT_ALLOW"}));
    // Each with its own error: engines before Docker 23 have EPERM for all else, on which C libraries do not fall back.
    let refusal = |(number, names)| json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number});
    calls.extend(refused.into_iter().map(refusal));
    let architecture = match Arch::from_rust_name(std::env::consts::ARCH) {
        Some(Arch::X86_64) => "SCMP_ARCH_X86_64",
        Some(Arch::Aarch64) => "SCMP_ARCH_AARCH64",
        None => return Err("no table for this processor".into()),
    };
    let hidden = match Verdict::HIDDEN {
        Verdict::Errno(number) => number,
        Verdict::Allow => 0,
    };
    let filter = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": hidden,
        "architectures": [architecture],
        "syscalls": calls,
    });
    Ok(filter.to_string())
}

/// An argument as the clauses of a call look at it: by one mask, for some values.
struct Argument {
    number: u8,
    mask: u32,
    values: Vec<u32>,
}

/// One value of each argument; none for one that no clause names.
type Case = Vec<Option<u32>>;

fn by_arguments(name: &str, clauses: &[Clause]) -> Vec<Value> {
    let allow = |args: Vec<Value>| json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": args});
    let Some(arguments) = arguments(clauses) else { return vec![allow(Vec::new())] };
    let mut allowed: Vec<Case> =
        cases(&arguments).into_iter().filter(|case| allows(clauses, &arguments, case)).collect();
    let mut rules = Vec::new();
    while let Some(case) = allowed.first().cloned() {
        // An argument that does not matter where the others are these is not compared.
        let mut compared: Vec<bool> = vec![true; arguments.len()];
        for index in 0..arguments.len() {
            compared[index] = false;
            let alike = |other: &Case| (0..case.len()).all(|at| !compared[at] || other[at] == case[at]);
            if !cases(&arguments).iter().filter(|other| alike(other)).all(|other| allows(clauses, &arguments, other)) {
                compared[index] = true;
            }
        }
        let unlisted = (0..case.len()).any(|at| compared[at] && case[at].is_none());
        if unlisted {
            // "All but these" cannot be said.
            return vec![allow(Vec::new())];
        }
        let comparisons = arguments.iter().zip(&case).zip(&compared).filter(|(_, compared)| **compared);
        let comparisons = comparisons.filter_map(|((argument, value), _)| {
            let (index, mask) = (argument.number, argument.mask);
            value.map(|value| json!({"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}))
        });
        rules.push(allow(comparisons.collect()));
        allowed.retain(|other| !(0..case.len()).all(|at| !compared[at] || other[at] == case[at]));
    }
    rules
}

/// The arguments that matter, if each is looked at by one mask only.
fn arguments(clauses: &[Clause]) -> Option<Vec<Argument>> {
    let mut all: Vec<Argument> = Vec::new();
    for condition in clauses.iter().flat_map(|clause| &clause.conditions) {
        match all.iter_mut().find(|argument| argument.number == condition.argument) {
            Some(argument) if argument.mask != condition.mask => return None,
            Some(argument) => argument.values.extend(&condition.values),
            None => {
                let (number, mask) = (condition.argument, condition.mask);
                all.push(Argument { number, mask, values: condition.values.clone() });
            }
        }
    }
    for argument in &mut all {
        argument.values.sort_unstable();
        argument.values.dedup();
    }
    Some(all)
}

fn cases(arguments: &[Argument]) -> Vec<Case> {
    let mut all: Vec<Case> = vec![Vec::new()];
    for argument in arguments {
        let values: Vec<Option<u32>> = argument.values.iter().copied().map(Some).chain([None]).collect();
        let with = |case: &Case| values.iter().map(|value| [&case[..], &[*value]].concat()).collect::<Vec<_>>();
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// Whether the first clause that holds allows it.
fn allows(clauses: &[Clause], arguments: &[Argument], case: &Case) -> bool {
    let value = |number: u8| {
        let at = arguments.iter().position(|argument| argument.number == number)?;
        case.get(at).copied().flatten()
    };
    let holds = |clause: &&Clause| {
        clause.conditions.iter().all(|condition| {
            let listed = value(condition.argument).is_some_and(|value| condition.values.contains(&value));
            listed != condition.negated
        })
    };
    clauses.iter().find(holds).is_some_and(|clause| clause.verdict == Verdict::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules_of(name: &str) -> Vec<Value> {
        let filter: Value = serde_json::from_str(&text().unwrap()).unwrap();
        let all = filter["syscalls"].as_array().unwrap().clone();
        all.into_iter().filter(|rule| rule["names"].as_array().unwrap().contains(&json!(name))).collect()
    }

    /// Whether some rule allows a call with these arguments.
    fn allowed(name: &str, arguments: [u64; 3]) -> bool {
        rules_of(name).iter().filter(|rule| rule["action"] == "SCMP_ACT_ALLOW").any(|rule| {
            rule["args"].as_array().into_iter().flatten().all(|comparison| {
                let number = |field: &str| comparison[field].as_u64().unwrap();
                arguments[number("index") as usize] & number("value") == number("valueTwo")
            })
        })
    }

    #[test]
    fn what_the_profile_refuses_is_refused_alike() {
        for name in ["mount", "unshare", "setns", "ptrace", "bpf", "keyctl", "clone3", "io_uring_setup", "kexec_load"] {
            let error = if name == "clone3" { 38 } else { 1 };
            let rules = rules_of(name);
            assert!(matches!(&rules[..], [rule] if rule["errnoRet"] == error), "{name}: {rules:?}");
        }
        assert!(allowed("read", [0; 3]) && allowed("openat2", [0; 3]));
    }

    #[test]
    fn arguments_decide_as_in_the_profile() {
        assert!(allowed("clone", [0x11, 0, 0]) && !allowed("clone", [0x1000_0011, 0, 0]));
        assert!(allowed("personality", [0, 0, 0]) && !allowed("personality", [0x4_0000, 0, 0]));
        assert!(allowed("socket", [1, 5, 77]), "unix sockets of every kind");
        assert!(allowed("socket", [2, 0x80001, 6]) && allowed("socket", [10, 2, 0]), "TCP and UDP");
        assert!(!allowed("socket", [2, 3, 1]) && !allowed("socket", [17, 3, 0]), "raw sockets, packets");
        assert!(!allowed("socket", [2, 1, 132]) && !allowed("socket", [40, 1, 0]), "SCTP, vsock");
        assert!(allowed("socket", [16, 3, 0]) && !allowed("socket", [16, 3, 9]), "the routing netlink only");
        assert!(allowed("socketpair", [1, 1, 0]) && !allowed("socketpair", [2, 1, 0]));
        // "All but these": left to the agent's own program.
        assert!(allowed("ioctl", [0, 0x5401, 0]));
    }
}
