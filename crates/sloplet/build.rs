//! How the binary is linked; that of the bench, which is its own spawner, too.

fn main() {
    println!("cargo:rerun-if-env-changed=CARGO_CFG_TARGET_FEATURE");
    let feature = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if feature.split(',').any(|feature| feature == "crt-static") {
        // At a fixed address. Otherwise 50,000 addresses in tables of constants are filled in at every start: two hundred
        // pages that are written, and copied with each of the forks that follow, half a millisecond in all. See SECURITY.md
        // for what that gives up.
        for argument in ["-static", "-no-pie"] {
            println!("cargo:rustc-link-arg-bins={argument}");
        }
    }
}
