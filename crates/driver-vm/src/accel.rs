//! What runs the guest's instructions: the host's processor by KVM where a guest was seen to run so, else QEMU's emulator.

use serde::{Deserialize, Serialize};

use crate::kvm::Kvm;

/// Says which is to be used: `kvm` or `tcg`. What is asked for is used or refused, never replaced.
pub const VARIABLE: &str = "SLOPLET_VM_ACCEL";

/// What runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// The host's processor, which keeps the guest apart.
    Kvm,
    /// QEMU's emulator.
    #[default]
    Tcg,
}

impl Accel {
    /// The choice for a host of which so much is known of KVM.
    pub fn choose(asked: Option<&str>, kvm: &Kvm) -> Result<Self, String> {
        match (asked.filter(|word| !word.is_empty()), kvm) {
            (Some("tcg"), _) => Ok(Self::Tcg),
            (None | Some("kvm"), Kvm::Works) => Ok(Self::Kvm),
            (None, _) => Ok(Self::Tcg),
            (Some("kvm"), known) => Err(format!("{VARIABLE} asks for kvm, but {}", known.describe())),
            (Some(other), _) => Err(format!("{VARIABLE} is '{other}': use kvm or tcg, or unset it")),
        }
    }

    /// QEMU's arguments for it; `parallel` says whether its emulator can be trusted with several processors at once.
    pub fn arguments(self, parallel: bool) -> &'static str {
        match (self, parallel) {
            (Self::Kvm, _) => "-accel kvm -cpu host",
            (Self::Tcg, true) => "-accel tcg,thread=multi,tb-size=128 -cpu max",
            (Self::Tcg, false) => "-accel tcg,thread=single,tb-size=128 -cpu max",
        }
    }

    /// What the kernel is told.
    pub fn kernel_options(self) -> String {
        let common = "console=ttyS0 quiet loglevel=1 panic=-1 reboot=t random.trust_cpu=on rcupdate.rcu_expedited=1 \
                      cryptomgr.notests";
        match self {
            // It has a clock of the host's, and real neighbours: what keeps its users apart stays on.
            Self::Kvm => common.to_owned(),
            // The frequency is told: measuring it against a slow clock can take for ever where the host is busy. An emulated
            // processor guesses nothing ahead that could be overheard.
            Self::Tcg => {
                let khz = sloplet_sys::clock::tsc_khz();
                format!("{common} tsc_early_khz={khz} tsc=reliable lpj=4000000 mitigations=off no_timer_check")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_is_used_where_it_works_and_what_is_asked_for_is_never_replaced() {
        let fails = Kvm::Fails("a guest said nothing".into());
        assert_eq!(Accel::choose(None, &Kvm::Works), Ok(Accel::Kvm));
        assert_eq!(Accel::choose(Some(""), &Kvm::Works), Ok(Accel::Kvm));
        assert_eq!(Accel::choose(Some("kvm"), &Kvm::Works), Ok(Accel::Kvm));
        assert_eq!(Accel::choose(Some("tcg"), &Kvm::Works), Ok(Accel::Tcg));
        for known in [Kvm::Absent, Kvm::Untried, fails, Kvm::Closed] {
            assert_eq!(Accel::choose(None, &known), Ok(Accel::Tcg), "{known:?}");
            assert_eq!(Accel::choose(Some("tcg"), &known), Ok(Accel::Tcg), "{known:?}");
            let refused = Accel::choose(Some("kvm"), &known).unwrap_err();
            assert!(refused.contains("asks for kvm") && refused.contains("/dev/kvm"), "{refused}");
        }
        assert!(Accel::choose(Some("hvf"), &Kvm::Works).unwrap_err().contains("use kvm or tcg"));
    }
}
