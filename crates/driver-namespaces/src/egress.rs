//! Whether this kernel lets a sandbox have a way out.
//!
//! What it really does shows only when one is made: trying costs more than the way itself, so this looks for the one part
//! that kernels lack, and a start that fails says why.

use std::fs;
use std::path::Path;

use sloplet_policy::{Capability, Feature};

/// The module that gives connections to a socket whatever their address is.
const MODULE: &str = "nft_tproxy";

/// Looks at the host.
pub fn probe() -> Capability {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    probe_below(Path::new("/sys/module"), &Path::new("/lib/modules").join(release))
}

fn probe_below(loaded: &Path, modules: &Path) -> Capability {
    let way = "sockets in its network namespace, on which the host decides";
    if loaded.join(MODULE).exists() {
        return Capability::enforced(Feature::Egress, way);
    }
    let lists: Vec<Vec<u8>> =
        ["modules.builtin", "modules.dep"].iter().filter_map(|name| fs::read(modules.join(name)).ok()).collect();
    if lists.is_empty() {
        let detail = format!("{way}; whether this kernel has TPROXY shows at the first");
        return Capability::enforced(Feature::Egress, detail);
    }
    let file = format!("/{MODULE}.ko");
    if lists.iter().any(|list| list.windows(file.len()).any(|part| part == file.as_bytes())) {
        return Capability::enforced(Feature::Egress, way);
    }
    let remedy = "use a kernel with CONFIG_NFT_TPROXY (Debian, Ubuntu: linux-modules-extra of its version)";
    Capability::missing(Feature::Egress, "this kernel has no nf_tables with TPROXY", Some(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sloplet_policy::report::Enforcement;

    #[test]
    fn a_kernel_without_the_module_is_found_out() {
        let dir = tempfile::tempdir().unwrap();
        let (loaded, modules) = (dir.path().join("loaded"), dir.path().join("modules"));
        fs::create_dir_all(&loaded).unwrap();
        fs::create_dir_all(&modules).unwrap();
        let seen = || probe_below(&loaded, &modules).enforcement;
        assert_eq!(seen(), Enforcement::Enforced, "nobody knows: a start will tell");
        fs::write(modules.join("modules.builtin"), "kernel/net/netfilter/nft_reject.ko\n").unwrap();
        fs::write(modules.join("modules.dep"), "kernel/net/netfilter/xt_TPROXY.ko:\n").unwrap();
        assert_eq!(seen(), Enforcement::Missing);
        fs::write(modules.join("modules.dep"), "kernel/net/netfilter/nft_tproxy.ko.xz: kernel/x.ko\n").unwrap();
        assert_eq!(seen(), Enforcement::Enforced);
        fs::remove_file(modules.join("modules.dep")).unwrap();
        fs::create_dir(loaded.join(MODULE)).unwrap();
        assert_eq!(seen(), Enforcement::Enforced);
    }
}
