//! What the image `code-interpreter` has beyond `base`; the programs themselves are in `assets/interpreter`.

/// Python with what data work needs first, its kernels, and node.
pub(crate) const PACKAGES: &[&str] = &[
    "esbuild",
    "nodejs",
    "python3-ipykernel",
    "python3-jupyter-client",
    "python3-matplotlib",
    "python3-numpy",
    "python3-openpyxl",
    "python3-pandas",
    "python3-pil",
    "python3-requests",
];

/// Starts the server, and again should something inside kill it.
pub(crate) const START: &str = "until python3 -I /usr/local/lib/sloplet/interpreter; do sleep 1; done";

/// Succeeds once the first kernel takes code.
pub(crate) const READY: &str = "curl -fsS -o /dev/null http://127.0.0.1:49999/health";

/// What would otherwise be done at the first use in every sandbox: bytecode, and matplotlib's list of fonts. Code runs as `user`
/// but may ask for a context in any folder, so that root's is open. Last, what the packages drag in and nobody reads at run
/// time: a third of the image.
pub(crate) const FINISH: &str = "set -e
chroot \"$1\" python3 -m compileall -q /usr/local/lib/sloplet/interpreter
chroot \"$1\" runuser -u user -- env HOME=/home/user python3 -c 'import matplotlib.pyplot'
chmod 0755 \"$1/root\"
cd \"$1/usr\"
rm -rf include/boost share/unicode share/locale share/man lib/python3/dist-packages/*/tests lib/*/nodejs/esbuild-wasm
rm -f lib/*/openblas-pthread/*.a lib/python3*/config-*/*.a
find share/doc -type f ! -name copyright -delete
";

macro_rules! interpreter_files {
    ($($name:literal),* $(,)?) => {
        &[$((
            concat!("/usr/local/lib/sloplet/interpreter/", $name),
            include_str!(concat!("../assets/interpreter/", $name)),
        )),*]
    };
}

/// The server and its kernels.
pub(crate) const FILES: &[(&str, &str)] = interpreter_files![
    "__init__.py",
    "__main__.py",
    "context.py",
    "contexts.py",
    "http11.py",
    "kernels/__init__.py",
    "kernels/bash.py",
    "kernels/child_kernel.py",
    "kernels/node.py",
    "kernels/node_driver.js",
    "kernels/python.py",
    "kernels/sloplet_charts.py",
    "kernels/sloplet_display.py",
    "languages.py",
    "outputs.py",
    "server.py",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_the_interpreter_is_in_the_image() {
        let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/interpreter");
        let mut there = Vec::new();
        for folder in ["", "kernels/"] {
            for entry in std::fs::read_dir(format!("{assets}/{folder}")).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if name.ends_with(".py") || name.ends_with(".js") {
                    there.push(format!("/usr/local/lib/sloplet/interpreter/{folder}{name}"));
                }
            }
        }
        there.sort();
        let mut embedded: Vec<_> = FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
        embedded.sort();
        assert_eq!(there, embedded);
    }
}
