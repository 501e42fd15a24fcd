//! Compiles every profile to BPF for the target architecture, so that a sandbox pays for installing it only.
//!
//! The modules are the library's own: what the tests check is what runs here.

use std::fmt::Write as _;
use std::{env, error::Error, fs, path::Path};

#[allow(dead_code)]
#[path = "src/compile.rs"]
mod compile;
#[allow(dead_code)]
#[path = "src/profile.rs"]
mod profile;
#[allow(dead_code)]
#[path = "src/rules.rs"]
mod rules;
#[allow(dead_code)]
#[path = "src/table.rs"]
mod table;

fn main() -> Result<(), Box<dyn Error>> {
    for input in ["build.rs", "profiles", "src"] {
        println!("cargo::rerun-if-changed={input}");
    }
    // The target's, not the host's: they differ when cross-compiling.
    let target = env::var("CARGO_CFG_TARGET_ARCH")?;
    let arch = table::Arch::from_rust_name(&target).ok_or_else(|| format!("no syscall table for {target}"))?;
    let table = table::Table::kernel()?;

    let mut source = String::new();
    for profile in profile::Profile::ALL {
        let program = compile::compile(&profile.rules(&table)?, &table, arch)?;
        let name = profile.name().to_uppercase().replace('-', "_");
        writeln!(source, "static {name}: [SockFilter; {}] = [", program.len())?;
        for i in &program {
            writeln!(source, "    SockFilter {{ code: {:#x}, jt: {}, jf: {}, k: {:#x} }},", i.code, i.jt, i.jf, i.k)?;
        }
        writeln!(source, "];")?;
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("programs.rs"), source)?;
    Ok(())
}
