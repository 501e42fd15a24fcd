//! The compiled programs against the rules they were compiled from.
//!
//! An interpreter of classic BPF, as strict as the kernel's checker, runs each program over every call number, ABI and
//! interesting argument; the expected verdict comes from the rules directly.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use sloplet_seccomp::compile::{CompileError, compile};
use sloplet_seccomp::rules::{Clause, Decision, Rules, Verdict};
use sloplet_seccomp::table::{Arch, Table};
use sloplet_seccomp::{Profile, SockFilter};

const ALLOW: Verdict = Verdict::Allow;
const EPERM: Verdict = Verdict::Errno(1);
const ENOSYS: Verdict = Verdict::Errno(38);
const EPROTONOSUPPORT: Verdict = Verdict::Errno(93);
const EAFNOSUPPORT: Verdict = Verdict::Errno(97);

const AUDIT_ARCH_I386: u32 = 0x4000_0003;
const AUDIT_ARCH_ARM: u32 = 0x4000_0028;

/// The verdict and how many instructions it took.
fn run(program: &[SockFilter], arch: u32, number: u32, arguments: [u64; 6]) -> (Verdict, usize) {
    let mut data = [0u8; 64];
    data[0..4].copy_from_slice(&number.to_le_bytes());
    data[4..8].copy_from_slice(&arch.to_le_bytes());
    for (index, argument) in arguments.iter().enumerate() {
        data[16 + 8 * index..24 + 8 * index].copy_from_slice(&argument.to_le_bytes());
    }
    let (mut at, mut accumulator, mut steps) = (0usize, 0u32, 0);
    loop {
        let instruction = program.get(at).expect("ran off the end");
        steps += 1;
        at += 1;
        let k = instruction.k;
        let holds = match instruction.code {
            0x20 => {
                assert!(k.is_multiple_of(4) && k <= 60, "load at {k}");
                accumulator = u32::from_le_bytes(data[k as usize..k as usize + 4].try_into().unwrap());
                continue;
            }
            0x54 => {
                accumulator &= k;
                continue;
            }
            0x05 => {
                at += k as usize;
                continue;
            }
            0x06 if k == 0x7fff_0000 => return (Verdict::Allow, steps),
            0x06 if k >> 16 == 0x0005 => return (Verdict::Errno(k as u16), steps),
            0x15 => accumulator == k,
            0x35 => accumulator >= k,
            code => panic!("instruction {code:#x} with {k:#x}"),
        };
        at += usize::from(if holds { instruction.jt } else { instruction.jf });
    }
}

fn expected(decision: &Decision, arguments: [u64; 6]) -> Verdict {
    let holds = |clause: &&Clause| {
        clause.conditions.iter().all(|condition| {
            let value = arguments[usize::from(condition.argument)] as u32 & condition.mask;
            condition.values.contains(&value) != condition.negated
        })
    };
    match decision {
        Decision::Always(verdict) => *verdict,
        Decision::ByArguments(clauses) => clauses.iter().find(holds).unwrap().verdict,
    }
}

/// Every listed value of every argument, its neighbours and single bits, with and without rubbish in the high half.
fn interesting_arguments(decision: &Decision) -> Vec<[u64; 6]> {
    let Decision::ByArguments(clauses) = decision else {
        return vec![[0; 6], [u64::MAX; 6], [1, 2, 3, 4, 5, 6]];
    };
    let conditions = || clauses.iter().flat_map(|clause| &clause.conditions);
    let mut combinations = vec![[0u64; 6]];
    for argument in 0..6u8 {
        let mut values = vec![0u32];
        for condition in conditions().filter(|condition| condition.argument == argument) {
            values.push(u32::MAX);
            for value in &condition.values {
                values.extend([*value, value.wrapping_add(1), value.wrapping_sub(1), value | 0x80000]);
            }
            if condition.values == [0] {
                values.extend((0..32).map(|bit| 1 << bit));
            }
        }
        values.sort_unstable();
        values.dedup();
        let place = |combination: &[u64; 6], value: u32| {
            let mut combination = *combination;
            combination[usize::from(argument)] = u64::from(value);
            combination
        };
        combinations = combinations.iter().flat_map(|c| values.iter().map(|value| place(c, *value))).collect();
    }
    let with_rubbish: Vec<_> = combinations.iter().map(|all| all.map(|value| value | 0xbad_0000_0000)).collect();
    combinations.into_iter().chain(with_rubbish).collect()
}

/// Compares program and rules over everything; gives the number of comparisons and the longest way to a verdict that
/// does not depend on arguments.
fn compare(program: &[SockFilter], rules: &Rules, table: &Table, arch: Arch) -> (usize, usize) {
    let mut names = vec![None; 1024];
    for name in table.names() {
        if let Some(number) = table.number(name, arch) {
            names[number as usize] = Some(name);
        }
    }
    let (mut compared, mut longest) = (0, 0);
    for (number, name) in names.iter().enumerate() {
        let decision = name.map_or(Decision::Always(ENOSYS), |name| rules.decision(name));
        for arguments in interesting_arguments(&decision) {
            let (verdict, steps) = run(program, arch.audit_value(), number as u32, arguments);
            assert_eq!(verdict, expected(&decision, arguments), "{arch:?} {name:?} ({number}) {arguments:x?}");
            compared += 1;
            if matches!(decision, Decision::Always(_)) {
                longest = longest.max(steps);
            }
        }
    }
    (compared, longest)
}

#[test]
fn programs_decide_as_the_rules_say() {
    let table = Table::kernel().unwrap();
    for profile in Profile::ALL {
        let rules = profile.rules(&table).unwrap();
        for arch in Arch::ALL {
            let program = compile(&rules, &table, arch).unwrap();
            let (compared, longest) = compare(&program, &rules, &table, arch);
            println!("{} {arch:?}: {} instructions, {compared} cases", profile.name(), program.len());
            assert!(compared > 3 * 1024);
            assert!(longest <= 4 + 8, "{longest} instructions to a verdict: is the search balanced?");
        }
    }
}

#[test]
fn the_built_in_program_is_the_compiled_profile() {
    let table = Table::kernel().unwrap();
    let arch = Arch::from_rust_name(std::env::consts::ARCH).unwrap();
    for profile in Profile::ALL {
        let rules = profile.rules(&table).unwrap();
        compare(profile.program(), &rules, &table, arch);
        let compiled = compile(&rules, &table, arch).unwrap();
        assert_eq!(profile.program().len(), compiled.len());
    }
}

#[test]
fn a_foreign_abi_is_hidden_whatever_the_call() {
    let table = Table::kernel().unwrap();
    for profile in Profile::ALL {
        for arch in Arch::ALL {
            let program = compile(&profile.rules(&table).unwrap(), &table, arch).unwrap();
            let others = Arch::ALL.map(Arch::audit_value).into_iter().filter(|value| *value != arch.audit_value());
            for foreign in others.chain([AUDIT_ARCH_I386, AUDIT_ARCH_ARM, 0, u32::MAX]) {
                for number in 0..1024 {
                    assert_eq!(run(&program, foreign, number, [0; 6]).0, ENOSYS, "{arch:?} {foreign:#x} {number}");
                }
            }
        }
    }
}

#[test]
fn x32_and_numbers_beyond_the_table_are_hidden() {
    let table = Table::kernel().unwrap();
    for profile in Profile::ALL {
        for arch in Arch::ALL {
            let program = compile(&profile.rules(&table).unwrap(), &table, arch).unwrap();
            let x32 = (0..1024).map(|number| 0x4000_0000 | number);
            for number in x32.chain([1024, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, u32::MAX]) {
                assert_eq!(run(&program, arch.audit_value(), number, [0; 6]).0, ENOSYS, "{arch:?} {number:#x}");
            }
        }
    }
}

/// More code than a conditional jump can reach over: in the search, to a shared return, and within one clause.
#[test]
fn long_programs_jump_by_trampolines() {
    let table = Table::kernel().unwrap();
    let mut many = String::from("[arguments] a clause for each\n");
    for (index, name) in table.names().enumerate() {
        many += &format!("{name}: EPERM when arg0 in {index}\n{name}: EACCES otherwise\n");
    }
    let values: Vec<String> = (0..300).map(|value| (2 * value).to_string()).collect();
    let values = values.join(" ");
    let wide = format!(
        "[allow] others\nread write\n[arguments] one with many values\n\
         ioctl: EPERM when arg1 in {values} and arg0 in 7\nioctl: EACCES when arg1 not in {values}\n\
         ioctl: allow otherwise\n"
    );
    for (text, jumps) in [(many, true), (wide, false)] {
        let mut rules = Rules::default();
        rules.overlay("long", &text, &table).unwrap();
        for arch in Arch::ALL {
            let program = compile(&rules, &table, arch).unwrap();
            assert!(program.len() > 500);
            assert!(!jumps || program.iter().any(|instruction| instruction.code == 0x05), "{arch:?}: no trampoline");
            compare(&program, &rules, &table, arch);
        }
    }
}

#[test]
fn a_program_longer_than_the_kernel_takes_is_an_error() {
    let table = Table::kernel().unwrap();
    let values: Vec<String> = (0..5000).map(|value| value.to_string()).collect();
    let text = format!("[arguments] many\nioctl: EPERM when arg1 in {}\nioctl: allow otherwise\n", values.join(" "));
    let mut rules = Rules::default();
    rules.overlay("many", &text, &table).unwrap();
    assert!(matches!(compile(&rules, &table, Arch::X86_64), Err(CompileError::ProgramTooLong { length: 5000.. })));
}

#[test]
fn every_known_call_has_been_thought_about() {
    let table = Table::kernel().unwrap();
    let rules = Profile::Container.rules(&table).unwrap();
    let forgotten: Vec<&str> = table.names().filter(|name| !rules.names(name)).collect();
    assert!(forgotten.is_empty(), "named by no group: {forgotten:?}");
}

/// Promises spelled out by hand, so that neither a slip in the parser nor one in a profile goes unnoticed.
#[test]
fn promises() {
    const HIGH: u64 = 0xdead_beef_0000_0000;
    let table = Table::kernel().unwrap();
    let check = |profile: Profile, name: &str, arguments: &[u64], promised: Verdict| {
        for arch in Arch::ALL {
            let Some(number) = table.number(name, arch) else {
                continue;
            };
            let program = compile(&profile.rules(&table).unwrap(), &table, arch).unwrap();
            let mut all = [0; 6];
            all[..arguments.len()].copy_from_slice(arguments);
            let (verdict, _) = run(&program, arch.audit_value(), number, all);
            assert_eq!(verdict, promised, "{} {arch:?} {name} {arguments:x?}", profile.name());
        }
    };

    for profile in Profile::ALL {
        for name in ["read", "openat", "execve", "futex", "exit_group", "rt_sigreturn", "seccomp", "landlock_add_rule"]
        {
            check(profile, name, &[], ALLOW);
        }
        let refused = "unshare setns mount umount2 pivot_root fsopen fsconfig fsmount fspick open_tree move_mount \
             mount_setattr open_by_handle_at bpf perf_event_open io_uring_setup io_uring_enter io_uring_register \
             userfaultfd keyctl add_key request_key init_module finit_module delete_module kexec_load kexec_file_load \
             reboot swapon swapoff acct syslog quotactl quotactl_fd clock_settime clock_adjtime settimeofday iopl ioperm \
             mbind set_mempolicy move_pages vhangup fanotify_init memfd_secret";
        for name in refused.split_whitespace() {
            check(profile, name, &[], EPERM);
        }
        for name in ["clone3", "statmount", "listmount", "lookup_dcookie", "nfsservctl"] {
            check(profile, name, &[], ENOSYS);
        }
        check(profile, "clone", &[0x3d0f00], ALLOW); // a thread of glibc
        check(profile, "clone", &[17], ALLOW); // fork: SIGCHLD
        for flag in [0x20000u64, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000] {
            check(profile, "clone", &[flag | 17], EPERM);
            check(profile, "clone", &[flag | HIGH], EPERM);
        }
        for allowed in [0, 8, 0x20000, 0x20008, 0xffff_ffff] {
            check(profile, "personality", &[allowed], ALLOW);
        }
        for odd in [1, 9, 0x40000, 0x400000, 0xffff_fffe] {
            check(profile, "personality", &[odd], EPERM);
        }
        check(profile, "ioctl", &[0, 0x5401], ALLOW); // TCGETS
        for command in [0x5412, 0x541c, 0x5423] {
            check(profile, "ioctl", &[0, command], EPERM);
            check(profile, "ioctl", &[0, command | HIGH], EPERM);
        }
        check(profile, "socketpair", &[1, 1], ALLOW);
        for name in ["io_setup", "io_submit", "io_getevents"] {
            // fs.aio-max-nr is one number for the whole host.
            check(profile, name, &[], if profile == Profile::ContainerAio { ALLOW } else { ENOSYS });
        }
        for (family, kind, protocol) in [(40, 1, 0), (38, 5, 0), (17, 3, 0x300), (30, 5, 0), (2 | HIGH | 1 << 20, 1, 0)]
        {
            check(profile, "socket", &[family, kind, protocol], EAFNOSUPPORT);
        }
    }

    for profile in [Profile::Container, Profile::ContainerTracing, Profile::ContainerAio] {
        for family in [2, 10, 2 | HIGH] {
            check(profile, "socket", &[family, 0x80801, 6], ALLOW); // STREAM | CLOEXEC | NONBLOCK
            check(profile, "socket", &[family, 2 | 0x80000, 0], ALLOW);
            check(profile, "socket", &[family, 3, 1], EPERM);
            check(profile, "socket", &[family, 3 | 0x80000, 255], EPERM);
            check(profile, "socket", &[family, 10, 0x300], EPERM);
            check(profile, "socket", &[family, 1, 132], EPROTONOSUPPORT); // SCTP
            check(profile, "socket", &[family, 1, 262], EPROTONOSUPPORT); // MPTCP
            check(profile, "socket", &[family, 6, 33], EPROTONOSUPPORT); // DCCP
        }
        check(profile, "socket", &[1, 5, 0], ALLOW);
        check(profile, "socket", &[16, 3, 0], ALLOW);
        check(profile, "socket", &[16, 3, 9], EPROTONOSUPPORT); // audit
        check(profile, "socket", &[16, 3, 12], EPROTONOSUPPORT); // netfilter
        check(profile, "shmget", &[], ALLOW);
        check(profile, "prlimit64", &[77], ALLOW);
    }

    for name in ["ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"] {
        check(Profile::Container, name, &[], EPERM);
        check(Profile::ContainerTracing, name, &[], ALLOW);
        check(Profile::Process, name, &[], EPERM);
        check(Profile::ProcessUnixSockets, name, &[], EPERM);
    }

    for profile in [Profile::Process, Profile::ProcessUnixSockets] {
        for family in [2, 10, 16] {
            check(profile, "socket", &[family, 1, 0], EAFNOSUPPORT);
            check(profile, "socket", &[family, 3, 0], EAFNOSUPPORT);
        }
        check(profile, "shmget", &[], ENOSYS);
        check(profile, "mq_open", &[], ENOSYS);
        check(profile, "prlimit64", &[0], ALLOW);
        check(profile, "prlimit64", &[77], EPERM);
    }
    check(Profile::Process, "socket", &[1, 1, 0], EAFNOSUPPORT);
    check(Profile::ProcessUnixSockets, "socket", &[1, 1, 0], ALLOW);
}
